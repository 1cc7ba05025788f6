"""Set h: other loops as strangers write them, with other mistakes, by an author who did not know the rules.

What counts was fixed before any verdict was asked for. A fault counts in a judging if, at its seed, the broken run
misses the figure ``good`` of its plant, and the repaired run reaches it. A healthy run counts if it reaches its own.
All others are excluded, and the judging names them. ``python -m verdict_runs.harm --set h`` trains all of them without
asking for a verdict, and says which count.
"""
