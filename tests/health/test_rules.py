"""Each rule detects a simulated fault and reports nothing for the healthy counterpart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from fieldwatch.health import HealthRule
from fieldwatch.health.rules import (
    RULES,
    batches,
    chance,
    course,
    doubts,
    earlier,
    evaluated,
    evaluations,
    finite,
    forecast,
    gradients,
    incidents,
    kept,
    loop,
    losses,
    memory,
    not_kept,
    objectives,
    parameters,
    precision,
    progress,
    quality,
    rates,
    results,
    rules_in,
    samples,
    saving,
    sequences,
    settings,
    simple,
    targets,
    terms,
    timing,
    untrained,
)
from fieldwatch.record import History

Make = Callable[..., History]
Event = Mapping[str, object]
EVAL = {"stride": 50, "axis": "epoch"}
PLAN = {"kind": "plan", "step": 0, "steps": 600}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rule with a faulty run, a healthy counterpart, the expected (step, severity, subject), and expected phrases."""

    rule: HealthRule
    fault: Callable[[Make], History]
    healthy: Callable[[Make], History]
    at: tuple[int, str, str]
    words: tuple[str, ...]


def flat(value: float, count: int = 600) -> np.ndarray:
    return np.full(count, float(value))


def noisy(count: int = 600, *, level: float = 1.0, noise: float = 0.05, fall: float = 400.0) -> np.ndarray:
    """Return a loss that decreases to a third, with noise."""
    steps = np.arange(count)
    wobble = 1 + noise * np.random.default_rng(7).standard_normal(count)
    return level * (0.33 + 0.67 * np.exp(-steps / fall)) * wobble


def changed(values: np.ndarray, part: slice | int, to: object) -> np.ndarray:
    values = values.copy()
    values[part] = to
    return values


def one(name: str, values: object, make: Make, events: Sequence[Event] = (), **options: object) -> History:
    return make(({name: np.asarray(values, np.float64)}, options), events=events)


def step_of(name: str, values: object) -> Callable[[Make], History]:
    return partial(one, name, values)


def evals(name: str, values: object) -> Callable[[Make], History]:
    return partial(one, name, values, **EVAL)


def bad_terms(make: Make, *, bad: bool = True, refused: float | None = None) -> History:
    normal = changed(flat(0.3, 200), slice(57, 58), np.nan if bad else 0.4)
    columns = {"Loss/total": normal + 1, "Loss/component_rgb": flat(1, 200), "Loss/component_normal": normal}
    columns |= {"Gradients/sdf_norm": normal, "Gradients/total_norm": normal}
    if refused is not None:
        columns["Guard/refused"] = changed(flat(0, 200), 57, refused)
    return make((columns, {"samples": [f"view_{i % 10}" for i in range(200)]}))


def views(make: Make, *, spike: float, at: int = 1507) -> History:
    """40 views whose losses differ by large factors, with 3 % noise; the loss of one visit is raised."""
    rng = np.random.default_rng(3)
    base = rng.lognormal(0, 0.7, 40)
    who = rng.integers(0, 40, 2000)
    losses = base[who] * np.exp(-np.arange(2000) / 3000) * (1 + 0.03 * rng.standard_normal(2000))
    losses[at] *= spike
    names = [f"view_{i}" for i in changed(who, at, who[at])]
    return make(({"Loss/total": losses}, {"samples": names}))


def declared(make: Make, values: np.ndarray | None, **options: object) -> History:
    columns = {"Loss/total": flat(1)} | ({} if values is None else {"Loss/component_normal": values})
    return make((columns, options), windows={"normal": (100, 4000)})


def weights(make: Make, eikonal: float) -> History:
    return make({"Loss/weighted_rgb": noisy(), "Loss/weighted_eikonal": changed(noisy() * eikonal, slice(100), 9)})


def group(make: Make, mean: np.ndarray, *, gradient: float = 0.5, rate: float = 1e-3) -> History:
    std = np.full(len(mean), 0.3)
    gradients = {"Gradients/sdf_norm": flat(gradient), "LearningRate/sdf": changed(flat(1e-3), slice(50, None), rate)}
    return make(gradients, ({"Parameters/sdf_mean": mean, "Parameters/sdf_std": std}, EVAL))


