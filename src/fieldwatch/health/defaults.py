"""Every threshold of every rule in one table: its value, why that value, and where it comes from.

The rules take their defaults from here and from nowhere else; ``docs/rules.md`` is generated from it.
Warm-up, patience and windows count recordings of the metric (steps for a per-step metric, epochs or
evaluations for the others) and start again at every phase border.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Default:
    """One threshold.

    Attributes:
        value: the number.
        reason: why this number.
        source: where it comes from.
    """

    value: float
    reason: str
    source: str = "ours"


_SEED_VIDEO = "seed 004 (TensorBoard guide, warning signs)"
_SEED_FIELD = "seed 002 (PMNI stability guide, warning signs)"
_SEED_MEMORY = "seed 001 (SuGaR debugging guide, warning signs)"
_SMDEBUG = "smdebug built-in rules"
_GIANT = "ours; a standard deviation above 0.1 of the extent is what 3DGS prunes"
_NEEDLE = "ours; longest axis over 10 times the second: effective rank below 1.12 (Hyung 2024)"
_MEASURED_RAYS = "measured on the built-in scene, grids of 16 to 64 cells"
_MEASURED = "measured (design/observability.md, fact 6)"


def _of(value: float, reason: str, source: str = "ours") -> Default:
    return Default(value=value, reason=reason, source=source)


_NUMBERS: dict[str, dict[str, Default]] = {
    "NonFinite": {},
    "RefusedUpdates": {
        "count": _of(4, "a few refusals are normal with loss scaling; each is named by NonFinite anyway"),
        "share": _of(0.02, "one step in fifty lost is more than bad luck"),
        "standstill": _of(0.5, "half of all updates lost: the run no longer trains"),
        "window": _of(256, "long enough for a share, short enough to see it start"),
        "settled": _of(16, "no standstill is called from fewer steps than this"),
    },
    "SampleSpike": {
        "deviation": _of(8.0, "a +50 % spike on one view scores 10 to 17, a healthy run at most 4.2", _MEASURED),
        "ratio": _of(1.25, "smaller rises of one visit do no harm"),
        "grave": _of(3.0, "three times the sample's own baseline pulls the parameters away: warning, else note"),
        "window": _of(512, "steps whose residuals give the usual spread; the samples' own visits give the baseline"),
        "settled": _of(128, "a spread from fewer residuals is itself noise"),
        "floor": _of(0.02, "a spread below 2 % would make rounding a spike"),
        "warmup": _of(100, "samples fall at different speeds at first"),
        "grace": _of(200, "a declared reset (opacity reset) lifts the loss of every view for about this long"),
    },
    "LossSpike": {
        "ratio": _of(10.0, "most views differ by less than this; Lightning's 2.0 fires on every hard view"),
        "own": _of(3.0, "a named sample that is always this hard is no spike: times its own last visits"),
        "window": _of(64, "recordings in the moving baseline"),
        "warmup": _of(32, "no baseline before"),
        "patience": _of(16, "a spike has to come back within this many recordings, or it is a jump"),
        "grace": _of(200, "after a declared reset the loss may rise"),
    },
    "LossJump": {
        "ratio": _of(3.0, "a mean that triples and stays is no noise of views"),
        "limit": _of(100.0, "'loss suddenly jumps to > 100'; only if the baseline was below half of it", _SEED_FIELD),
        "window": _of(64, "recordings in the moving baseline"),
        "warmup": _of(64, "no baseline before"),
        "patience": _of(16, "one spike is no jump"),
        "grace": _of(200, "after a declared reset the loss may rise and need time"),
    },
    "LossNotDecreasing": {
        "drop": _of(0.01, "less than 1 % below the start is no progress (smdebug: 0.1 % over 10 steps)", _SMDEBUG),
        "head": _of(128, "recordings that say where the loss began"),
        "window": _of(512, "recordings in the present mean: views differ, so ten steps say nothing"),
        "warmup": _of(1000, "learning rates warm up; smdebug's 10 steps fire on every warm-up"),
        "noise": _of(0.05, "standard error of that comparison, relative: beyond it the spread of views decides"),
        "patience": _of(64, "a plateau at the start's height has to last"),
    },
    "LossNotDecreasing/epochs": {
        "head": _of(2, "epochs that say where the loss began"),
        "window": _of(3, "epochs in the present mean"),
        "warmup": _of(10, "epochs before it is judged"),
        "patience": _of(3, "epochs that it has to last"),
    },
    "LossOscillating": {
        "block": _of(32, "recordings are averaged over this many steps, which hides the spread between views"),
        "window": _of(8, "blocks compared"),
        "swing": _of(1.0, "averages that range over more than their own mean: 'oscillating wildly'", _SEED_VIDEO),
        "reversals": _of(3, "up, down, up, down: a fall or a single spike turns less often"),
        "warmup": _of(4, "blocks: the first fall is steep"),
        "patience": _of(2, "blocks"),
    },
    "LossOscillating/epochs": {
        "block": _of(1, "epoch means are averages already"),
        "warmup": _of(3, "epochs: the first fall is steep"),
    },
    "DeclaredButZero": {
        "patience": _of(200, "'declared active but exactly 0 for 200 steps'", _SEED_FIELD),
    },
    "DeclaredButAbsent": {
        "patience": _of(200, "terms that run every fifth step are not absent"),
    },
    "UndeclaredTerm": {},
    "TermDominates": {
        "ratio": _of(3.0, "'regulariser > 3x render loss'", "design/observability.md, section 5"),
        "warmup": _of(200, "an eikonal term may lead while the field forms"),
        "patience": _of(64, "one batch is no trend"),
    },
    "GradientVanishing": {
        "learnt": _of(10.0, "an L2 fit that has learnt ends with small gradients; with `loss` given, that is a note"),
        "low": _of(1e-7, "below this float32 updates vanish; mean losses over pixels make 1e-3 normal", _SMDEBUG),
        "warmup": _of(16, "the first steps may be empty"),
        "patience": _of(32, "one empty batch is no trend"),
    },
    "GradientVanishing/epochs": {
        "low": _of(0.001, "'total_norm very small (< 0.001)'", _SEED_VIDEO),
        "warmup": _of(1, "epoch means: one is enough to start"),
        "patience": _of(2, "one epoch may be odd"),
    },
    "GradientExploding": {
        "high": _of(100.0, "'total_norm very large (> 100)'", _SEED_VIDEO),
        "ratio": _of(10.0, "and ten times its own baseline: losses summed over pixels are large from the start"),
        "ceiling": _of(1e6, "no loss of this field needs it, whatever the baseline"),
        "window": _of(64, "recordings in the moving baseline"),
        "warmup": _of(32, "first steps are steep"),
        "patience": _of(8, "clipping deals with single ones"),
    },
    "GradientExploding/epochs": {
        "ratio": _of(0.0, "the guide's number is absolute", _SEED_VIDEO),
        "warmup": _of(1, "epoch means: one is enough to start"),
        "patience": _of(2, "one epoch may be odd"),
    },
    "GroupImbalance": {
        "low": _of(0.1, "'rgb_to_clip_ratio << 0.1'", _SEED_VIDEO),
        "high": _of(10.0, "'rgb_to_clip_ratio >> 10'", _SEED_VIDEO),
        "warmup": _of(3, "a head that just began is out of balance"),
        "patience": _of(3, "recordings out of balance in a row"),
    },
    "DeadGroup": {
        "patience": _of(200, "groups may be updated every few steps only"),
    },
    "UpdateRatio": {
        "high": _of(1.0, "an update as large as the parameters rewrites them (healthy: 1e-3; smdebug: 10)", _SMDEBUG),
        "low": _of(1e-8, "below float32 resolution nothing is learnt", _SMDEBUG),
        "warmup": _of(100, "groups that start at zero have no ratio yet"),
        "patience": _of(32, "recordings in a row"),
        "decayed": _of(0.01, "a learning rate below this share of its highest explains small updates"),
    },
    "UnchangedParameters": {
        "patience": _of(4, "recordings exactly alike (smdebug: 3 within 1e-5, which slow learning meets)", _SMDEBUG),
        "span": _of(64, "steps that these recordings have to span"),
        "decayed": _of(0.01, "a learning rate below this share of its highest explains it"),
    },
    "ParameterDrift": {
        "ratio": _of(10.0, "'should be stable': |mean| + std ten times its first value", _SEED_VIDEO),
        "floor": _of(0.1, "groups that start at zero grow by any factor"),
        "warmup": _of(1, "recordings before the baseline"),
        "patience": _of(3, "recordings in a row"),
    },
    "TermConflict": {
        "cosine": _of(0.5, "gradients more than 120 degrees apart undo half of each other"),
        "window": _of(32, "recordings in the moving mean: single batches disagree all the time"),
        "warmup": _of(16, "terms that just began pull elsewhere"),
        "patience": _of(32, "recordings in a row"),
    },
    "Overfitting": {
        "gap": _of(5.0, "'large psnr_gap (> 5 dB)'; below 3 is good", _SEED_VIDEO),
        "warmup": _of(1, "the first evaluation says little"),
        "patience": _of(2, "evaluations in a row"),
    },
    "Overtraining": {
        "worse": _of(0.5, "dB below the best validation: more than evaluation noise"),
        "better": _of(0.1, "dB that training gained meanwhile: otherwise it is not overtraining"),
        "patience": _of(3, "evaluations in a row (smdebug: 10 recordings)", _SMDEBUG),
    },
    "PoorSemantics": {
        "low": _of(0.7, "'val_clip_sim < 0.7'", _SEED_VIDEO),
        "warmup": _of(1, "evaluation after the CLIP term began: 0.79 after one epoch, 0.97 after ten"),
        "patience": _of(2, "evaluations in a row"),
    },
    "LearnedNothing": {
        "margin": _of(0.0, "dB above the mean frame: predicting one picture for every frame needs no network"),
        "warmup": _of(20, "epochs: the literal model passes the mean frame within its first few hundred steps"),
        "patience": _of(5, "epochs in a row"),
    },
    "Collapse": {
        "drop": _of(3.0, "dB below the best: NeRV-type training 'suddenly drops at some epoch'", "DNeRV issue 1"),
        "warmup": _of(2, "epochs before there is a best"),
        "patience": _of(3, "epochs: one bad epoch recovers"),
        "grace": _of(300, "steps after an excuse: what a prune or reset takes away comes back"),
    },
    "Collapse/tests": {
        "warmup": _of(1, "one evaluation makes a best: all held-out photos are in each"),
        "patience": _of(1, "evaluations are rare, and each is a mean"),
    },
    "NoValidation": {},
    "RayStarvation": {
        "low": _of(0.0, "'samples_per_ray = 0.0: occupancy grid collapsed'; about 3 is healthy", _SEED_FIELD),
        "warmup": _of(0, "a collapsed grid never recovers by itself"),
        "patience": _of(8, "one view without samples recovers"),
    },
    "OccupancySaturated": {
        "high": _of(1.0, "'occupied_frac = 1.000: occupancy grid saturated'", _SEED_FIELD),
        "warmup": _of(500, "the grid starts full and thins out (PMNI's warm-up is 500 steps)", _SEED_FIELD),
        "patience": _of(8, "recordings in a row"),
    },
    "OccupancySaturated/box": {
        "high": _of(0.75, "an object that fills the sphere in the box occupies 0.6 of it: the inside counts as well"),
    },
    "StarvedRays": {
        "high": _of(0.25, "a quarter of the object is not found; beyond a half the run itself answers"),
        "warmup": _of(500, "the surface starts as a sphere, and has yet to grow into all of the mask"),
        "patience": _of(100, "steps: hard views come and go"),
    },
    "AbundantSamples": {
        "ratio": _of(20.0, "coarse grids and grazing rays take up to 5 times what is needed", _MEASURED_RAYS),
        "band": _of(16.0, "S(-8) = 0.03 % of a ray's opacity is left at 8 / s on either side"),
        "warmup": _of(500, "the field is no distance yet"),
        "patience": _of(50, "steps in a row"),
    },
    "SharpnessStuck": {
        "rise": _of(0.01, "of v: s has grown by a tenth"),
        "warmup": _of(2500, "s falls at first, while the surface looks for its place"),
        "patience": _of(500, "steps in a row"),
    },
    "PosesRunAway": {
        "degrees": _of(30.0, "a start this far off is no guess; the published noise is 5 degrees", "PMNI"),
        "distance": _of(1.5, "units of the scene's sphere: 20 degrees about the object, four units away; noise is 0.1"),
        "patience": _of(5, "looks, every tenth step"),
    },
    "GridRebuilt": {},
    "RolledBack": {},
    "ValidationFailed": {},
    "MemoryRanOut": {},
    "CheckpointsFail": {},
    "DegenerateGaussians": {
        "transparent": _of(0.5, "half of the work is for nothing", "opacity below 0.005: Kerbl 2023, section 5.2"),
        "giant": _of(0.05, "a far background needs some; more means that the scene is not resolved", _GIANT),
        "needle": _of(0.5, "photos alone make many; half of all leave no surface", _NEEDLE),
        "never_visible": _of(0.2, "a fifth of the memory holds what no photo trains"),
        "warmup": _of(5, "looks: growth and resets change the population at once"),
        "patience": _of(30, "looks, 300 steps at the usual cadence: three growth steps"),
        "grace": _of(300, "steps after a reset, or after a fading term's end, until the next prunes have passed"),
    },
    "NonFiniteGaussians": {},
    "PruneRefused": {},
    "PopulationCollapse": {
        "drop": _of(0.5, "growth never takes half; opacities that were just reset and not yet trained do"),
        "most": _of(0.95, "SuGaR's prune at opacity 0.5 keeps a fifth (5 to 1 million)", "spec/sugar.md, section 0"),
    },
    "GrowthCapBinds": {
        "share": _of(0.02, "held back, of all: fewer than one in fifty do not matter"),
        "left": _of(0.25, "of the growth still to come; a cap that is reached at the end has done its work"),
        "patience": _of(3, "growth steps in a row"),
    },
    "DataStarved": {
        "share": _of(0.5, "half of the step waits for data", f"{_SMDEBUG} (IOBottleneck)"),
        "least": _of(5.0, "ms: steps this short are quick, not starved"),
        "window": _of(128, "steps in the mean"),
        "warmup": _of(32, "workers start, caches fill"),
        "patience": _of(32, "steps in a row"),
    },
    "StalledTraining": {
        "ratio": _of(20.0, "times the 99th percentile of the gaps between steps"),
        "least": _of(60.0, "s (smdebug: 1800 s, which a run of twenty minutes never meets)", _SMDEBUG),
        "warmup": _of(32, "gaps before there is a usual one"),
    },
    "SlowStart": {
        "least": _of(120.0, "s before the first step ended (smdebug MaxInitializationTime: 20 min)", _SMDEBUG),
        "ratio": _of(100.0, "times the usual step: slow steps make a slow first step"),
        "settled": _of(16, "steps before there is a usual one"),
    },
    "StepOutlier": {
        "ratio": _of(3.0, "times the median step (smdebug: 3 or 5 sigma, doc and code disagree)", _SMDEBUG),
        "count": _of(10, "outliers within the window", _SMDEBUG),
        "window": _of(256, "steps"),
        "warmup": _of(32, "kernels are compiled, caches fill"),
        "least": _of(5.0, "ms longer than the median: jitter of quick steps does not matter"),
    },
    "MemoryGrowing": {
        "share": _of(0.1, "growth since the phase's first snapshots (smdebug GPUMemoryIncrease: 5 or 10 %)", _SMDEBUG),
        "least": _of(64.0, "MB: less never ends a run"),
        "window": _of(8, "snapshots that never fall: 'continuously growing'", _SEED_MEMORY),
        "warmup": _of(2, "snapshots: the optimizer's state comes with the first update"),
    },
    "OutOfMemoryAhead": {
        "sure": _of(0.5, "more likely than not, by the spread of the growth curves and of the memory of a step"),
        "soon": _of(3000, "steps: time enough to change the run's settings by hand; farther ahead it is a note"),
        "near": _of(500, "steps: five densifications; a run that can act should act now"),
    },
    "MemoryLeak": {
        "significance": _of(6.0, "standard errors: 500 looks at three windows in a run must not make one false alarm"),
        "least": _of(0.02, "MB per step: 600 MB over 30,000 steps; less never ends a run"),
        "matters": _of(0.01, "of the memory there is: less than that until the planned end is a note (a CPU's heap)"),
        "warmup": _of(32, "steps of a phase: optimizer state, cuDNN's trials, caches and workspaces come first"),
    },
    "FragmentationHigh": {
        "high": _of(40.0, "percent: '> 40 %: high'; 10 to 30 is normal", _SEED_MEMORY),
        "lost": _of(10.0, "percent in pieces of segments in use; below it the idle rest is cache that serves again"),
        "warmup": _of(2, "snapshots: the pool fills"),
        "patience": _of(4, "snapshots in a row"),
    },
}

DEFAULTS: Mapping[str, Mapping[str, Default]] = MappingProxyType(
    {rule: MappingProxyType(numbers) for rule, numbers in _NUMBERS.items()}
)


def number(rule: str, name: str) -> float:
    """Return a threshold from the table."""
    return float(DEFAULTS[rule][name].value)


def integer(rule: str, name: str) -> int:
    """Return a threshold that counts something from the table."""
    return int(DEFAULTS[rule][name].value)
