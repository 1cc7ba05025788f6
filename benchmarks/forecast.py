"""The accuracy of the memory forecast, and the delay and false alarms of the leak rule, on a simulated allocator.

The simulated run densifies every 100 steps, uses views of different sizes in shuffled epochs, rounds to 2 MiB, loses
some memory to fragmentation, evaluates and spikes occasionally, allocates the optimizer's state and cuDNN's trials in
its first steps, and dies in the first step whose memory does not fit. Sizes follow eight curves with noise. Every curve
runs with many seeds; the forecast is made when half of the growth until the end, in size or in time, is still to come.

    python benchmarks/forecast.py                # the tables
    python benchmarks/forecast.py --seeds 5      # quicker
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health import MemoryLeak
from fieldwatch.health.forecast import Forecast, forecast
from fieldwatch.record import Block, History

Array = NDArray[np.float64]
MB = 2.0**20
BYTES = 59 * 4
"""One Gaussian with spherical harmonics of degree 3."""
START, EVERY, LOOK = 500, 100, 64
FRESH = 10_000
"""First seed of the tables; no threshold was tuned on these seeds."""

CURVES: dict[str, Callable[[Array], Array]] = {
    "linear": lambda u: u,
    "power 0.75": lambda u: u**0.75,
    "power 0.6": lambda u: u**0.6,
    "power 1.3": lambda u: u**1.3,
    "saturating, late": lambda u: -np.expm1(-0.8 * u),
    "saturating, soon": lambda u: -np.expm1(-1.8 * u),
    "steep, then straight": lambda u: 0.5 * np.tanh(4 * u) + 0.5 * u,
    "linear, resets": lambda u: u,
}
"""Growth from the first densification (0) to the step at which memory runs out (1); it continues in the same way."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of a simulation.

    Attributes:
        curve: name of the growth curve.
        death: approximate step at which memory runs out.
        first: number of Gaussians at the start.
        final: number of Gaussians at ``death``.
        views: number of views.
        spread: spread (of the logarithm) of the views' work.
        uneven: relative noise of each densification's growth; half of it carries over to the next one.
        leak: MiB that each step loses from ``leak_from`` on.
        leak_from: step at which the leak begins.
        worked: whether the run records its work.
        jitter: noise of what stays allocated after a step, MiB.
    """

    curve: str = "linear"
    death: int = 9400
    first: float = 150e3
    final: float = 3.1e6
    views: int = 185
    spread: float = 0.25
    uneven: float = 0.05
    leak: float = 0.0
    leak_from: int = 0
    worked: bool = True
    jitter: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """One simulated run; arrays are ``[n]`` over its steps, memory in MiB."""

    size: Array
    peak: Array
    allocated: Array
    reserved: Array
    work: Array
    views: NDArray[np.intp]
    capacity: float
    evaluations: list[int]
    worked: bool

    @property
    def death(self) -> int:
        """First step whose memory did not fit."""
        return int(np.argmax(self.peak > self.capacity))

    def half_size(self) -> int:
        """Step at which half of the growth in size has happened."""
        end = self.size[self.death]
        return int(np.argmax(self.size >= (self.size[0] + end) / 2))

    def half_time(self) -> int:
        """Step halfway between the first densification and the end."""
        return (START + self.death) // 2

    def history(self, until: int, since: int = 0) -> History:
        """Return what the run recorded in the steps before ``until``; rows only from ``since`` on, all events."""
        history = History()
        for step in range(START, until, EVERY):
            change = int(self.size[step] - self.size[step - 1])
            history.add_event({"kind": "growth", "step": step, "added": max(change, 0), "removed": max(-change, 0)})
        for step in self.evaluations:
            if step < until:
                history.add_event({"kind": "evaluation", "step": step})
        for block in self.blocks(until, since):
            history.extend(block)
        return history

    def blocks(self, until: int, since: int = 0) -> list[Block]:
        """Return the rows of the steps from ``since`` to before ``until``, and the capacity every 64 steps."""
        rows = slice(since, until)
        columns = {
            "Loss/total": np.ones(until - since),
            "Memory/allocated_MB": self.allocated[rows],
            "Memory/peak_MB": self.peak[rows],
            "Memory/reserved_MB": self.reserved[rows],
            "Memory/parameters_MB": self.size[rows] * BYTES / MB,
            "Model/size": self.size[rows],
        }
        if self.worked:
            columns["Model/work"] = self.work[rows]
        every = np.arange(-(-since // LOOK) * LOOK, until, LOOK)
        capacity = _block({"Memory/capacity_MB": np.full(len(every), self.capacity)}, every, [])
        return [capacity, _block(columns, np.arange(since, until), [f"IMG_{view:04d}" for view in self.views[rows]])]


def _block(columns: dict[str, Array], steps: NDArray[np.int64], samples: Sequence[str]) -> Block:
    values = np.stack(list(columns.values()), axis=1)
    names = tuple((name,) for name in samples)
    seconds = 0.05 * (steps + 1.0)
    return Block(
        axis="step", columns=tuple(columns), steps=steps, seconds=seconds, positions=steps, values=values, samples=names
    )


def simulate(setting: Setting, seed: int) -> Simulated:
    """Simulate one run, one and a half times as long as it lives."""
    rng = np.random.default_rng([seed, *setting.curve.encode()])
    steps = np.arange(int(1.5 * setting.death))
    size = _sizes(setting, rng, len(steps))
    epochs = 1 + len(steps) // setting.views
    views = np.concatenate([rng.permutation(setting.views) for _ in range(epochs)])[: len(steps)]
    heavy = rng.lognormal(0, setting.spread, setting.views)
    work = 9.0 * heavy[views] * size**0.97 * (1 + 0.02 * rng.standard_normal(len(steps)))
    before = np.concatenate((size[:1], size[:-1]))
    held = 1800 + _round(4 * BYTES * size / MB) + setting.leak * np.maximum(steps - setting.leak_from, 0)
    held[:1] -= _round(2 * BYTES * size[:1] / MB)
    held += _workspaces(setting, views, rng)
    render = _round(150 * size / MB) + _round(28 * work / MB)
    peak = held + render
    growing = np.flatnonzero(size != before)
    copies = _round(4 * BYTES * before / MB) + _round(2.4 * BYTES * size / MB)
    peak[growing] = np.maximum(peak[growing], 1800 + copies[growing])
    peak[:5] += 600 * rng.random(5)
    spikes = rng.random(len(steps)) < 0.001
    peak[spikes] += 0.1 * peak[spikes] * rng.random(int(spikes.sum()))
    evaluations = list(range(1000, len(steps), 1000))
    peak[evaluations] *= 1.02
    allocated = held + _round(10 * work / MB) + rng.normal(0, setting.jitter, len(steps))
    capacity = _capacity(setting, size, held, heavy)
    reserved = np.maximum.accumulate(peak) * 1.02
    return Simulated(
        size=size,
        peak=peak + 0.004 * peak * rng.standard_normal(len(steps)),
        allocated=allocated,
        reserved=reserved,
        work=np.round(work),
        views=views.astype(np.intp),
        capacity=capacity,
        evaluations=evaluations,
        worked=setting.worked,
    )


def _sizes(setting: Setting, rng: np.random.Generator, count: int) -> Array:
    """Grow every hundred steps along the curve, with noise; resets prune a tenth every 3000 steps."""
    places = np.arange(START, count, EVERY)
    parts = np.diff(CURVES[setting.curve]((places - START + EVERY) / (setting.death - START)), prepend=0.0)
    noise, carried = rng.normal(0, setting.uneven, len(places)), 0.0
    sizes, size = np.full(count, setting.first), setting.first
    for place, part, one in zip(places, parts, noise, strict=True):
        carried = 0.5 * carried + one
        grown = part * (setting.final - setting.first) * max(1 + carried, 0.0)
        size += grown if "resets" not in setting.curve else 1.35 * grown
        if "resets" in setting.curve and (place - START) % 3000 == 0 and place > START:
            size *= 0.9
        sizes[place:] = np.round(size)
    return sizes


def _workspaces(setting: Setting, views: NDArray[np.intp], rng: np.random.Generator) -> Array:
    """Return two MiB for each view when it is first used, and four workspaces of up to 60 MiB at random steps."""
    new = np.zeros(len(views))
    new[np.unique(views, return_index=True)[1]] = 2.0
    new[rng.integers(0, setting.death, 4)] += rng.uniform(5, 60, 4)
    return np.cumsum(new)


def _capacity(setting: Setting, size: Array, held: Array, heavy: Array) -> float:
    """Return a device that the heaviest view overfills at the size of ``death``."""
    at = min(setting.death, len(size) - 1)
    leaked = setting.leak * max(at - setting.leak_from, 0)
    ordinary = held[at] - leaked + (150 * size[at] + 28 * 9.0 * heavy.max() * size[at] ** 0.97) / MB
    return float(max(ordinary, 1800 + 6.4 * BYTES * size[at] / MB))


def _round(mb: Array) -> Array:
    """Round up to segments of 2 MiB."""
    return 2 * np.ceil(mb / 2)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A forecast and the outcome."""

    true: int
    made: int
    said: Forecast | None

    @property
    def error(self) -> float:
        """Relative error of the predicted step; 1 without a forecast."""
        return 1.0 if self.said is None else abs(self.said.step - self.true) / self.true

    @property
    def covered(self) -> bool:
        """Whether the end was within the 90 % interval."""
        said = self.said
        return said is not None and said.low <= self.true and (said.high is None or self.true <= said.high)