def generalisation(make: Make, validation: np.ndarray) -> History:
    train = 20 + 0.3 * np.arange(len(validation))
    return make(({"Eval/Frame/train_psnr": train, "Eval/Frame/val_psnr": validation}, EVAL))


def saves(make: Make, *, failed: Sequence[int]) -> History:
    good = [{"kind": "checkpoint", "step": step} for step in (99, 199, 499)]
    bad = [{"kind": "checkpoint_failed", "step": step, "reason": "No space left on device"} for step in failed]
    return make({"Loss/total": noisy()}, events=sorted(good + bad, key=lambda event: event["step"]))


def columns(make: Make, *, unused: float) -> History:
    """A detector with a share of columns that have never had a gradient, and a poor result."""
    rare = {"Forward/net_unused_share": np.repeat([0.9, unused], [4, 28]), "val/recall": np.linspace(0.2, 0.5, 32)}
    return make({"Loss/total": noisy()}, (rare, {"stride": 18}), events=[PLAN])


def numbers(make: Make, *, fraction: float) -> History:
    """Targets from 0 to 5, learned by a mean of squares."""
    loss = noisy()
    whole = {"target_low": flat(0, 32), "target_high": flat(5, 32), "target_fraction": flat(fraction, 32)}
    rare = {f"Forward/net_{name}": values for name, values in whole.items()} | {
        "Forward/net_error_square": loss[::18][:32]
    }
    rare |= {"val/accuracy": np.linspace(0.2, 0.5, 32)}
    return make({"Loss/total": loss}, (rare, {"stride": 18}), events=[PLAN])


def told(make: Make, **event: object) -> History:
    return make({"Loss/total": noisy()}, events=[{"step": 299, **event}])


def full_disk(make: Make, *, dropped: int | None) -> History:
    events = [{"kind": "disk_full", "step": 250 if dropped is None else 299}]
    said = f"the disk was full from step 250 to 299 (3.0 s): 40 rows waited, 0 lost; {dropped} pictures were dropped"
    events += [] if dropped is None else [{"kind": "disk_freed", "step": 299, "dropped": dropped, "message": said}]
    return make({"Loss/total": noisy()}, events=events)


def paused(make: Make, gap: float, *, at: int = 400, events: Sequence[Event] = ()) -> History:
    times = np.cumsum(changed(flat(0.1), at, gap))
    return make(({"Loss/total": noisy()}, {"seconds": times}), events=events)


def finished(*parts: object, make: Make, events: Sequence[Event] = (), steps: int = 600) -> History:
    return make(*parts, events=[{"kind": "plan", "step": 0, "steps": steps}, *events])


def judged(make: Make, score: object, *, loss: np.ndarray | None = None, **columns: object) -> History:
    """A finished run with an accuracy at six evaluations, and further metrics of these."""
    scores = {"Eval/accuracy": np.asarray(score), **{name.replace("__", "/"): each for name, each in columns.items()}}
    total = noisy() if loss is None else loss
    return finished({"Loss/total": total}, (scores, {**EVAL, "first": 99, "stride": 100}), make=make)


def against_chance(make: Make, last: float) -> History:
    chance = {"kind": "baselines", "step": 0, "baselines": {"Eval/accuracy": {"value": 0.1, "better": "higher"}}}
    scores = ({"Eval/accuracy": np.array([0.05, last])}, {**EVAL, "first": 299, "stride": 300})
    return finished({"Loss/total": noisy()}, scores, make=make, events=[chance])


def paid(rewards: np.ndarray, make: Make) -> History:
    noise = 0.05 * np.random.default_rng(3).standard_normal(len(rewards))
    return finished({"Loss/total": noisy() - 0.5, "Agent/reward": rewards + noise}, make=make)


def scored(make: Make, worst: float) -> History:
    values = {f"view_{i}": 24 + 0.3 * i for i in range(8)} | {"view_3": worst}
    event = {"kind": "sample_scores", "step": 599, "metric": "Test/psnr", "better": "higher", "values": values}
    return finished({"Loss/total": noisy()}, make=make, events=[event])


