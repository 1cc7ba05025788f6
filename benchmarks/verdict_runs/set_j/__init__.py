"""Set j: mistakes that users reported of their own trainings, planted by an author who did not know the rules.

As in set i, each fault follows a report in public where one was found, whose address stands beside the plant, and what
counts was fixed before any verdict was asked for: a broken run has to miss the figure ``good`` of its plant, the
repaired one and every healthy run have to reach it. ``python -m verdict_runs.harm --set j`` trains all of them without
asking for a verdict, and says which count.

``plants.MEANING`` names the faults that only somebody can tell who knows what the data mean: the training is sound in
itself, but is given other pictures, columns, hours or units than are meant. It was written down before any verdict
existed. All other faults can in principle be told by an expert who watches tensors, modules, code and the record.
"""
