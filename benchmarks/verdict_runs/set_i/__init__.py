"""Set i: mistakes that users reported of their own trainings, planted by an author who did not know the rules.

Each fault follows a report in public: a forum, an issue of a project or a list of common mistakes, whose address stands
beside the plant. What counts was fixed before any verdict was asked for, as in set h: a broken run has to miss the
figure ``good`` of its plant, the repaired one and every healthy run have to reach it.
``python -m verdict_runs.harm --set i`` trains all of them without asking for a verdict, and says which count.
"""
