"""Each memory rule detects a simulated fault and reports nothing for the healthy counterpart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from fieldwatch.health import HealthRule
from fieldwatch.health.rules import forecast, memory, rules_in
from fieldwatch.record import History

Make = Callable[..., History]
EVAL = {"stride": 50, "axis": "epoch"}
CATEGORY = "TensorProfiling/Tensor_Category"
FRAGMENTS = [50, 50, 20, 45, 46, 47, 48]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rule with a faulty run, a healthy counterpart, the expected (step, severity, subject), and expected phrases."""

    rule: HealthRule
    fault: Callable[[Make], History]
    healthy: Callable[[Make], History]
    at: tuple[int, str, str]
    words: tuple[str, ...]


def snapshots(make: Make, activations: np.ndarray, parameters: np.ndarray | None = None) -> History:
    still = np.full(len(activations), 500.0)
    columns = {"activations": activations, "parameters": still if parameters is None else parameters}
    return make(({f"{CATEGORY}/{name}_MB": values for name, values in columns.items()}, EVAL))


def fragmented(make: Make, percent: Sequence[float], pieces: float | None = None) -> History:
    columns = {"TensorProfiling/fragmentation_percent": percent}
    if pieces is not None:
        columns |= {"TensorProfiling/Fragmentation/not_returnable_MB": [pieces] * len(percent)}
    reserved = ({"Memory/reserved_MB": np.full(400, 8000.0)}, {})
    return make((columns, EVAL), *(() if pieces is None else (reserved,)))


