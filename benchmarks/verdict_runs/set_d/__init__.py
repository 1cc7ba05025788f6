"""Set d: faults in programs of other fields, written without knowledge of the rules."""
