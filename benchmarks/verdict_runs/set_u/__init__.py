"""Set u: sound trainings as strangers write them, in many fields and styles, without any planted fault.

Much of it looks odd, though nothing is wrong: targets that are mostly noise, few samples, games of two networks, losses
below zero, loops that hardly evaluate, end early or are interrupted. Each has a figure of merit on clean data of its
own, which it has to reach: ``python -m verdict_runs.harm --set u``.

It was judged in two halves before any rule was tuned on it: 4 false alarms in the first 32 runs, 1 in the other 38.
"""
