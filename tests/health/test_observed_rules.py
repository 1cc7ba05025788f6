"""Rules for what evaluations are made of and what a loop keeps: each names a planted fault, and no healthy run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from fieldwatch.health import HealthRule
from fieldwatch.health.rules import batches, chance, course, evaluated, kept, precision, rules_in, terms, timing
from fieldwatch.health.rules.objectives import NormalizedOverBatch
from fieldwatch.health.rules.progress import NoProgress, ProgressLost
from fieldwatch.record import History

Make = Callable[..., History]
EVAL = {"first": 49, "stride": 50}
PLAN = {"kind": "plan", "step": 0, "steps": 600}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rule with a faulty run, a healthy counterpart, the expected (step, severity, subject), and expected phrases."""

    rule: HealthRule
    fault: Callable[[Make], History]
    healthy: Callable[[Make], History]
    at: tuple[int, str, str]
    words: tuple[str, ...]


def falling(count: int = 600, *, to: float = 0.1) -> np.ndarray:
    noise = 1 + 0.02 * np.random.default_rng(1).standard_normal(count)
    return (to + (1 - to) * np.exp(-np.arange(count) / 80)) * noise


def over(make: Make, *parts: object, loss: np.ndarray | None = None, **event: Any) -> History:
    """A finished run, with an event if one is given."""
    events = [PLAN, *([{"step": 599, **event}] if event else [])]
    return make({"Loss/total": falling() if loss is None else loss}, *parts, events=events)


def measured(make: Make, rows: Mapping[str, object], *, loss: np.ndarray | None = None, **event: Any) -> History:
    """A finished run with 36 measured steps."""
    return over(make, ({name: np.asarray(each) for name, each in rows.items()}, {"stride": 16}), loss=loss, **event)


def evaluations(make: Make, rows: Mapping[str, object], *, loss: np.ndarray | None = None, **event: Any) -> History:
    """A finished run with 12 evaluations."""
    return over(make, ({name: np.asarray(each) for name, each in rows.items()}, EVAL), loss=loss, **event)


def seen(make: Make, share: np.ndarray) -> History:
    return evaluations(make, {"Forward/net_evaluation_seen": share, "val/accuracy": np.linspace(0.3, 0.9, 12)})


def poor(make: Make, **event: Any) -> History:
    """A run whose held-out result is no better than at first."""
    return evaluations(make, {"val/accuracy": np.full(12, 0.3)}, loss=falling(to=0.9), **event)


def lost(make: Make, **event: Any) -> History:
    """A run whose held-out loss rises again."""
    return evaluations(make, {"val/loss": 0.5 + 0.1 * np.abs(np.arange(12) - 2)}, **event)


def marks(make: Make, *, times: int) -> History:
    loader = {"name": "letters", "batches": None, "rows": None, "batch_size": 8, "workers": 2, "drop_last": False}
    source = {"kind": "loop_source", "file": "train.py", "line": 9, "lines": {}, "loaders": [loader]}
    values = np.repeat(np.arange(16.0) ** 2, times)[:16]
    return make({"Loss/total": falling()}, {"Forward/net_input_mark": values}, events=[{"step": 0, **source}])


def source(make: Make, what: str) -> History:
    facts = {"file": "train.py", "line": 9, "lines": {}, "loaders": [], "order": [{"what": what, "line": 12}]}
    return make({"Loss/total": falling()}, events=[{"kind": "loop_source", "step": 0, **facts}])


def pairs(make: Make, share: float) -> History:
    return measured(make, {"Forward/net_wrong_pairs": np.full(36, share), "Forward/net_wrong_share": np.full(36, 0.5)})


def zero(make: Make, value: float) -> History:
    columns = {"Loss/component_boxes": np.full(600, value), "Loss/component_objects": falling()}
    return make({"Loss/total": falling(), **columns}, ({"val/found": np.zeros(12)}, EVAL), events=[PLAN])


def slowing(make: Make, factor: float) -> History:
    times = np.linspace(10, 10 * factor, 12)
    return over(make, ({"Performance/processor_ms": times, "Time/step": times}, EVAL))