def visited(make: Make, wrong: float) -> History:
    """Twenty views that differ by half, one of them wrong by a factor."""
    who = np.random.default_rng(5).integers(0, 20, 600)
    losses = noisy() * (1 + 0.5 * who / 20) * np.where(who == 4, wrong, 1.0)
    return finished(({"Loss/total": losses}, {"samples": [f"view_{i}" for i in who]}), make=make)


def started(make: Make, peak: float) -> History:
    return make({"Loss/total": changed(noisy(), slice(2, 9), peak), "LearningRate/0": flat(0.5)})


def slow(make: Make, ratio: float) -> History:
    detail = ({"Gradients/update_ratio_sdf": flat(ratio, 12)}, EVAL)
    return finished({"Loss/total": 3 - 1e-5 * STEPS, "LearningRate/0": flat(1e-6)}, detail, make=make)


def two_terms(make: Make, *, blue: np.ndarray) -> History:
    return finished({"Loss/weighted_red": np.exp(-STEPS / 40.0), "Loss/weighted_blue": blue}, make=make)


RISE = np.concatenate([np.linspace(20, 30, 20), np.full(10, 24.0)])
STEPS = np.arange(600)
WILD = 1 + 0.9 * np.sign(np.sin(2 * np.pi * STEPS / 96))
LOSS = "Loss/total"
NORM = "Gradients/total_norm"
PSNR = "Train/PSNR"
SPIKE = changed(noisy(), 300, 20.0)
NOT_KEPT = {"kind": "not_kept", "step": 3, "subject": "Adam", "reason": "the optimizer Adam is used but not tracked."}
RESUMED = {"kind": "plan", "step": 100, "steps": 300}
MODE = {
    "kind": "mode",
    "step": 107,
    "item": "model",
    "to": "eval",
    "since": 99,
    "first": 100,
    "updates": 8,
    "modules": ["model.drop"],
    "count": 1,
    "whole": True,
    "frozen": False,
    "only_norms": False,
}
FROZEN = {
    "kind": "requires_grad",
    "step": 107,
    "since": 96,
    "first": 100,
    "updates": 8,
    "frozen": ["model.head.weight"],
    "frozen_count": 1,
    "frozen_in_optimizers": 1,
    "unfrozen": [],
    "unfrozen_count": 0,
}
FORGOTTEN = {
    "kind": "not_in_optimizer",
    "step": 32,
    "names": ["model.head.weight"],
    "count": 1,
    "updates": 32,
    "replaced": 1,
}
LOOSE = {
    "kind": "loose_parameters",
    "step": 32,
    "names": ["model.blocks.0.weight", "model.blocks.0.bias"],
    "count": 2,
    "share": 0.4,
    "inside": 2,
    "updates": 32,
}
NO_GRADIENT = {
    "kind": "term_without_gradient",
    "step": 131,
    "term": "smooth",
    "first": 100,
    "steps": 32,
    "detached": True,
    "frozen": False,
}


def with_term(make: Make, value: float) -> History:
    columns = {"Loss/total": noisy(), "Loss/component_smooth": flat(value)}
    return make(columns, events=[NO_GRADIENT])


def jumped(make: Make, *, to: float) -> History:
    """Return a run whose learning rate rises at step 300 and whose loss follows it."""
    rates = np.where(np.arange(600) < 300, 1e-3, to)
    return make({"LearningRate/0": rates, "Loss/total": noisy() * np.where(np.arange(600) > 300, to * 1e3, 1.0)})


