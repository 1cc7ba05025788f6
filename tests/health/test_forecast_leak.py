"""A simulated leak is detected soon, and other kinds of growth are not reported as leaks."""

import numpy as np
import pytest

from fieldwatch.health import MemoryLeak

STEPS = np.arange(1216)


def held(rng, noise=3.0):
    """Persistent memory: 900 MiB, plus 100 MiB with every densification."""
    return 900.0 + 100 * (STEPS // 100) + noise * rng.standard_normal(len(STEPS))


def named(
    make, allocated, *, sizes=True, metric="Memory/allocated_MB", events=(), samples=None, extra=None, capacity=None
):
    """Return the findings of all examinations, one every 64 steps."""
    found = []
    for end in range(64, len(allocated) + 1, 64):
        columns = {metric: allocated[:end], "Loss/total": np.ones(end)}
        columns |= {"Model/size": 1e5 * (1.0 + STEPS[:end] // 100)} if sizes else {}
        columns |= {name: values[:end] for name, values in (extra or {}).items()}
        parts = [(columns, {} if samples is None else {"samples": samples[:end]})]
        parts += [] if capacity is None else [{"Memory/capacity_MB": [capacity]}]
        found += MemoryLeak()(make(*parts, events=[event for event in events if event["step"] < end]))
    return found


@pytest.mark.parametrize("begin", [100, 333, 500, 601, 864])
def test_half_a_megabyte_per_step_is_named_within_200_steps(make, rng, begin):
    found = named(make, held(rng) + 0.5 * np.maximum(STEPS - begin, 0))
    assert found
    assert begin < found[0].step <= begin + 200


def test_it_is_named_on_simulated_runs_too(simulator):
    """Occasional workspaces, a cache of views that fills, noise of 4 MiB, memory of kept renders."""
    begins = [700, 1777, 3050, 4444]
    settings = [simulator.Setting(leak=0.5, leak_from=begin) for begin in begins]
    delays = [simulator.leak_delay(setting, seed) for seed, setting in enumerate(settings)]
    assert [delay for delay in delays if delay is None or delay > 200] == []


@pytest.mark.parametrize("curve", ["linear", "power 0.6", "steep, then straight", "linear, resets"])
def test_ordinary_densification_is_no_leak(simulator, curve):
    setting = simulator.Setting(curve=curve, death=5000)
    alarms, looks = simulator.false_alarms(setting, 3, every=320)
    assert looks >= 15
    assert alarms == 0


def test_the_rate_is_right_and_the_message_says_how_long_it_lasts(make, rng):
    allocated = held(rng) + 2.0 * np.maximum(STEPS - 300, 0)
    found = MemoryLeak()(
        make(
            {"Memory/allocated_MB": allocated, "Model/size": 1e5 * (1.0 + STEPS // 100)},
            {"Memory/capacity_MB": [allocated[-1] + 500.0]},
        )
    )
    assert found[0].message.startswith("Memory/allocated_MB leaks 2 +- 0.0")
    assert "full in 2" in found[0].message


@pytest.mark.parametrize(("planned", "severity"), [(1300, "note"), (30_000, "warning")])
def test_a_leak_that_cannot_matter_before_the_planned_end_is_a_note(make, rng, planned, severity):
    allocated = 900 + 0.1 * rng.standard_normal(len(STEPS)) + 0.05 * STEPS
    plan = {"kind": "plan", "step": 0, "steps": planned}
    found = named(make, allocated, events=[plan], capacity=24_000.0)
    assert {finding.severity for finding in found} == {severity}


def test_a_harmless_growth_that_ends_is_not_even_a_note(make, rng):
    """The heap of a CPU run fills during the first 250 steps."""
    allocated = 900 + 0.1 * rng.standard_normal(len(STEPS)) + 0.06 * np.minimum(STEPS, 250)
    plan = {"kind": "plan", "step": 0, "steps": 1300}
    assert named(make, allocated, capacity=24_000.0)
    assert named(make, allocated, events=[plan], capacity=24_000.0) == []


def test_a_leak_without_a_recorded_size_and_in_the_peak_alone(make, rng):
    flat = 900 + 3 * rng.standard_normal(len(STEPS))
    leaking = flat + 0.5 * np.maximum(STEPS - 500, 0)
    assert named(make, leaking, sizes=False, metric="Memory/peak_MB")
    assert named(make, flat, sizes=False, metric="Memory/peak_MB") == []


def test_what_comes_once_is_no_leak(make, rng):
    """The optimizer's first state, cuDNN's trials, a workspace, an evaluation that leaves something, a phase."""
    allocated = held(rng)
    allocated[0] -= 400
    allocated[:6] += 900 * rng.random(6)
    allocated[450:] += 250
    allocated[701:] += 80
    allocated[700:702] += 2000
    allocated[900:] -= 300
    events = [{"kind": "evaluation", "step": 700}, {"kind": "phase", "step": 900, "name": "fine"}]
    assert named(make, allocated, events=events) == []
    assert named(make, allocated) == []


def test_a_cache_that_fills_with_new_samples_is_no_leak(make, rng):
    """Three hundred images of 3 MiB, each cached when it is first used."""
    views = rng.permutation(np.concatenate((np.arange(300), rng.integers(0, 300, len(STEPS) - 300))))
    first = np.zeros(len(STEPS))
    first[np.unique(views, return_index=True)[1]] = 3.0
    samples = [f"view_{view}" for view in views]
    allocated = held(rng) + np.cumsum(first)
    assert named(make, allocated, samples=samples) == []
    assert named(make, allocated + 0.5 * np.maximum(STEPS - 700, 0), samples=samples)


def test_work_that_grows_is_no_leak(make, rng):
    work = 1e6 * (1 + STEPS / 500) * rng.lognormal(0, 0.2, len(STEPS))
    assert named(make, held(rng) + 1e-4 * work, extra={"Model/work": work}) == []


def test_a_growing_cache_of_the_allocator_is_no_leak(make, rng):
    reserved = 2000.0 + 0.8 * STEPS
    assert named(make, held(rng), extra={"Memory/reserved_MB": reserved}) == []


def test_memory_that_wanders_is_no_leak(make, rng):
    """A random walk, like the resident memory of a CPU process."""
    assert named(make, 900 + np.cumsum(rng.standard_normal(len(STEPS))), sizes=False) == []


def test_memory_that_levels_off_is_no_leak(make, rng):
    allocated = held(rng) + 200 * -np.expm1(-STEPS / 60)
    assert [finding.step for finding in named(make, allocated) if finding.step > 300] == []


def test_a_size_that_changes_in_every_step_leaves_nothing_to_judge(make):
    sizes = 1e5 + 100.0 * STEPS
    assert named(make, 900 + 1e-3 * sizes, sizes=False, extra={"Model/size": sizes}) == []


def test_broken_numbers_do_no_harm(make, rng):
    allocated = held(rng) + 0.5 * np.maximum(STEPS - 500, 0)
    allocated[520:560] = np.nan
    allocated[610] = np.inf
    assert named(make, allocated)
