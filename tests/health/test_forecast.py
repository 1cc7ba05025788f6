"""Forecasts on simulated runs with known outcomes: sizes, views, copies, and cases without a forecast."""

import dataclasses
import statistics
import subprocess
import sys

import numpy as np
import pytest

from fieldwatch.health import Examiner, Finding, OutOfMemoryAhead, examine
from fieldwatch.health.forecast import Growth, GrowthTrace, MemoryModel, MemoryTrace, forecast
from fieldwatch.record import EventLog, History, Journal

FAIR = ["linear", "power 0.75", "power 0.6", "power 1.3"]
BYTES_MB = 944 / 2**20


def run(make, sizes, peak, *, capacity=8000.0, work=None, views=None, parameters=225e-6, events=()):
    """Make a history of one row per step."""
    columns = {"Loss/total": np.ones(len(sizes)), "Memory/peak_MB": peak, "Model/size": sizes}
    columns |= {"Memory/parameters_MB": parameters * sizes} | ({} if work is None else {"Model/work": work})
    samples = {} if views is None else {"samples": [f"view_{view}" for view in views]}
    return make((columns, samples), {"Memory/capacity_MB": [capacity]}, events=events)


def stairs(steps, *, first=200e3, add=60e3, begin=500, until=10**9):
    """Return sizes that grow by the same number every hundred steps."""
    grown = np.maximum((np.minimum(np.arange(steps), until) - begin) // 100 + 1, 0)
    return first + add * grown


@pytest.fixture
def simple(make, rng):
    """A run of 4000 steps whose memory is 1000 + 0.0009 size + 0.0003 work, plus 0.0016 size while it grows."""

    def build(steps=4000, **options):
        sizes = stairs(steps)
        views = rng.integers(0, 20, steps)
        work = (0.5 + views / 20) * sizes
        peak = 1000 + 9e-4 * sizes + 3e-4 * work + 3 * rng.standard_normal(steps)
        return run(make, sizes, peak, work=work, views=views, **options)

    return build


@pytest.mark.parametrize("curve", FAIR)
@pytest.mark.parametrize("by", ["size", "time"])
def test_the_end_is_foretold_within_five_percent_with_half_the_growth_to_come(simulator, curve, by):
    """The median over twelve seeds for each kind of growth; docs/benchmarks.md has the worst cases."""
    found = [simulator.foretell(simulator.Setting(curve=curve), seed, by=by) for seed in range(12)]
    assert statistics.median(outcome.error for outcome in found) < 0.05
    assert [outcome.said for outcome in found if outcome.said is None] == []


def test_single_runs_are_within_five_percent(simulator):
    """Every single run, with three seeds each of linear and accelerating growth."""
    settings = [simulator.Setting(curve=curve, uneven=0.03) for curve in ("linear", "power 1.3")]
    found = [simulator.foretell(setting, seed) for setting in settings for seed in (0, 1, 2)]
    assert [outcome.error for outcome in found if outcome.error >= 0.05] == []


def test_intervals_hold_most_ends(simulator):
    found = [simulator.foretell(simulator.Setting(curve=curve), seed) for curve in FAIR for seed in range(6)]
    assert statistics.mean(outcome.covered for outcome in found) >= 0.7


def test_the_coefficients_come_out_with_errors_that_fit(simple):
    model = MemoryModel.fit(MemoryTrace.of(simple(), 3999))
    found = np.array([model.base, model.per_size, model.per_work])
    assert np.all(np.abs(found - [1000, 9e-4, 3e-4]) < 4 * model.errors)
    assert found == pytest.approx([1000, 9e-4, 3e-4], rel=0.02)


def test_spikes_and_evaluations_do_not_move_the_fit(make, rng):
    sizes = stairs(4000)
    peak = 1000 + 9e-4 * sizes + 3 * rng.standard_normal(4000)
    peak[rng.random(4000) < 0.03] += 900
    peak[::500] *= 2
    events = [{"kind": "evaluation", "step": step} for step in range(0, 4000, 500)]
    model = MemoryModel.fit(MemoryTrace.of(run(make, sizes, peak, events=events), 3999))
    assert (model.base, model.per_size) == (pytest.approx(1000, rel=0.01), pytest.approx(9e-4, rel=0.01))


def test_the_layout_decides_while_sizes_say_nothing(make, rng):
    """The size has not changed: the memory per primitive is known from the parameters, with 30 % uncertainty."""
    sizes = np.full(200, 500e3)
    peak = 1000 + BYTES_MB * sizes + 3 * rng.standard_normal(200)
    model = MemoryModel.fit(MemoryTrace.of(run(make, sizes, peak, parameters=BYTES_MB / 4), 199))
    assert model.per_size == pytest.approx(BYTES_MB, rel=0.01)
    assert model.errors[1] == pytest.approx(0.3 * BYTES_MB, rel=0.05)


def test_old_and_new_copies_end_a_run_before_a_view_does(make, rng):
    sizes = stairs(4000)
    before = np.concatenate((sizes[:1], sizes[:-1]))
    peak = 1000 + 9e-4 * sizes + 2 * rng.standard_normal(4000)
    grows = sizes != before
    peak[grows] = 1000 + 9e-4 * before[grows] + 9e-4 * sizes[grows]
    found = forecast(run(make, sizes, peak, views=rng.integers(0, 9, 4000)))
    assert (found.cause, found.view) == ("growth", "")
    assert found.cap == pytest.approx(7000 / 1.8e-3, rel=0.03)
    assert "and new copies" in found.text()


def test_the_view_is_named_and_the_cap_is_what_it_leaves(simple):
    found = forecast(simple())
    assert (found.cause, found.view) == ("view", "view_19")
    assert found.cap == pytest.approx(7000 / (9e-4 + 1.45 * 3e-4), rel=0.02)
    assert found.step == pytest.approx(500 + 100 * (found.cap - 200e3) / 60e3, rel=0.03)
    assert found.text(memory="VRAM", unit="Gaussians").endswith("(on view view_19); cap at 5.2 M Gaussians")


def test_without_recorded_work_the_view_follows_from_its_peaks(make, rng):
    views = rng.integers(0, 20, 4000)
    sizes = stairs(4000)
    peak = 1000 + (9e-4 + 2e-5 * views) * sizes + 5 * rng.standard_normal(4000)
    found = forecast(run(make, sizes, peak, views=views))
    assert found.view == "view_19"
    assert found.cap == pytest.approx(7000 / (9e-4 + 2e-5 * 19), rel=0.03)


def test_parameters_stand_in_where_no_size_is_recorded(make, rng):
    parameters = stairs(4000) * 225e-6
    peak = 1000 + 4.4 * parameters + 3 * rng.standard_normal(4000)
    found = forecast(make({"Memory/peak_MB": peak, "Memory/parameters_MB": parameters}, {"Memory/capacity_MB": [6e3]}))
    assert not found.counted
    assert found.cap == pytest.approx(5000 / 4.4, rel=0.04)
    assert found.text().endswith("MiB of parameters")


def test_it_says_nothing_where_nothing_grows_or_everything_fits(make, simple):
    still = stairs(4000, until=400)
    assert forecast(run(make, still, 1000 + 9e-4 * still)) is None
    ended = stairs(4000, until=1500)
    assert forecast(run(make, ended, 1000 + 9e-4 * ended)) is None
    assert forecast(simple(capacity=1e6)) is None
    assert forecast(simple(), growth_until=3000) is None
    assert forecast(simple(), growth_until=5000) is None
    assert forecast(simple(), end=5000) is None
    assert forecast(make({"Memory/peak_MB": np.ones(90)})) is None
    assert forecast(make({"Loss/total": np.ones(90)})) is None


def test_a_declared_end_of_growth_comes_from_an_event_or_an_argument(simple):
    assert forecast(simple(events=[{"kind": "growth", "step": 500, "growth_until": 5000}])) is None
    found = forecast(simple(events=[{"kind": "growth", "step": 500, "growth_until": 15_000}]))
    assert found.end == 15_000
    assert found.probability > 0.99
    assert found.peak > found.capacity


def test_growth_before_the_kept_rows_comes_from_events(simulator):
    """The last 4096 rows start at step 1904; the events contain the changes since step 500."""
    history = simulator.simulate(simulator.Setting(), 0).history(6000, 1904)
    changes = GrowthTrace.of(history, "Model/size", 5999)
    assert changes.steps[0] == 500
    assert np.all(np.diff(changes.steps) > 0)
    whole = simulator.simulate(simulator.Setting(), 0).size
    assert changes.sizes.tolist() == whole[changes.steps.astype(int)].tolist()


@pytest.mark.parametrize(
    ("shape", "kind"),
    [(lambda u: u, "linear"), (lambda u: u**0.4, "power"), (lambda u: 1 - np.exp(-4 * u), "saturating")],
)
def test_the_shape_of_growth_is_recognized(shape, kind):
    steps = 500.0 + 100 * np.arange(60)
    growth = Growth.fit(GrowthTrace(steps=steps, sizes=1e5 + 3e6 * shape((steps - 500) / 5900)))
    assert growth.kind == kind
    later = growth.sizes(np.array([steps[-1], 9000.0]))
    assert later[:, 0] == pytest.approx(np.full(len(later), growth.size))
    assert growth.weights @ later[:, 1] == pytest.approx(1e5 + 3e6 * shape(8500 / 5900), rel=0.03)


def test_the_same_record_gives_the_same_forecast_live_and_afterwards(tmp_path, simulator):
    """The rule reports at complete blocks of 64 steps; a replay of the folder gives the same findings, once."""
    rules = [OutOfMemoryAhead(actions=("checkpoint", "cap"), unit="Gaussians")]
    simulated = simulator.simulate(simulator.Setting(death=6000), 1)
    journal = Journal(tmp_path)
    events = EventLog(tmp_path)
    examiner = Examiner(rules)
    live = []
    history = History()
    blocks = [block for at in range(0, 5880, 60) for block in simulated.blocks(at + 60, at)]
    for step in range(500, 5880, 100):
        events.append({"kind": "growth", "step": step})
        history.add_event({"kind": "growth", "step": step})
    for block in blocks:
        journal.append(block)
        for part, due in examiner.split(block):
            history.extend(part)
            live += examiner.examine(history) if due else []
    live += examiner.examine(history)
    journal.close()
    events.close()
    assert examine(tmp_path, rules) == live
    assert [finding.severity for finding in live] == ["note", "warning", "error"]
    assert [finding.actions for finding in live] == [(), ("checkpoint", "cap"), ("checkpoint", "cap")]
    assert live[1].limit == pytest.approx(3.1e6, rel=0.15)
    assert [Finding.from_json(finding.as_event()) for finding in live] == live


def test_unknown_actions_are_refused():
    with pytest.raises((ValueError, TypeError), match="'stop'"):  # TypeError where annotations are checked
        OutOfMemoryAhead(actions=("stop",))


def test_broken_numbers_do_no_harm(simple, make):
    history = simple()
    peak = history["Memory/peak_MB"].values.copy()
    peak[100:200] = np.nan
    peak[300] = np.inf
    sizes = history["Model/size"].values.copy()
    sizes[400:420] = np.nan
    found = forecast(run(make, sizes, peak))
    assert found.cap == pytest.approx(forecast(history).cap, rel=0.1)


COST = """
import importlib.util, sys, time
import numpy as np
from fieldwatch.health.forecast import forecast
spec = importlib.util.spec_from_file_location("simulator", sys.argv[1])
simulator = sys.modules["simulator"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(simulator)
history = simulator.simulate(simulator.Setting(), 0).history(6016, 1920)
values = history["Memory/peak_MB"].values

def seconds(work):
    begin = time.thread_time()
    work()
    return time.thread_time() - begin

print(min(seconds(lambda: forecast(history)) for _ in range(25)))
print(min(seconds(lambda: [np.sort(values, kind="stable") for _ in range(40)]) for _ in range(25)))
"""


def test_a_forecast_costs_less_than_sorting_forty_series(simulator):
    """Runs in a separate process, because the runtime type checks of the tests double the time."""
    line = [sys.executable, "-c", COST, simulator.__file__]
    printed = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    look, sort = (float(word) for word in printed.split())
    assert look < sort, f"a forecast took {1e3 * look:.2f} ms, forty sorts {1e3 * sort:.2f} ms"


def test_a_forecast_is_frozen(simple):
    with pytest.raises(dataclasses.FrozenInstanceError):
        forecast(simple()).step = 3
