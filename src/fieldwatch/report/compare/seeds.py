"""Significance tests between experiments that were repeated with several seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number
from fieldwatch.record import Better
from fieldwatch.report.compare.keys import identity_of, seed_of
from fieldwatch.report.compare.side import Side

Floats = NDArray[np.float64]
MOST_SPLITS = 20_000
"""Number of assignments up to which all are tried; of more, as many are drawn at random."""
LEVEL = 0.05
"""p-value below which a difference counts as more than chance."""
WHY = (
    "Permutation test of the difference of means (all assignments of the runs to both groups; if there are "
    "more than 20,000, as many at random): it assumes no distribution, which a few seeds could not confirm. The "
    "interval is Welch's, at 95 %. p is for one metric at a time: of 20 without a difference, one falls below 0.05."
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one experiment.

    Attributes:
        name: name of the experiment for people.
        runs: names of the runs.
        seeds: seed of each run; empty if unknown.
        independent: sets of runs with the same seed; each set counts as one sample.
    """

    name: str
    runs: tuple[str, ...]
    seeds: tuple[str, ...]
    independent: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Significance:
    """Test of whether one metric differs between two groups by more than chance.

    Attributes:
        metric: name of the metric.
        groups: names of both groups.
        counts: number of seeds in each group.
        means: mean of each group.
        spreads: standard deviation of each group over its seeds; NaN for one seed.
        difference: second mean minus first mean.
        interval: Welch's 95 % confidence interval of the difference; NaN if it cannot be computed.
        p: two-sided p-value of the permutation test; NaN if no test is possible.
        least_p: smallest p-value that this number of seeds can give.
        statement: result in words.
    """

    metric: str
    groups: tuple[str, str]
    counts: tuple[int, int]
    means: tuple[float, float]
    spreads: tuple[float, float]
    difference: float
    interval: tuple[float, float]
    p: float
    least_p: float
    statement: str


def groups_of(sides: Sequence[Side], *, repeats: bool) -> list[Group]:
    """Group runs into experiments: runs whose configs differ only in the seed form one.

    Args:
        sides: runs.
        repeats: whether runs in the same given folder repeat an experiment if no config is known.
    """
    members = dict[str, list[Side]]()
    for side in sides:
        folder_key = f"folder {side.group}" if repeats and side.group else None
        # Without a config and without --repeats, each run is an experiment of its own.
        members.setdefault(identity_of(side) or folder_key or f"run {side.name}", []).append(side)
    return [_group(sides) for sides in members.values()]


def _group(sides: Sequence[Side]) -> Group:
    seeds = [seed_of(side) for side in sides]
    by_seed = dict[str, list[str]]()
    for side, seed in zip(sides, seeds, strict=True):
        # Runs of one seed are not independent: together they would feign a small variance.
        by_seed.setdefault(seed if side.config else f"run {side.name}", []).append(side.name)
    names = tuple(side.name for side in sides)
    name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return Group(name=name, runs=names, seeds=tuple(seeds), independent=tuple(map(tuple, by_seed.values())))


def significance_of(
    metric: str, finals: Mapping[str, float], first: Group, second: Group, better: Better
) -> Significance | None:
    """Test whether a metric's final values differ between two groups; None if a group has no value.

    Args:
        metric: name of the metric.
        finals: final value of each run; NaN and missing ones are left out.
        first: first group.
        second: second group.
        better: better direction of the metric.
    """
    a, b = (_values(finals, group) for group in (first, second))
    if not len(a) or not len(b):
        return None
    # One value says nothing about the variance between seeds.
    enough = len(a) > 1 and len(b) > 1
    p, least = permutation_test(a, b) if enough else (float("nan"), float("nan"))
    interval = welch_interval(a, b) if enough else (float("nan"), float("nan"))
    spreads = tuple(float(x.std(ddof=1)) if len(x) > 1 else float("nan") for x in (a, b))
    difference = float(b.mean() - a.mean())
    return Significance(
        metric=metric,
        groups=(first.name, second.name),
        counts=(len(a), len(b)),
        means=(float(a.mean()), float(b.mean())),
        spreads=(spreads[0], spreads[1]),
        difference=difference,
        interval=interval,
        p=p,
        least_p=least,
        statement=_statement((first.name, second.name), (len(a), len(b)), difference, p, least, better),
    )


def _values(finals: Mapping[str, float], group: Group) -> Floats:
    """Return one value per seed: the mean of the runs that share it."""
    means: list[float] = []
    for runs in group.independent:
        values = [finals[run] for run in runs if np.isfinite(finals.get(run, float("nan")))]
        if values:
            means.append(sum(values) / len(values))
    return np.array(means, np.float64)


def permutation_test(first: Floats, second: Floats) -> tuple[float, float]:
    """Return the two-sided p-value of the difference of means, and the smallest p-value that the counts allow.

    Args:
        first: ``[n]`` values of the first group.
        second: ``[m]`` values of the second group.
    """
    both = np.concatenate((first, second))
    count = len(first)
    ways = math.comb(len(both), count)
    if ways <= MOST_SPLITS:
        picks = np.array(list(combinations(range(len(both)), count)), np.intp)
        # With equal sizes every split has its mirror image with the same difference.
        least = (2 if len(first) == len(second) else 1) / ways
    else:
        # A fixed seed, so that the same runs always give the same p.
        shuffled = np.random.default_rng(0).random((MOST_SPLITS, len(both)))
        # The observed split is among the sampled ones, so that p is never 0.
        picks = np.concatenate((np.arange(count)[None], np.argsort(shuffled, axis=1)[:, :count]))
        least = 1 / len(picks)
    sums = both[picks].sum(axis=1)
    gaps = np.abs(sums / count - (both.sum() - sums) / len(second))
    observed = abs(float(first.mean() - second.mean()))
    # The tolerance covers sums in another order, which differ in their last bits.
    return float((gaps >= observed * (1 - 1e-9)).mean()), least


def welch_interval(first: Floats, second: Floats) -> tuple[float, float]:
    """Return Welch's 95 % interval of the second mean minus the first; NaN if neither group varies."""
    special: Any = import_module("scipy.special")  # slow to import, and most comparisons do not need it
    parts = [float(x.var(ddof=1)) / len(x) for x in (first, second)]
    total = sum(parts)
    if total <= 0:
        return float("nan"), float("nan")
    # Welch-Satterthwaite degrees of freedom.
    freedom = total**2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (first, second), strict=True))
    half = float(special.stdtrit(freedom, 0.975)) * math.sqrt(total)
    middle = float(second.mean() - first.mean())
    return middle - half, middle + half


def _statement(  # noqa: PLR0913, PLR0917  counts and results, for one sentence
    names: tuple[str, str], counts: tuple[int, int], difference: float, p: float, least: float, better: Better
) -> str:
    if min(counts) == 1:
        few = "one seed each" if counts == (1, 1) else f"one seed of {names[counts.index(1)]}"
        return f"{few}: no statement"
    value = f"p = {number(p, 3)}"
    # With this few seeds, not even the most extreme result could be significant.
    if least > LEVEL:
        return f"{value}; {counts[0]} and {counts[1]} seeds cannot go below {number(least, 2)}: no statement"
    # Not "they are equal": a difference may be too small for this number of seeds.
    if p >= LEVEL:
        return f"no difference shown ({value})"
    if better not in ("higher", "lower"):
        return f"they differ ({value})"
    winner = names[(difference > 0) == (better == "higher")]
    return f"{winner} is better ({value})"
