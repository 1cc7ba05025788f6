"""The rules, by what they look at."""

from fieldwatch.health.rules.field import OccupancySaturated, RayStarvation
from fieldwatch.health.rules.finite import NonFinite, RefusedUpdates
from fieldwatch.health.rules.forecast import MemoryLeak, OutOfMemoryAhead
from fieldwatch.health.rules.gradients import (
    DeadGroup,
    GradientExploding,
    GradientVanishing,
    GroupImbalance,
    TermConflict,
    UpdateRatio,
)
from fieldwatch.health.rules.losses import LossJump, LossNotDecreasing, LossOscillating, LossSpike
from fieldwatch.health.rules.memory import FragmentationHigh, MemoryGrowing, MemoryRanOut
from fieldwatch.health.rules.parameters import ParameterDrift, UnchangedParameters
from fieldwatch.health.rules.population import (
    DegenerateGaussians,
    GrowthCapBinds,
    NonFiniteGaussians,
    PopulationCollapse,
    PruneRefused,
)
from fieldwatch.health.rules.quality import (
    Collapse,
    LearnedNothing,
    NoValidation,
    Overfitting,
    Overtraining,
    PoorSemantics,
)
from fieldwatch.health.rules.samples import SampleSpike
from fieldwatch.health.rules.saving import CheckpointsFail
from fieldwatch.health.rules.surface import (
    AbundantSamples,
    GridRebuilt,
    PosesRunAway,
    RolledBack,
    SharpnessStuck,
    StarvedRays,
    ValidationFailed,
)
from fieldwatch.health.rules.terms import DeclaredButAbsent, DeclaredButZero, TermDominates, UndeclaredTerm
from fieldwatch.health.rules.timing import DataStarved, SlowStart, StalledTraining, StepOutlier

__all__ = [
    "AbundantSamples",
    "CheckpointsFail",
    "Collapse",
    "DataStarved",
    "DeadGroup",
    "DeclaredButAbsent",
    "DeclaredButZero",
    "DegenerateGaussians",
    "FragmentationHigh",
    "GradientExploding",
    "GradientVanishing",
    "GridRebuilt",
    "GroupImbalance",
    "GrowthCapBinds",
    "LearnedNothing",
    "LossJump",
    "LossNotDecreasing",
    "LossOscillating",
    "LossSpike",
    "MemoryGrowing",
    "MemoryLeak",
    "MemoryRanOut",
    "NoValidation",
    "NonFinite",
    "NonFiniteGaussians",
    "OccupancySaturated",
    "OutOfMemoryAhead",
    "Overfitting",
    "Overtraining",
    "ParameterDrift",
    "PoorSemantics",
    "PopulationCollapse",
    "PosesRunAway",
    "PruneRefused",
    "RayStarvation",
    "RefusedUpdates",
    "RolledBack",
    "SampleSpike",
    "SharpnessStuck",
    "SlowStart",
    "StalledTraining",
    "StarvedRays",
    "StepOutlier",
    "TermConflict",
    "TermDominates",
    "UnchangedParameters",
    "UndeclaredTerm",
    "UpdateRatio",
    "ValidationFailed",
]