ROUNDED = {"val/accuracy": np.linspace(0.2, 0.5, 36)}
STATE: dict[str, Any] = {"kind": "kept_weights", "name": "state", "item": "net"}
OUTPUT: dict[str, Any] = {"kind": "evaluation_output", "item": "net", "inline": ""}
CASES = [
    Case(
        rule=evaluated.EvaluatedOnTraining(),
        fault=partial(seen, share=np.full(12, 0.9)),
        healthy=partial(seen, share=np.full(12, 0.05)),
        at=(99, "warning", "net"),
        words=("90% of the samples", "leak", "split the data once"),
    ),
    Case(
        rule=evaluated.EvaluationRandom(),
        fault=partial(over, **OUTPUT | {"random": True, "others": False, "inline": "Finder"}),
        healthy=partial(over, **OUTPUT | {"random": False, "others": True}),
        at=(599, "warning", "net"),
        words=("different outputs for the same samples", "Finder.forward", "training=self.training"),
    ),
    Case(
        rule=evaluated.SamplesMixed(),
        fault=partial(poor, **OUTPUT | {"random": False, "others": True}),
        healthy=partial(poor, **OUTPUT | {"random": True, "others": False}),
        at=(599, "warning", "net"),
        words=("other samples of the batch", "batch_first=True"),
    ),
    Case(
        rule=evaluated.PaddingLookedUp(),
        fault=partial(over, kind="padding_rows", name="net.kinds", index=0, share=0.25),
        healthy=partial(over, kind="padding_rows", name="net.kinds", index=0, share=0.001),
        at=(599, "warning", "net.kinds"),
        words=("25% of the look-ups", "row 0", "padding_idx"),
    ),
    Case(
        rule=evaluated.RowsNeverTrained(),
        fault=partial(over, kind="untrained_rows", name="net.kinds", rows=[4], share=0.5, evaluations=4),
        healthy=partial(over, kind="untrained_rows", name="net.kinds", rows=[4], share=0.01, evaluations=4),
        at=(599, "warning", "net.kinds"),
        words=("50% of the look-ups", "never had a gradient", "null (unconditional)"),
    ),
    Case(
        rule=evaluated.PerfectFromStart(),
        fault=lambda make: evaluations(make, {"val/recall": np.ones(12)}, loss=falling(to=0.8)),
        healthy=lambda make: evaluations(make, {"val/recall": np.ones(12)}, loss=falling(to=0.01)),
        at=(149, "warning", "val/recall"),
        words=("exactly 1", "too good", "leave out the query"),
    ),
    Case(
        rule=kept.BestNotCopied(),
        fault=partial(lost, **STATE | {"shared": True, "same": True}),
        healthy=partial(lost, **STATE | {"shared": False, "same": False}),
        at=(599, "warning", "state"),
        words=("themselves, not a copy", "deepcopy"),
    ),
    Case(
        rule=kept.FrozenNormsMove(),
        fault=partial(over, kind="frozen_norms", item="net", names=["net.body.1"], count=1, drift=2.0),
        healthy=partial(over, kind="frozen_norms", item="net", names=["net.body.1"], count=1, drift=0.1),
        at=(599, "warning", "net"),
        words=("'net.body.1'", "2 standard deviations", "eval()"),
    ),
    Case(
        rule=kept.MixedGradients(),
        fault=partial(poor, kind="foreign_gradient", optimizer="Adam", parameters=[4], updates=9),
        healthy=partial(over, kind="foreign_gradient", optimizer="Adam", parameters=[4], updates=9),
        at=(599, "warning", "Adam"),
        words=("another loss", "zero_grad() of an optimizer before"),
    ),
    Case(
        rule=kept.ClipsNothing(),
        fault=partial(source, what="clip of a generator"),
        healthy=partial(source, what="clip before backward"),
        at=(0, "warning", "train.py:12"),
        words=("generator", "list(model.parameters())"),
    ),
    Case(
        rule=kept.AnomalyDetection(),
        fault=lambda make: make({"Loss/total": falling()}, events=[{"kind": "anomaly_detection", "step": 0}]),
        healthy=lambda make: make({"Loss/total": falling(50)}, events=[{"kind": "anomaly_detection", "step": 0}]),
        at=(100, "warning", "torch.autograd"),
        words=("set_detect_anomaly", "Turn it off"),
    ),
    Case(
        rule=batches.BatchesRepeated(),
        fault=partial(marks, times=2),
        healthy=partial(marks, times=1),
        at=(15, "warning", "net"),
        words=("2 times in a row", "'letters'", "get_worker_info"),
    ),
    Case(
        rule=batches.EmbeddingsShrink(),
        fault=lambda make: measured(make, {"Forward/net_output_std": np.linspace(1, 0.2, 36)}, kind="compared_outputs"),
        healthy=lambda make: measured(make, {"Forward/net_output_std": np.linspace(1, 2, 36)}, kind="compared_outputs"),
        at=(599, "warning", "net"),
        words=("shrunk", "single point", "semi-hard"),
    ),
    Case(
        rule=precision.RoundedInput(),
        fault=lambda make: measured(make, {"Forward/net_input_rounded": np.ones(36), **ROUNDED}),
        healthy=lambda make: measured(make, {"Forward/net_input_rounded": np.zeros(36), **ROUNDED}),
        at=(599, "warning", "net"),
        words=("exact in bfloat16", "float32"),
    ),
    Case(
        rule=chance.PairsConfused(),
        fault=partial(pairs, share=0.9),
        healthy=partial(pairs, share=0.3),
        at=(599, "warning", "net"),
        words=("50% of the training answers", "two classes with each other", "exchange their labels"),
    ),
    Case(
        rule=terms.TermAlwaysZero(),
        fault=partial(zero, value=0.0),
        healthy=partial(zero, value=0.2),
        at=(599, "warning", "boxes"),
        words=("exactly 0 at all 600", "anchors"),
    ),
    Case(
        rule=timing.StepsSlowDown(),
        fault=partial(slowing, factor=3.0),
        healthy=partial(slowing, factor=1.1),
        at=(599, "warning", ""),
        words=("slowed down", "processor", "grows with the number of steps"),
    ),
]
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule.name)