def stepwise(make: Make, steps: int, *, leak: float = 0.0, events: Sequence[Mapping[str, object]] = ()) -> History:
    """A model that grows every hundred steps, with a leak from step 600 on."""
    rng = np.random.default_rng(5)
    step = np.arange(steps)
    size = 100e3 * (1 + step // 100)
    allocated = 900 + 1e-3 * size + leak * np.maximum(step - 600, 0) + 3 * rng.standard_normal(steps)
    columns = {"Memory/allocated_MB": allocated, "Model/size": size}
    return make(columns, ({"Memory/capacity_MB": [9000.0]}, {}), events=events)


def growing(make: Make, *, capacity: float, ends: int | None = None) -> History:
    """Ten views, the last one the heaviest; 80,000 primitives more every hundred steps from 500 on."""
    rng = np.random.default_rng(5)
    step = np.arange(2100)
    size = 200e3 + 80e3 * np.maximum((step - 400) // 100, 0)
    views = rng.integers(0, 10, len(step))
    work = (5.0 + views) * size
    peak = 700 + 9e-4 * size + 5e-5 * work + 2 * rng.standard_normal(len(step))
    columns = {"Loss/total": np.ones(len(step)), "Memory/peak_MB": peak, "Memory/reserved_MB": peak + 100}
    columns |= {"Memory/parameters_MB": 2.25e-4 * size, "Model/size": size, "Model/work": work}
    event = {"kind": "growth", "step": 500} | ({} if ends is None else {"growth_until": ends})
    rows = (columns, {"samples": [f"IMG_{view}" for view in views]})
    return make(rows, ({"Memory/capacity_MB": [capacity] * 26}, {"stride": 64}), events=[event])


def halved(make: Make, *, halvings: int) -> History:
    """A step that ran out of memory ``halvings`` times before it succeeded."""
    facts = {"kind": "out_of_memory", "step": 120, "what": "batch", "requested": 3 * 2**30, "why": "exhaustion: ..."}
    events = [facts | {"before": 2**i, "after": 2 ** (i + 1)} for i in range(halvings)]
    return make({"Loss/total": np.ones(300)}, events=events)


def kept(make: Make, *, levels_off: int = 600) -> History:
    """A loop that ends with tensors of its steps, and whose memory grows up to a step."""
    grown = 300 + 0.1 * np.minimum(np.arange(600), levels_off)
    event = {"kind": "kept_tensors", "step": 599, "count": 1200, "nbytes": 60 << 20, "holder": "seen"}
    return make({"Loss/total": np.ones(600), "Memory/allocated_MB": grown}, events=[event])


CASES = [
    Case(
        rule=memory.TensorsKept(),
        fault=kept,
        healthy=partial(kept, levels_off=200),
        at=(599, "warning", "seen"),
        words=("1,200 tensors", "60.0 MiB", "'seen'", "300 MiB to 360 MiB", "detach()"),
    ),
    Case(
        rule=memory.MemoryGrowing(),
        fault=partial(snapshots, activations=1000 + 40.0 * np.arange(20)),
        healthy=partial(snapshots, activations=1000 + 40.0 * np.arange(20), parameters=500 + 20.0 * np.arange(20)),
        at=(500, "warning", f"{CATEGORY}/activations_MB"),
        words=("growing", "1,080 MiB to 1,400 MiB", "8 snapshots", "detach()"),
    ),
    Case(
        rule=memory.FragmentationHigh(),
        fault=partial(fragmented, percent=FRAGMENTS),
        healthy=partial(fragmented, percent=[50, 50, 20, 35, 46, 47, 38]),
        at=(300, "warning", "TensorProfiling/fragmentation_percent"),
        words=("48%", "above 40%", "expandable_segments"),
    ),
    Case(
        rule=forecast.MemoryLeak(),
        fault=partial(stepwise, steps=767, leak=0.5),
        healthy=partial(stepwise, steps=767),
        at=(703, "warning", "Memory/allocated_MB"),
        words=("leaks 0.47 +- 0.02 MiB per step", "not explained by the model's size", "full in 15,", "loss.item()"),
    ),
    Case(
        rule=forecast.OutOfMemoryAhead(),
        fault=partial(growing, capacity=9000.0),
        healthy=partial(growing, capacity=9000.0, ends=3000),
        at=(2047, "note", "Memory/peak_MB"),
        words=(
            "VRAM runs out at iteration",
            "on view IMG_9",
            "cap at 5.1 M primitives",
            "now 1.4 M primitives",
            "Cap the model",
        ),
    ),
    Case(
        rule=memory.MemoryRanOut(),
        fault=partial(halved, halvings=2),
        healthy=partial(halved, halvings=0),
        at=(120, "warning", "batch"),
        words=("3.00 GiB were requested", "'batch' is done in 4 parts instead of 1", "exhaustion", "Nothing is lost"),
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
    planted.assert_step_is_the_earliest(case)


def test_every_rule_about_memory_has_a_planted_fault_and_a_healthy_twin():
    rules = (*rules_in(memory), *rules_in(forecast))
    assert sorted(case.rule.name for case in CASES) == sorted(rule.__name__ for rule in rules)


def test_idle_cache_that_can_be_used_again_is_no_fragmentation(make):
    """48% idle is a finding if 1600 of 8000 MiB are in segments in use, but not if 80 MiB are."""
    found = memory.FragmentationHigh()(fragmented(make, FRAGMENTS, pieces=1600))
    assert ["20% are in segments" in finding.message for finding in found] == [True]
    assert memory.FragmentationHigh()(fragmented(make, FRAGMENTS, pieces=80)) == ()


def test_the_heap_of_a_cpu_is_no_fragmented_device(make):
    history = fragmented(make, percent=FRAGMENTS)
    assert memory.FragmentationHigh()(history)
    on_a_cpu = make(
        ({"Memory/allocated_MB": [1000.0] * 8}, {"stride": 50}),
        ({"TensorProfiling/fragmentation_percent": FRAGMENTS}, {"stride": 50}),
    )
    assert memory.FragmentationHigh()(on_a_cpu) == ()


def test_a_category_that_grows_is_found_under_the_profiles_other_name(make):
    grown = {"Memory/Tensor_Category/activations_MB": 100 * 1.2 ** np.arange(40)}
    (found,) = memory.MemoryGrowing()(make((grown, EVAL)))
    assert found.subject == "Memory/Tensor_Category/activations_MB"
    explained = {"Memory/Tensor_Category/parameters_MB": 100 * 1.2 ** np.arange(40), **grown}
    assert memory.MemoryGrowing()(make((explained, EVAL))) == ()


def test_fragmentation_under_the_profiles_other_name_counts_what_is_lost(make):
    columns = {"Memory/fragmentation_percent": FRAGMENTS, "Memory/Fragmentation/not_returnable_MB": [8.0] * 7}
    reserved = ({"Memory/reserved_MB": np.full(400, 8000.0)}, {})
    assert memory.FragmentationHigh()(make((columns, EVAL), reserved)) == ()
    columns["Memory/Fragmentation/not_returnable_MB"] = [3000.0] * 7
    assert len(memory.FragmentationHigh()(make((columns, EVAL), reserved))) == 1
