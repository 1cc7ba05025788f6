"""Set e: loops in fields that no other set has, by an author who did not know the rules."""