@BY_NAME
def test_names_the_planted_fault(case, planted):
    planted.assert_fault_is_named(case)


@BY_NAME
def test_is_silent_on_the_healthy_twin(case, planted):
    planted.assert_healthy_run_is_silent(case)


def test_every_rule_of_evaluations_and_of_what_is_kept_has_a_case():
    assert {*rules_in(evaluated), *rules_in(kept)} <= {type(case.rule) for case in CASES}


def test_samples_of_the_training_in_later_evaluations_only_are_a_new_split(make):
    rows = {"Forward/net_evaluation_seen": np.repeat([0.0, 0.6], 6), "eval/accuracy": np.linspace(0.3, 0.9, 12)}
    (finding,) = evaluated.EvaluatedOnTraining()(evaluations(make, rows))
    assert finding.step == 349
    # An evaluation that had them from the start may be one of the whole signal.
    rows["Forward/net_evaluation_seen"] = np.full(12, 0.6)
    assert evaluated.EvaluatedOnTraining()(evaluations(make, rows)) == ()


def test_nodes_that_training_and_evaluation_share_are_no_leak_while_results_differ(make):
    rows = {"Forward/net_evaluation_seen": np.ones(12), "Test/accuracy": np.linspace(0.3, 0.6, 12)}
    hits = ({"Forward/net_hits": np.linspace(0.3, 1, 36)}, {"stride": 16})
    assert evaluated.EvaluatedOnTraining()(over(make, (rows, EVAL), hits)) == ()


def test_a_loop_that_keeps_a_copy_of_its_best_weights_gets_notes(make):
    rises = {"val/accuracy": 0.8 - 0.06 * np.abs(np.arange(12) - 3)}
    (warned,) = ProgressLost()(evaluations(make, rises))
    copy: dict[str, Any] = {**STATE, "shared": False, "same": False}
    (noted,) = ProgressLost()(evaluations(make, rises, **copy))
    assert (warned.severity, noted.severity) == ("warning", "note")


def test_a_loop_that_ends_with_its_data_is_named(make):
    loader = {"name": "loader", "batches": 100, "rows": 800, "batch_size": 8, "workers": 0, "drop_last": False}
    facts = {"kind": "loop_source", "step": 0, "file": "train.py", "line": 9, "lines": {}, "loaders": [loader]}
    events = [PLAN, facts, {"kind": "ended", "step": 99, "steps": 100}]
    (finding,) = course.EndedEarly()(make({"Loss/total": falling(100)}, events=events))
    assert finding.step == 99
    events[-1] = {"kind": "ended", "step": 299, "steps": 300}
    assert course.EndedEarly()(make({"Loss/total": falling(300)}, events=events)) == ()


def test_losses_of_distances_have_gradients_that_sum_to_0(make):
    rows = {"Forward/net_class_sum": np.full(36, 0.3), "Forward/net_batch_sum": np.full(36, 1e-8)}
    assert len(NormalizedOverBatch()(measured(make, rows))) == 1
    assert NormalizedOverBatch()(measured(make, rows, kind="compared_outputs")) == ()


def test_returns_that_had_risen_by_the_first_evaluation_are_progress(make):
    rewards = -2 + 1.6 * (1 - np.exp(-np.arange(600) / 10))
    loss = np.where(np.arange(600) % 2, -1.0, 1.0)
    scores = ({"eval/reward": np.full(6, -0.38)}, {"first": 99, "stride": 100})
    flat = make({"Loss/total": loss, "Reward/mean": np.full(600, -0.38)}, scores, events=[PLAN])
    assert len(NoProgress()(flat)) == 1
    assert NoProgress()(make({"Loss/total": loss, "Reward/mean": rewards}, scores, events=[PLAN])) == ()
