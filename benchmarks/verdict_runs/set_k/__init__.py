"""Set k: the faults that most people meet when they train, planted by an author who did not know the rules.

Sets c to j look for faults that no set has had yet. This one aims at their natural frequency: what reports in public,
and studies of faults of deep-learning programs, name most often. Some of its kinds are therefore in other sets as well,
in other loops. As in sets i and j, the address of a report stands beside each plant where one was found, and what
counts was fixed before any verdict was asked for: a broken run has to miss the figure ``good`` of its plant, the
repaired one and every healthy run have to reach it. ``python -m verdict_runs.harm --set k`` trains all of them without
asking for a verdict, and says which count.

``plants.MEANING`` names the faults that only somebody can tell who knows what the data mean.
"""
