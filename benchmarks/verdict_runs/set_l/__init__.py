"""Set l: the faults that most people meet when they train, planted once more by an author who did not know the rules.

As set k, it aims at the natural frequency of faults, now in other fields and in loops of other styles: loops over
epochs and over steps, with two optimizers, with accumulated gradients, with losses in methods of classes, with settings
in dataclasses. The address of a report stands beside a plant where one was found. What counts was fixed before any
verdict was asked for: a broken run has to miss the figure ``good`` of its plant, the repaired one and every healthy run
have to reach it. ``python -m verdict_runs.harm --set l`` trains all of them without asking for a verdict.

``plants.MEANING`` names the faults that only somebody can tell who knows what the data mean.
"""