def foretell(setting: Setting, seed: int, *, by: str = "size") -> Outcome:
    """Forecast when half of the growth (``by`` size or time) is still to come."""
    run = simulate(setting, seed)
    made = run.half_size() if by == "size" else run.half_time()
    made = (made // LOOK + 1) * LOOK
    return Outcome(true=run.death, made=made, said=forecast(run.history(made, max(0, made - 4096))))


def leak_delay(setting: Setting, seed: int) -> int | None:
    """Return the steps from the start of a leak to its finding, with a check every 64 steps; None after 1000 steps."""
    run, rule = simulate(setting, seed), MemoryLeak()
    for look in range((setting.leak_from // LOOK + 1) * LOOK, setting.leak_from + 1000, LOOK):
        if found := rule(run.history(look, max(0, look - 2304))):
            return found[0].step - setting.leak_from
    return None


def false_alarms(setting: Setting, seed: int, *, every: int = 2 * LOOK) -> tuple[int, int]:
    """Return the number of false alarms in a run without a leak, and the number of checks."""
    run, rule = simulate(setting, seed), MemoryLeak()
    looks = range(LOOK, run.death, every)
    return sum(bool(rule(run.history(look, max(0, look - 2304)))) for look in looks), len(looks)


def _forecast_table(seeds: int) -> None:
    print("| growth | half of | median error | p90 | worst | within 5 % | within the 90 % interval |")
    print("|---|---|---|---|---|---|---|")
    for by in ("size", "time"):
        everything: list[Outcome] = []
        for curve in CURVES:
            found = [foretell(Setting(curve=curve), seed, by=by) for seed in range(FRESH, FRESH + seeds)]
            everything += found
            _print_outcomes(curve, by, found)
        _print_outcomes("**all**", by, everything)
    others: dict[str, dict[str, float | bool]] = {
        "linear, work not recorded": {"worked": False},
        "linear, 40 views": {"views": 40},
        "linear, growth twice as uneven": {"uneven": 0.1},
        "linear, growth six times as uneven": {"uneven": 0.3},
    }
    for label, changes in others.items():
        found = [foretell(replace(Setting(), **changes), seed) for seed in range(FRESH, FRESH + seeds)]
        _print_outcomes(label, "size", found)


def _print_outcomes(label: str, by: str, found: list[Outcome]) -> None:
    errors = sorted(outcome.error for outcome in found)
    high = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    near, covered = (statistics.mean(hit) for hit in ([e < 0.05 for e in errors], [o.covered for o in found]))
    middle = statistics.median(errors)
    print(f"| {label} | {by} | {middle:.1%} | {high:.1%} | {errors[-1]:.1%} | {near:.0%} | {covered:.0%} |")


def _leak_table(seeds: int) -> None:
    print("\n| leak | runs | detected | median delay | longest delay | within 200 steps |")
    print("|---|---|---|---|---|---|")
    for leak in (0.1, 0.2, 0.5, 1.0):
        begins = np.random.default_rng(7).integers(300, 6000, seeds).tolist()
        delays = [leak_delay(Setting(leak=leak, leak_from=begin), seed) for seed, begin in enumerate(begins, FRESH)]
        named = [delay for delay in delays if delay is not None]
        soon, middle = sum(delay <= 200 for delay in named), statistics.median(named)
        print(f"| {leak} MiB/step | {seeds} | {len(named)} | {middle:.0f} | {max(named)} | {soon / seeds:.0%} |")
    some = range(FRESH, FRESH + max(seeds // 8, 1))
    found = [false_alarms(Setting(curve=curve), seed) for curve in CURVES for seed in some]
    alarms, looks = np.sum(found, axis=0).tolist()
    print(f"\nwithout a leak: {alarms} alarms in {looks} checks\n")


def _cost() -> None:
    history = simulate(Setting(), 0).history(6016, 6016 - 4096)
    for name, work in {"forecast": lambda: forecast(history), "leak check": lambda: MemoryLeak()(history)}.items():
        spent: list[float] = []
        for _ in range(50):
            begin = time.thread_time()
            work()
            spent.append(time.thread_time() - begin)
        low, middle = 1e3 * min(spent), 1e3 * statistics.median(spent)
        print(f"one {name} on 4096 steps: minimum {low:.2f} ms, median {middle:.2f} ms of CPU time (50 repetitions)")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    options = parser.parse_args()
    _forecast_table(options.seeds)
    _leak_table(options.seeds)
    _cost()


if __name__ == "__main__":
    main()
