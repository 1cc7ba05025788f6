"""Every rule names a planted fault, and is silent on its healthy twin."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from fieldwatch import health
from fieldwatch.health import HealthRule
from fieldwatch.record import History

Make = Callable[..., History]
EVAL = {"stride": 50, "axis": "epoch"}
DECLARED = {"normal": (100, 4000)}
CLIP = {"clip": (500, 10_000)}


@dataclass(frozen=True, kw_only=True)
class Case:
    rule: HealthRule
    fault: Callable[[Make], History]
    healthy: Callable[[Make], History]
    step: int
    severity: str = "warning"
    subject: str = ""
    says: tuple[str, ...]
    advises: str


def flat(value: float, count: int = 600) -> np.ndarray:
    return np.full(count, float(value))


def noisy(count: int = 600, *, level: float = 1.0, noise: float = 0.05, fall: float = 400.0) -> np.ndarray:
    """A loss that falls to a third and wobbles."""
    steps = np.arange(count)
    wobble = 1 + noise * np.random.default_rng(7).standard_normal(count)
    return level * (0.33 + 0.67 * np.exp(-steps / fall)) * wobble


def changed(values: np.ndarray, part: slice | int, to: object) -> np.ndarray:
    values = values.copy()
    values[part] = to
    return values


def total(make: Make, values: np.ndarray, **options: object) -> History:
    return make({"Loss/total": values}, **options)


def one(name: str, values: object, make: Make, **options: object) -> History:
    return make(({name: np.asarray(values, np.float64)}, options))


def step_of(name: str, values: object) -> Callable[[Make], History]:
    return partial(one, name, values)


def evals(name: str, values: object) -> Callable[[Make], History]:
    return partial(one, name, values, **EVAL)


def terms(make: Make, *, bad: bool = True, refused: float | None = None) -> History:
    normal = changed(flat(0.3, 200), slice(57, 58), np.nan if bad else 0.4)
    columns = {"Loss/total": normal + 1, "Loss/component_rgb": flat(1, 200), "Loss/component_normal": normal}
    columns |= {"Gradients/sdf_norm": normal, "Gradients/total_norm": normal}
    if refused is not None:
        columns["Guard/refused"] = changed(flat(0, 200), 57, refused)
    return make((columns, {"samples": [f"view_{i % 10}" for i in range(200)]}))


def views(make: Make, *, spike: float, at: int = 1507) -> History:
    """40 views whose losses differ by factors, each wobbling by 3 %; one visit is lifted."""
    rng = np.random.default_rng(3)
    base, who = rng.lognormal(0, 0.7, 40), rng.integers(0, 40, 2000)
    losses = base[who] * np.exp(-np.arange(2000) / 3000) * (1 + 0.03 * rng.standard_normal(2000))
    losses[at] *= spike
    names = [f"view_{i}" for i in changed(who, at, who[at])]
    return make(({"Loss/total": losses}, {"samples": names}))


def declared(make: Make, values: np.ndarray | None, **options: object) -> History:
    columns = {"Loss/total": flat(1)} | ({} if values is None else {"Loss/component_normal": values})
    return make((columns, options), windows=DECLARED)


def weights(make: Make, eikonal: float) -> History:
    return make({"Loss/weighted_rgb": noisy(), "Loss/weighted_eikonal": changed(noisy() * eikonal, slice(100), 9)})


def heads(make: Make, ratio: float) -> History:
    return make({"Gradients/rgb_head_norm": noisy() * ratio, "Gradients/clip_head_norm": noisy()})


def group(make: Make, mean: np.ndarray, *, gradient: float = 0.5, rate: float = 1e-3) -> History:
    std = np.full(len(mean), 0.3)
    gradients = {"Gradients/sdf_norm": flat(gradient), "LearningRate/sdf": changed(flat(1e-3), slice(50, None), rate)}
    return make(gradients, ({"Parameters/sdf_mean": mean, "Parameters/sdf_std": std}, EVAL))


def generalisation(make: Make, validation: np.ndarray) -> History:
    train = 20 + 0.3 * np.arange(len(validation))
    return make(({"Eval/Frame/train_psnr": train, "Eval/Frame/val_psnr": validation}, EVAL))


def semantics(make: Make, similarity: list[float], baseline: float) -> History:
    columns = {
        "Eval/Frame/val_clip_sim": similarity,
        "Eval/Baseline/val_clip_sim_mean": flat(baseline, len(similarity)),
    }
    return make((columns, EVAL), windows=CLIP)


def against_mean_frame(make: Make, psnr: np.ndarray) -> History:
    return make({"Reference/mean_frame_psnr": flat(19.7, 1)}, ({"Train/PSNR": psnr}, EVAL))


def waiting(make: Make, data: float, step: float) -> History:
    return make({"Time/data": flat(data), "Time/step": flat(step)})


def paused(make: Make, gap: float, *, at: int = 400, events: tuple[dict[str, object], ...] = ()) -> History:
    times = np.cumsum(changed(flat(0.1), at, gap))
    return make(({"Loss/total": noisy()}, {"seconds": times}), events=events)


def snapshots(make: Make, activations: np.ndarray, parameters: np.ndarray | None = None) -> History:
    names = {
        "activations": activations,
        "parameters": flat(500, len(activations)) if parameters is None else parameters,
    }
    return make(({f"TensorProfiling/Tensor_Category/{name}_MB": values for name, values in names.items()}, EVAL))


RISE = np.concatenate([np.linspace(20, 30, 20), np.full(10, 24.0)])
STEPS = np.arange(600)
WILD = 1 + 0.9 * np.sign(np.sin(2 * np.pi * STEPS / 96))
NORM, PSNR, SPIKE = "Gradients/total_norm", "Train/PSNR", changed(noisy(), 300, 20.0)

CASES = [
    Case(
        rule=health.NonFinite(),
        fault=partial(terms, refused=0.0),
        healthy=partial(terms, bad=False, refused=0.0),
        step=57,
        severity="error",
        subject="normal",
        says=("term 'normal'", "group 'sdf'", "step 57", "sample 'view_7'", "no update was refused"),
        advises="do not replace NaN by 0",
    ),
    Case(
        rule=health.RefusedUpdates(),
        fault=step_of("Guard/refused", changed(flat(0), slice(100, 108), 1)),
        healthy=step_of("Guard/refused", changed(flat(0), slice(100, 103), 1)),
        step=103,
        says=("4 of the last 104 updates were refused", "4%"),
        advises="learning rate",
    ),
    Case(
        rule=health.SampleSpike(),
        fault=partial(views, spike=1.5),
        healthy=partial(views, spike=1.1),
        step=1507,
        severity="note",
        subject="view_25",
        says=("sample 'view_25'", "times its own last visits"),
        advises="Look at that sample",
    ),
    Case(
        rule=health.LossSpike(),
        fault=partial(total, values=SPIKE),
        healthy=partial(total, values=SPIKE, events=[{"kind": "reset", "step": 290}]),
        step=300,
        subject="Loss/total",
        says=("Loss/total was 20", "times its baseline"),
        advises="clip gradients",
    ),
    Case(
        rule=health.LossJump(),
        fault=partial(total, values=changed(noisy(), slice(300, None), 150.0)),
        healthy=partial(total, values=changed(noisy(), slice(300, 310), 150.0)),
        step=315,
        severity="error",
        subject="Loss/total",
        says=("jumped from", "to 150", "above the limit"),
        advises="last checkpoint",
    ),
    Case(
        rule=health.LossNotDecreasing(),
        fault=partial(total, values=1 + 0.1 * np.sin(STEPS)),
        healthy=partial(total, values=noisy(1000)),
        step=563,
        subject="Loss/total",
        says=("no lower than",),
        advises="optimizer holds the parameters",
    ),
    Case(
        rule=health.LossOscillating(),
        fault=partial(total, values=WILD),
        healthy=partial(total, values=noisy(noise=0.5)),
        step=415,
        subject="Loss/total",
        says=("swung by", "turning"),
        advises="Lower the learning rate",
    ),
    Case(
        rule=health.DeclaredButZero(),
        fault=partial(declared, values=flat(0)),
        healthy=partial(declared, values=changed(flat(0.3), slice(0, 299), 0)),
        step=299,
        subject="normal",
        says=("term 'normal'", "declared active from step 100", "exactly 0"),
        advises="computes nothing",
    ),
    Case(
        rule=health.DeclaredButAbsent(),
        fault=partial(declared, values=None),
        healthy=partial(declared, values=flat(0.3)),
        step=299,
        subject="normal",
        says=("term 'normal'", "last recorded never"),
        advises="Add the term",
    ),
    Case(
        rule=health.UndeclaredTerm(),
        fault=partial(declared, values=flat(0.3)),
        healthy=lambda make: make({"Loss/component_normal": flat(0.3)}, windows={"normal": (0, 9000)}),
        step=0,
        severity="note",
        subject="normal",
        says=("term 'normal'", "outside its window 100 to 4000"),
        advises="Declare",
    ),
    Case(
        rule=health.TermDominates(),
        fault=partial(weights, eikonal=4.0),
        healthy=partial(weights, eikonal=2.0),
        step=263,
        subject="eikonal",
        says=("regulariser 'eikonal'", "4.0 times the largest data term"),
        advises="Lower the regulariser's weight",
    ),
    Case(
        rule=health.TermConflict(),
        fault=step_of("Gradients/cosine_sdf_normal_eikonal", flat(-0.8)),
        healthy=step_of("Gradients/cosine_sdf_normal_eikonal", -0.8 * np.sign(np.sin(STEPS))),
        step=47,
        severity="note",
        subject="sdf_normal_eikonal",
        says=("opposite directions", "sdf_normal_eikonal", "-0.80"),
        advises="Lower one of the two weights",
    ),
    Case(
        rule=health.GradientVanishing(),
        fault=step_of(NORM, changed(flat(0.5), slice(200, None), 1e-9)),
        healthy=step_of(NORM, changed(flat(0.5), slice(200, 220), 1e-9)),
        step=231,
        subject=NORM,
        says=("vanishing", "1e-09"),
        advises="detached tensors",
    ),
    Case(
        rule=health.GradientExploding(),
        fault=step_of(NORM, changed(flat(5), slice(200, None), 5000)),
        healthy=step_of(NORM, flat(500) + 50 * np.sin(STEPS)),
        step=207,
        subject=NORM,
        says=("exploding", "5000", "above 100"),
        advises="Clip",
    ),
    Case(
        rule=health.GroupImbalance(groups=("rgb_head", "clip_head")),
        fault=partial(heads, ratio=30.0),
        healthy=partial(heads, ratio=5.0),
        step=5,
        subject="rgb_head/clip_head",
        says=("30", "outside 0.1 to 10", "balance"),
        advises="weight of the term",
    ),
    Case(
        rule=health.DeadGroup(),
        fault=step_of("Gradients/opacity_norm", changed(flat(0.5), slice(300, None), 0)),
        healthy=step_of("Gradients/opacity_norm", changed(flat(0.5), slice(300, 450), 0)),
        step=499,
        subject="opacity",
        says=("group 'opacity'", "exactly 0"),
        advises="freeze it on purpose",
    ),
    Case(
        rule=health.UpdateRatio(),
        fault=step_of("Gradients/update_ratio_sdf", changed(flat(1e-3), slice(200, None), 2.0)),
        healthy=step_of("Gradients/update_ratio_sdf", changed(flat(1e-3), slice(50), 2.0)),
        step=231,
        subject="sdf",
        says=("group 'sdf'", "too large", "2 times"),
        advises="learning rate",
    ),
    Case(
        rule=health.UnchangedParameters(),
        fault=partial(group, mean=flat(0.1, 12)),
        healthy=partial(group, mean=0.1 + 1e-6 * np.arange(12)),
        step=150,
        subject="sdf",
        says=("group 'sdf'", "unchanged since step 0"),
        advises="Give the group to the optimizer",
    ),
    Case(
        rule=health.ParameterDrift(),
        fault=partial(group, mean=changed(flat(0.1, 12), slice(6, None), 9.0)),
        healthy=partial(group, mean=changed(flat(0.1, 12), slice(6, None), 2.0)),
        step=400,
        subject="sdf",
        says=("group 'sdf'", "drifted from 0.4 to 9.3"),
        advises="bound the parameters",
    ),
    Case(
        rule=health.Overfitting(),
        fault=evals("Eval/Gap/psnr_gap", [1, 3, 6, 7, 8]),
        healthy=evals("Eval/Gap/psnr_gap", [6, 3, 6, 3, 4]),
        step=150,
        subject="Eval/Gap/psnr_gap",
        says=("7.0 dB", "overfitting"),
        advises="more views or frames",
    ),
    Case(
        rule=health.Overtraining(),
        fault=partial(generalisation, validation=np.array([18, 20, 22, 21.4, 21, 20.5, 20])),
        healthy=partial(generalisation, validation=np.array([18, 20, 22, 21.6, 21.8, 21.7, 21.9])),
        step=250,
        subject="Eval/Frame/val_psnr",
        says=("fell from 22.00 dB (step 100)", "while training improved"),
        advises="best validation checkpoint",
    ),
    Case(
        rule=health.PoorSemantics(),
        fault=partial(semantics, similarity=[-0.02] * 10 + [0.5, 0.6, 0.62, 0.63], baseline=0.4),
        healthy=partial(semantics, similarity=[-0.02] * 10 + [0.79, 0.97, 0.98, 0.99], baseline=0.93),
        step=600,
        subject="Eval/Frame/val_clip_sim",
        says=("0.620", "below 0.7"),
        advises="CLIP term",
    ),
    Case(
        rule=health.LearnedNothing(),
        fault=partial(against_mean_frame, psnr=flat(19.5, 40)),
        healthy=partial(against_mean_frame, psnr=np.linspace(12, 26, 40)),
        step=1200,
        subject=PSNR,
        says=("19.50 dB", "mean frame alone 19.70 dB"),
        advises="ignores its input",
    ),
    Case(
        rule=health.Collapse(),
        fault=evals(PSNR, RISE),
        healthy=evals(PSNR, changed(RISE, slice(22, None), 29.0)),
        step=1100,
        severity="error",
        subject=PSNR,
        says=("collapsed from 30.00 to 24.00 dB",),
        advises="best checkpoint",
    ),
    Case(
        rule=health.NoValidation(),
        fault=evals("Eval/Info/num_val_frames", [0, 0]),
        healthy=evals("Eval/Info/num_val_frames", [4, 4]),
        step=0,
        severity="note",
        says=("no validation frames",),
        advises="9_9_10",
    ),
    Case(
        rule=health.RayStarvation(),
        fault=step_of("samples_per_ray", changed(flat(3.2), slice(300, None), 0)),
        healthy=step_of("samples_per_ray", changed(flat(3.2), slice(300, 305), 0)),
        step=307,
        severity="error",
        subject="samples_per_ray",
        says=("collapsed", "no samples"),
        advises="Rebuild the occupancy grid",
    ),
    Case(
        rule=health.OccupancySaturated(),
        fault=step_of("occupied_frac", flat(1)),
        healthy=step_of("occupied_frac", changed(flat(1), slice(400, None), 0.03)),
        step=507,
        subject="occupied_frac",
        says=("saturated",),
        advises="occupancy threshold",
    ),
    Case(
        rule=health.DataStarved(),
        fault=partial(waiting, data=30, step=50),
        healthy=partial(waiting, data=3, step=4),
        step=63,
        says=("30.0 of 50.0 ms", "starved of data"),
        advises="more workers",
    ),
    Case(
        rule=health.StalledTraining(),
        fault=partial(paused, gap=90),
        healthy=partial(paused, gap=90, events=({"kind": "evaluation", "step": 399},)),
        step=400,
        says=("stalled", "90 s", "399 and 400"),
        advises="another process",
    ),
    Case(
        rule=health.SlowStart(),
        fault=partial(paused, gap=500, at=0),
        healthy=partial(paused, gap=50, at=0),
        step=16,
        severity="note",
        says=("500 s", "0.1 s"),
        advises="Cache",
    ),
    Case(
        rule=health.StepOutlier(),
        fault=step_of("Time/step", changed(flat(20), slice(200, None, 16), 200)),
        healthy=step_of("Time/step", changed(flat(20), slice(200, None, 100), 200)),
        step=344,
        severity="note",
        says=("10 of the last 256 steps",),
        advises="periodic work",
    ),
    Case(
        rule=health.MemoryGrowing(),
        fault=partial(snapshots, activations=1000 + 40.0 * np.arange(20)),
        healthy=partial(snapshots, activations=1000 + 40.0 * np.arange(20), parameters=500 + 20.0 * np.arange(20)),
        step=500,
        subject="TensorProfiling/Tensor_Category/activations_MB",
        says=("growing", "1080 to 1400 MB", "8 snapshots"),
        advises="detach()",
    ),
    Case(
        rule=health.FragmentationHigh(),
        fault=evals("TensorProfiling/fragmentation_percent", [50, 50, 20, 45, 46, 47, 48]),
        healthy=evals("TensorProfiling/fragmentation_percent", [50, 50, 20, 35, 46, 47, 38]),
        step=300,
        subject="TensorProfiling/fragmentation_percent",
        says=("48 %", "above 40 %"),
        advises="expandable_segments",
    ),
]
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule.name)


@BY_NAME
def test_names_the_planted_fault(case, make):
    found = case.rule(case.fault(make))
    assert len(found) == 1, found
    finding = found[0]
    assert (finding.rule, finding.step, finding.severity) == (case.rule.name, case.step, case.severity), finding
    assert finding.subject == case.subject
    missing = [words for words in case.says if words not in finding.message]
    assert not missing, finding.message
    assert case.advises in finding.remedy


@BY_NAME
def test_is_silent_on_the_healthy_twin(case, make):
    assert case.rule(case.healthy(make)) == ()


@BY_NAME
def test_is_silent_on_nothing(case):
    assert case.rule(History()) == ()


@BY_NAME
def test_the_step_is_the_first_at_which_it_could_be_known(case, make):
    """With the recordings up to that step the finding is the same; with one fewer there is none."""
    history, patient = case.fault(make), isinstance(case.rule, health.LossSpike)
    history.discard(case.step + (2 if patient else 1))
    assert [finding.step for finding in case.rule(history)] == [case.step]
    history.discard(case.step)
    assert case.rule(history) == ()


def test_every_rule_has_a_planted_fault_and_a_healthy_twin():
    assert sorted(case.rule.name for case in CASES) == sorted(rule.__name__ for rule in health.rule_classes())