LOADER = {"name": "loader", "batches": 0, "rows": 5, "batch_size": 8, "workers": 0, "drop_last": True}
SOURCE = {"kind": "loop_source", "file": "train.py", "line": 9, "lines": {}, "loaders": []}
CASES = [
    Case(
        rule=loop.NoSteps(),
        fault=lambda make: make(events=[{"kind": "no_steps", "step": 0, "loaders": [LOADER]}]),
        healthy=partial(told, kind="other"),
        at=(0, "error", ""),
        words=("without a single step", "5 samples, batch_size=8", "drop_last=False"),
    ),
    Case(
        rule=loop.ClippedTooEarly(),
        fault=partial(told, **SOURCE | {"order": [{"what": "clip before backward", "line": 12}]}),
        healthy=partial(told, **SOURCE | {"order": []}),
        at=(299, "warning", "train.py:12"),
        words=("before the backward pass", "after loss.backward()"),
    ),
    Case(
        rule=targets.OutputUnused(),
        fault=partial(columns, unused=0.75),
        healthy=partial(columns, unused=0.0),
        at=(599, "warning", "net"),
        words=("75%", "output of 'net'", "no gradient", "term for each part"),
    ),
    Case(
        rule=targets.ClassAsNumber(),
        fault=partial(numbers, fraction=1e-6),
        healthy=partial(numbers, fraction=0.4),
        at=(599, "warning", "net"),
        words=("whole numbers from 0 to 5", "val/accuracy", "cross_entropy"),
    ),
    Case(
        rule=finite.NonFinite(),
        fault=partial(bad_terms, refused=0.0),
        healthy=partial(bad_terms, bad=False, refused=0.0),
        at=(57, "error", "normal"),
        words=(
            "term 'normal'",
            "group 'sdf'",
            "step 57",
            "sample 'view_7'",
            "no update was refused",
            "do not replace NaN by 0",
        ),
    ),
    Case(
        rule=saving.CheckpointsFail(),
        fault=partial(saves, failed=(299, 310, 399)),
        healthy=partial(saves, failed=()),
        at=(299, "warning", "checkpoint_failed"),
        words=("step 299 was not saved: No space left", "last good checkpoint is step 199", "Free space"),
    ),
    Case(
        rule=saving.FellBack(),
        fault=partial(
            told, kind="incident", what="damaged", damaged=400, message="resumed from step 300, 100 steps are repeated"
        ),
        healthy=partial(told, kind="incident", what="abandoned", damaged=400, message="the run went back"),
        at=(299, "warning", "step 400"),
        words=("resumed from step 300, 100 steps are repeated", "damaged-step_"),
    ),
    Case(
        rule=saving.DamagedRecord(),
        fault=partial(told, kind="damaged_record", file="events.jsonl", message="events.jsonl: 2 lines left out"),
        healthy=partial(told, kind="note", file="events.jsonl"),
        at=(299, "warning", "events.jsonl"),
        words=("events.jsonl: 2 lines left out", "Restore the file from a copy"),
    ),
    Case(
        rule=not_kept.NotKept(),
        fault=partial(one, LOSS, noisy(), events=(NOT_KEPT, RESUMED)),
        healthy=step_of(LOSS, noisy()),
        at=(3, "warning", "Adam"),
        words=("Adam is used but not tracked", "run.track"),
    ),
    Case(
        rule=loop.ModeChanged(),
        fault=partial(one, LOSS, noisy(), events=(MODE,)),
        healthy=partial(one, LOSS, noisy(), events=(MODE | {"whole": False, "only_norms": True},)),
        at=(107, "warning", "model in eval mode"),
        words=("'model.drop'", "steps 99 and 100", "model.train()"),
    ),
    Case(
        rule=loop.FrozenDuringTraining(),
        fault=partial(one, LOSS, noisy(), events=(FROZEN,)),
        healthy=partial(one, LOSS, noisy(), events=(FROZEN, {"kind": "phase", "step": 99, "name": "head"})),
        at=(107, "note", "model.head.weight"),
        words=("'model.head.weight'", "steps 96 and 100", "requires_grad_(True)"),
    ),
    Case(
        rule=loop.LooseParameters(),
        fault=partial(one, LOSS, noisy(), events=[LOOSE]),
        healthy=partial(one, LOSS, noisy(), events=[{**LOOSE, "share": 0.001}]),
        at=(32, "warning", "model.blocks.0.weight"),
        words=("2 parameters", "40%", "plain list", "nn.ModuleList"),
    ),
    Case(
        rule=loop.NotInOptimizer(),
        fault=partial(one, LOSS, noisy(), events=(FORGOTTEN,)),
        healthy=step_of(LOSS, noisy()),
        at=(32, "warning", "model.head.weight"),
        words=("'model.head.weight'", "replaced after the optimizer was created", "add_param_group"),
    ),
    Case(
        rule=loop.UnclearedGradient(),
        fault=partial(one, "Guard/uncleared_gradient", flat(0.5)),
        healthy=step_of("Guard/uncleared_gradient", flat(0)),
        at=(7, "warning", "Gradients/total_norm"),
        words=("since step 0", "zero_grad()"),
    ),
    Case(
        rule=loop.TermWithoutGradient(),
        fault=partial(with_term, value=2.0),
        healthy=partial(with_term, value=0.0),
        at=(131, "warning", "smooth"),
        words=("'smooth' is detached since step 100", "detach()"),
    ),
    Case(
        rule=loop.RateJump(),
        fault=partial(jumped, to=0.1),
        healthy=partial(jumped, to=5e-3),
        at=(316, "warning", "0"),
        words=("from 0.001 to 0.1 at step 300", "the loss rose", "phase"),
    ),
    Case(
        rule=saving.DiskFull(),
        fault=partial(full_disk, dropped=7),
        healthy=step_of("Loss/total", noisy()),
        at=(299, "warning", "to step 299"),
        words=("full from step 250 to 299", "40 rows waited, 0 lost", "7 pictures", "Free space"),
    ),
    Case(
        rule=finite.RefusedUpdates(),
        fault=step_of("Guard/refused", changed(flat(0), slice(100, 108), 1)),
        healthy=step_of("Guard/refused", changed(flat(0), slice(100, 103), 1)),
        at=(103, "warning", ""),
        words=("4 of the last 104 updates were refused", "4%", "learning rate"),
    ),
    Case(
        rule=samples.SampleSpike(),
        fault=partial(views, spike=1.5),
        healthy=partial(views, spike=1.1),
        at=(1507, "note", "view_25"),
        words=("sample 'view_25'", "times its baseline", "Check that sample"),
    ),
    Case(
        rule=losses.LossSpike(),
        fault=step_of(LOSS, SPIKE),
        healthy=partial(one, LOSS, SPIKE, events=[{"kind": "reset", "step": 290}]),
        at=(300, "warning", "Loss/total"),
        words=("Loss/total was 20", "times its baseline", "clip gradients"),
    ),
    Case(
        rule=losses.LossJump(),
        fault=step_of(LOSS, changed(noisy(), slice(300, None), 150.0)),
        healthy=step_of(LOSS, changed(noisy(), slice(300, 310), 150.0)),
        at=(315, "error", "Loss/total"),
        words=("jumped from", "to 150", "above the limit", "last checkpoint"),
    ),
    Case(
        rule=losses.LossNotDecreasing(),
        fault=step_of(LOSS, 1 + 0.1 * np.sin(np.arange(1200))),
        healthy=step_of(LOSS, noisy(1200)),
        at=(1063, "warning", "Loss/total"),
        words=("no lower than", "optimizer holds the parameters"),
    ),
    Case(
        rule=losses.LossOscillating(),
        fault=step_of(LOSS, WILD),
        healthy=step_of(LOSS, noisy(noise=0.5)),
        at=(415, "warning", "Loss/total"),
        words=("oscillated by", "reversing", "Lower the learning rate"),
    ),
    Case(
        rule=terms.DeclaredButZero(),
        fault=partial(declared, values=flat(0)),
        healthy=partial(declared, values=changed(flat(0.3), slice(0, 299), 0)),
        at=(299, "warning", "normal"),
        words=("term 'normal'", "declared active from step 100", "exactly 0", "has no effect"),
    ),
    Case(
        rule=terms.DeclaredButAbsent(),
        fault=partial(declared, values=None),
        healthy=partial(declared, values=flat(0.3)),
        at=(299, "warning", "normal"),
        words=("term 'normal'", "was never recorded", "Add the term"),
    ),
    Case(
        rule=terms.UndeclaredTerm(),
        fault=partial(declared, values=flat(0.3)),
        healthy=lambda make: make({"Loss/component_normal": flat(0.3)}, windows={"normal": (0, 9000)}),
        at=(0, "note", "normal"),
        words=("term 'normal'", "outside its window 100 to 4000", "Declare"),
    ),
    Case(
        rule=terms.TermDominates(),
        fault=partial(weights, eikonal=4.0),
        healthy=partial(weights, eikonal=2.0),
        at=(263, "warning", "eikonal"),
        words=("regularizer 'eikonal'", "4.0 times the largest data term", "Lower the weight of the regularizer"),
    ),
    Case(
        rule=gradients.TermConflict(),
        fault=step_of("Gradients/cosine_sdf_normal_eikonal", flat(-0.8)),
        healthy=step_of("Gradients/cosine_sdf_normal_eikonal", -0.8 * np.sign(np.sin(STEPS))),
        at=(47, "note", "sdf_normal_eikonal"),
        words=("opposite directions", "sdf_normal_eikonal", "-0.80", "Lower one of the two weights"),
    ),
    Case(
        rule=gradients.GradientVanishing(),
        fault=step_of(NORM, changed(flat(0.5), slice(200, None), 1e-9)),
        healthy=step_of(NORM, changed(flat(0.5), slice(200, 220), 1e-9)),
        at=(231, "warning", NORM),
        words=("vanishing", "1e-09", "detached tensors"),
    ),
    Case(
        rule=gradients.GradientExploding(),
        fault=step_of(NORM, changed(flat(5), slice(200, None), 5000)),
        healthy=step_of(NORM, flat(500) + 50 * np.sin(STEPS)),
        at=(207, "warning", NORM),
        words=("exploding", "5,000", "above 100", "Clip"),
    ),
    Case(
        rule=gradients.GroupImbalance(groups=("rgb_head", "clip_head")),
        fault=lambda make: make({"Gradients/rgb_head_norm": 30 * noisy(), "Gradients/clip_head_norm": noisy()}),
        healthy=lambda make: make({"Gradients/rgb_head_norm": 5 * noisy(), "Gradients/clip_head_norm": noisy()}),
        at=(5, "warning", "rgb_head/clip_head"),
        words=("30", "outside 0.1 to 10", "balance", "weight of the term"),
    ),
    Case(
        rule=gradients.DeadGroup(),
        fault=step_of("Gradients/opacity_norm", changed(flat(0.5), slice(300, None), 0)),
        healthy=step_of("Gradients/opacity_norm", changed(flat(0.5), slice(300, 450), 0)),
        at=(499, "warning", "opacity"),
        words=("group 'opacity'", "exactly 0", "freeze it at a phase border"),
    ),
    Case(
        rule=gradients.UpdateRatio(),
        fault=step_of("Gradients/update_ratio_sdf", changed(flat(1e-3), slice(200, None), 2.0)),
        healthy=step_of("Gradients/update_ratio_sdf", changed(flat(1e-3), slice(50), 2.0)),
        at=(207, "warning", "sdf"),
        words=("group 'sdf'", "too large", "2 times", "learning rate"),
    ),
    Case(
        rule=parameters.UnchangedParameters(),
        fault=partial(group, mean=flat(0.1, 12)),
        healthy=partial(group, mean=0.1 + 1e-6 * np.arange(12)),
        at=(150, "warning", "sdf"),
        words=("group 'sdf'", "unchanged since step 0", "Pass the group to the optimizer"),
    ),
    Case(
        rule=parameters.ParameterDrift(),
        fault=partial(group, mean=changed(flat(0.1, 12), slice(6, None), 9.0)),
        healthy=partial(group, mean=changed(flat(0.1, 12), slice(6, None), 2.0)),
        at=(400, "warning", "sdf"),
        words=("group 'sdf'", "drifted from 0.4 to 9.3", "bound the parameters"),
    ),
    Case(
        rule=quality.Overfitting(metrics=("Eval/Gap/psnr_gap",)),
        fault=evals("Eval/Gap/psnr_gap", [1, 3, 6, 7, 8]),
        healthy=evals("Eval/Gap/psnr_gap", [6, 3, 6, 3, 4]),
        at=(150, "warning", "Eval/Gap/psnr_gap"),
        words=("7.0 dB", "overfitting", "more views or frames"),
    ),
    Case(
        rule=quality.Overtraining(train="Eval/Frame/train_psnr", validation="Eval/Frame/val_psnr"),
        fault=partial(generalisation, validation=np.array([18, 20, 22, 21.4, 21, 20.5, 20])),
        healthy=partial(generalisation, validation=np.array([18, 20, 22, 21.6, 21.8, 21.7, 21.9])),
        at=(200, "warning", "Eval/Frame/val_psnr"),
        words=("fell from 22.00 dB (step 100)", "while training improved", "best validation checkpoint"),
    ),
    Case(
        rule=results.WorseThanNothing(),
        fault=partial(against_chance, last=0.103),
        healthy=partial(against_chance, last=0.4),
        at=(599, "error", "Eval/accuracy"),
        words=("ended at 0.103", "trivial baseline of 0.1", "targets"),
    ),
    Case(
        rule=progress.NoProgress(),
        fault=partial(judged, score=[0.19, 0.12, 0.2, 0.19, 0.18, 0.19], loss=2.3 - 3e-4 * STEPS),
        healthy=partial(judged, score=[0.19, 0.3, 0.4, 0.5, 0.5, 0.5], loss=2.3 - 3e-4 * STEPS),
        at=(599, "warning", "Eval/accuracy"),
        words=("Eval/accuracy is 0.19", "6 evaluations", "fell by only 7%", "belong together"),
    ),
    Case(
        rule=progress.ProgressLost(),
        fault=partial(judged, score=[0.4, 0.5, 0.62, 0.6, 0.5, 0.41]),
        healthy=partial(judged, score=[0.4, 0.5, 0.62, 0.6, 0.5, 0.58]),
        at=(599, "warning", "Eval/accuracy"),
        words=("from 0.4 to 0.62", "ended at 0.41", "best checkpoint"),
    ),
    Case(
        rule=progress.RewardNotRising(),
        fault=partial(paid, np.linspace(0.2, 0.15, 600)),
        healthy=partial(paid, np.linspace(0.2, 0.6, 600)),
        at=(599, "warning", "Agent/reward"),
        words=("no better than the 0.1", "learned nothing", "sign of the loss"),
    ),
    Case(
        rule=results.HeldOutGap(),
        fault=partial(judged, score=flat(0.6, 6), Eval__accuracy_train=flat(1.0, 6)),
        healthy=partial(judged, score=flat(0.9, 6), Eval__accuracy_train=flat(1.0, 6)),
        at=(599, "warning", "Eval/accuracy"),
        words=("Eval/accuracy ended at 0.6", "Eval/accuracy_train at 1", "more data"),
    ),
    Case(
        rule=results.WorstSample(),
        fault=partial(scored, worst=9.0),
        healthy=partial(scored, worst=21.0),
        at=(599, "warning", "view_3"),
        words=("'view_3' (9)", "median of the other 7", "check pose, mask"),
    ),
    Case(
        rule=samples.WrongSample(),
        fault=partial(visited, wrong=5.0),
        healthy=partial(visited, wrong=1.5),
        at=(599, "warning", "view_4"),
        words=("sample 'view_4'", "far above that of all others", "wrong pose"),
    ),
    Case(
        rule=rates.RateTooHigh(),
        fault=partial(started, peak=400.0),
        healthy=partial(started, peak=4.0),
        at=(3, "warning", "Loss/total"),
        words=("learning rate of 0.5", "far too high", "learning rate 0.005"),
    ),
    Case(
        rule=rates.RateTooLow(),
        fault=partial(slow, ratio=1e-5),
        healthy=partial(slow, ratio=1e-3),
        at=(599, "warning", "Loss/total"),
        words=("learning rate of 1e-06", "far too low", "learning rate 1e-04"),
    ),
    Case(
        rule=terms.TermNotLearned(),
        fault=partial(two_terms, blue=flat(0.17)),
        healthy=partial(two_terms, blue=0.17 * np.exp(-STEPS / 200.0)),
        at=(599, "warning", "blue"),
        words=("term 'blue' began at 0.17", "no gradient", ".detach()"),
    ),
    Case(
        rule=quality.Collapse(metrics=("Train/PSNR",)),
        fault=evals(PSNR, RISE),
        healthy=evals(PSNR, changed(RISE, slice(22, None), 29.0)),
        at=(1100, "error", PSNR),
        words=("collapsed from 30.00 to 24.00 dB", "best checkpoint"),
    ),
    Case(
        rule=timing.DataStarved(),
        fault=lambda make: make({"Time/data": flat(30), "Time/step": flat(50)}),
        healthy=lambda make: make({"Time/data": flat(3), "Time/step": flat(4)}),
        at=(63, "warning", ""),
        words=("30.0 of 50.0 ms", "starved of data", "more workers"),
    ),
    Case(
        rule=timing.StalledTraining(),
        fault=partial(paused, gap=90),
        healthy=partial(paused, gap=90, events=({"kind": "evaluation", "step": 399},)),
        at=(400, "warning", ""),
        words=("stalled", "90 s", "399 and 400", "another process"),
    ),
    Case(
        rule=timing.SlowStart(),
        fault=partial(paused, gap=500, at=0),
        healthy=partial(paused, gap=50, at=0),
        at=(16, "note", ""),
        words=("500 s", "0.1 s", "Cache"),
    ),
    Case(
        rule=timing.StepOutlier(),
        fault=step_of("Time/step", changed(flat(20), slice(200, None, 16), 200)),
        healthy=step_of("Time/step", changed(flat(20), slice(200, None, 100), 200)),
        at=(344, "note", ""),
        words=("10 of the last 256 steps", "periodic work"),
    ),
]
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule.name)


