"""Rule sets: what any run is watched by, and what each pipeline adds."""

from fieldwatch.health import rules
from fieldwatch.health.defaults import integer, number
from fieldwatch.health.rule import HealthRule

_EPOCH_LOSS = ("Train/Loss/total_loss",)
_EPOCH_NORM = ("Train/Gradients/total_norm",)
_PARAMETERS_MB = ("TensorProfiling/Tensor_Category/parameters_MB",)
_TEST_PSNR = ("Test/psnr", "Eval/psnr")
_MODEL_STILL = rules.MemoryGrowing(metrics=_PARAMETERS_MB, explained_by="")

GENERAL: tuple[HealthRule, ...] = (
    rules.NonFinite(),
    rules.RefusedUpdates(),
    rules.RolledBack(),
    rules.SampleSpike(),
    rules.LossSpike(),
    rules.LossJump(),
    rules.LossNotDecreasing(),
    rules.LossOscillating(),
    rules.DeclaredButZero(),
    rules.DeclaredButAbsent(),
    rules.UndeclaredTerm(),
    rules.TermDominates(),
    rules.TermConflict(),
    rules.GradientVanishing(),
    rules.GradientExploding(),
    rules.DeadGroup(),
    rules.UpdateRatio(),
    rules.UnchangedParameters(),
    rules.ParameterDrift(),
    rules.DataStarved(),
    rules.StalledTraining(),
    rules.SlowStart(),
    rules.StepOutlier(),
    rules.MemoryGrowing(),
    rules.FragmentationHigh(),
    rules.MemoryLeak(),
    rules.OutOfMemoryAhead(),
    rules.MemoryRanOut(),
    rules.ValidationFailed(),
    rules.CheckpointsFail(),
)

VIDEO: tuple[HealthRule, ...] = (
    *GENERAL,
    rules.LossNotDecreasing(
        metrics=_EPOCH_LOSS,
        head=integer("LossNotDecreasing/epochs", "head"),
        window=integer("LossNotDecreasing/epochs", "window"),
        warmup=integer("LossNotDecreasing/epochs", "warmup"),
        patience=integer("LossNotDecreasing/epochs", "patience"),
    ),
    rules.LossOscillating(
        metrics=_EPOCH_LOSS,
        block=integer("LossOscillating/epochs", "block"),
        warmup=integer("LossOscillating/epochs", "warmup"),
    ),
    rules.GradientVanishing(
        metrics=_EPOCH_NORM,
        loss=_EPOCH_LOSS[0],
        low=number("GradientVanishing/epochs", "low"),
        warmup=integer("GradientVanishing/epochs", "warmup"),
        patience=integer("GradientVanishing/epochs", "patience"),
    ),
    rules.GradientExploding(
        metrics=_EPOCH_NORM,
        ratio=number("GradientExploding/epochs", "ratio"),
        warmup=integer("GradientExploding/epochs", "warmup"),
        patience=integer("GradientExploding/epochs", "patience"),
    ),
    rules.GroupImbalance(metrics=("Train/Gradients/rgb_to_clip_ratio",)),
    rules.UnchangedParameters(prefixes=("Model/Params/",), gradients=("Train/Gradients/", "Gradients/")),
    rules.ParameterDrift(prefixes=("Model/Params/",)),
    rules.Overfitting(),
    rules.Overtraining(),
    rules.PoorSemantics(),
    rules.LearnedNothing(),
    rules.Collapse(),
    rules.NoValidation(),
    _MODEL_STILL,
)

SPLATS: tuple[HealthRule, ...] = (
    *(rule for rule in GENERAL if not isinstance(rule, rules.OutOfMemoryAhead)),
    rules.OutOfMemoryAhead(unit="Gaussians"),
    rules.Collapse(
        metrics=_TEST_PSNR,
        excuses=("prune", "reset"),
        warmup=integer("Collapse/tests", "warmup"),
        patience=integer("Collapse/tests", "patience"),
        within="run",
    ),
    rules.Overfitting(metrics=("Test/psnr_gap",)),
    rules.Overtraining(train="Test/train_psnr", validation="Test/psnr"),
    rules.DegenerateGaussians(),
    rules.NonFiniteGaussians(),
    rules.PopulationCollapse(),
    rules.PruneRefused(),
    rules.GrowthCapBinds(),
)

NORMALS: tuple[HealthRule, ...] = (
    *GENERAL,
    rules.RayStarvation(),
    rules.OccupancySaturated(high=number("OccupancySaturated/box", "high")),
    rules.StarvedRays(),
    rules.AbundantSamples(),
    rules.SharpnessStuck(),
    rules.PosesRunAway(),
    rules.GridRebuilt(),
    _MODEL_STILL,
)
