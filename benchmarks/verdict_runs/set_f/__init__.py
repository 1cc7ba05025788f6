"""Set f: loops as strangers write them, with mistakes that people make, by an author who did not know the rules.

What counts was fixed before any verdict was asked for. A fault counts in a judging if, at its seed, the broken run misses
the figure ``good`` of its plant, and the repaired run reaches it; a healthy run counts if it reaches its own. All others
are excluded, and the judging says which. Every figure ``good`` lies between the figures of the broken and the sound runs
of the seeds 0, 1 and 2, which ``python -m verdict_runs.harm --set f`` trains without a verdict.
"""
