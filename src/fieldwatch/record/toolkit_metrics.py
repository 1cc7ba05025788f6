"""The metrics that the toolkit itself records: what ``step.observe`` and ``step.update`` write for any loop."""

from fieldwatch.record.catalogue import Catalogue
from fieldwatch.record.metric import Metric

LOSS = (
    Metric(
        name="Loss/total",
        unit="",
        meaning="Sum of all active terms, each times its weight: the number that backward starts from.",
        better="lower",
        expected="falls; a jump at a phase border is the border's",
    ),
    Metric(
        name="Loss/component_<term>",
        unit="",
        meaning="Value of one term before its weight.",
        better="lower",
        expected="absent while the term is switched off, never zero instead",
    ),
    Metric(name="Loss/weight_<term>", unit="", meaning="Weight of one term at this step."),
    Metric(
        name="Loss/weighted_<term>", unit="", meaning="Term times weight: what it adds to the total.", better="lower"
    ),
    Metric(
        name="Loss/share_<term>",
        unit="",
        meaning="Weighted term divided by the total; NaN where the total is 0 or not finite.",
        better="steady",
        expected="no regulariser above the data term for long",
    ),
)

GRADIENTS = (
    Metric(
        name="Gradients/total_norm",
        unit="",
        meaning="Euclidean norm of all gradients together, before clipping.",
        better="steady",
        expected="0.1 to 10; below 0.001 or above 100 deserves a look",
    ),
    Metric(
        name="Gradients/<group>_norm",
        unit="",
        meaning="Euclidean norm of one parameter group's gradients, before clipping.",
        better="steady",
        expected="not exactly 0 while a term that reaches the group is active",
    ),
    Metric(name="Gradients/max", unit="", meaning="Largest absolute gradient entry of all groups.", better="steady"),
    Metric(
        name="Gradients/update_ratio_<group>",
        unit="",
        meaning="Norm of the group's update divided by the norm of its parameters.",
        better="steady",
        expected="about 1e-3; above 0.1 the group is rewritten, below 1e-7 it is frozen",
    ),
    Metric(
        name="Gradients/share_<group>_<term>",
        unit="",
        meaning="Norm of one weighted term's gradient in the group, divided by the sum of all terms' norms there.",
        better="steady",
    ),
    Metric(
        name="Gradients/cosine_<group>_<term>_<term>",
        unit="",
        meaning="Cosine between two terms' gradients in the group; -1 means that they pull against each other.",
        better="higher",
    ),
)

PARAMETERS = (
    Metric(name="Parameters/<group>_mean", unit="", meaning="Mean of all entries of the group.", better="steady"),
    Metric(
        name="Parameters/<group>_std",
        unit="",
        meaning="Sample standard deviation (one degree of freedom less) of all entries of the group.",
        better="steady",
    ),
)

GUARD = (
    Metric(
        name="Guard/refused", unit="", meaning="1 when the update of this step was refused, else 0.", better="lower"
    ),
)

TIME = (
    Metric(name="Time/step", unit="ms", meaning="Wall time from the start of this step to the next.", better="lower"),
    Metric(name="Time/<span>", unit="ms", meaning="Wall time of one named span within the step.", better="lower"),
)

SCHEDULE = (Metric(name="LearningRate/<group>", unit="", meaning="Learning rate of one parameter group at this step."),)

SAMPLES = (
    Metric(
        name="Sample/<place>/loss",
        unit="",
        meaning="Loss of the sample at this place of the batch (0-based); bookkeeping, kept out of the sinks.",
        better="lower",
    ),
)

GUIDE = (
    Metric(name="Guide/metrics", unit="", meaning="What every tag means, to be read beside the charts.", kind="text"),
)

TOOLKIT = Catalogue((*LOSS, *GRADIENTS, *PARAMETERS, *GUARD, *TIME, *SCHEDULE, *SAMPLES, *GUIDE))