@BY_NAME
def test_names_the_planted_fault(case, planted):
    planted.assert_fault_is_named(case)


@BY_NAME
def test_is_silent_on_the_healthy_twin(case, planted):
    planted.assert_healthy_run_is_silent(case)


@BY_NAME
def test_the_step_is_the_first_at_which_it_could_be_known(case, planted):
    # A spike of a single step is known one step later.
    planted.assert_step_is_the_earliest(case, needed=2 if isinstance(case.rule, losses.LossSpike) else 1)


def test_each_stretch_of_failing_saves_is_named_once_and_the_mirror_for_itself(make):
    found = saving.CheckpointsFail()(saves(make, failed=(299, 310, 510, 520)))
    assert [one.step for one in found] == [299, 510]
    copies = [{"kind": "mirror_failed", "step": step, "reason": "s3://b: no network"} for step in (9, 19)]
    (copy,) = saving.CheckpointsFail()(make({"Loss/total": noisy()}, events=copies))
    assert (copy.step, copy.subject) == (9, "mirror_failed")
    assert "no network" in copy.message


def test_a_disk_that_is_full_still_is_a_warning_and_one_that_cost_nothing_a_note(make):
    (now,) = saving.DiskFull()(full_disk(make, dropped=None))
    assert (now.step, now.severity) == (250, "warning")
    (past,) = saving.DiskFull()(full_disk(make, dropped=0))
    assert (past.step, past.severity) == (299, "note")
    sink = {"kind": "sink_dropped", "step": 9, "sink": "MLflow", "message": "the sink MLflow met a full disk"}
    (dropped,) = saving.DiskFull()(make({"Loss/total": noisy()}, events=[sink]))
    assert (dropped.subject, dropped.severity) == ("MLflow", "warning")


def test_every_rule_has_a_planted_fault_and_a_healthy_twin():
    """The rules for memory, incidents, earlier runs and what a loop does are tested in separate files."""
    elsewhere = {*rules_in(memory), *rules_in(forecast), *rules_in(incidents)}
    elsewhere |= {
        rule
        for module in (
            batches,
            chance,
            course,
            evaluated,
            evaluations,
            kept,
            objectives,
            precision,
            sequences,
            settings,
            simple,
            untrained,
        )
        for rule in rules_in(module)
    }
    elsewhere |= {*rules_in(doubts), *rules_in(earlier), terms.TermAlwaysZero, timing.StepsSlowDown}
    elsewhere |= {rates.AlwaysClipped, rates.GroupTooSlow, rates.RateEndsEarly, rates.RateStartsLate}
    assert sorted(case.rule.name for case in CASES) == sorted(rule.__name__ for rule in set(RULES) - elsewhere)
