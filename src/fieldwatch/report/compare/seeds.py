"""Significance tests between experiments that were repeated with several seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Better
from fieldwatch.report.compare.keys import identity_of, seed_of
from fieldwatch.report.compare.side import Side

Floats = NDArray[np.float64]
MOST_SPLITS = 20_000
LEVEL = 0.05
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
        word = f"folder {side.group}" if repeats and side.group else None
        members.setdefault(identity_of(side) or word or f"run {side.name}", []).append(side)
    return [_group(sides) for sides in members.values()]


def _group(sides: Sequence[Side]) -> Group:
    seeds = [seed_of(side) for side in sides]
    sets = dict[str, list[str]]()
    for side, seed in zip(sides, seeds, strict=True):
        sets.setdefault(seed if side.config else f"run {side.name}", []).append(side.name)
    names = tuple(side.name for side in sides)
    name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return Group(name=name, runs=names, seeds=tuple(seeds), independent=tuple(map(tuple, sets.values())))


def significance_of(
    metric: str, finals: Mapping[str, float], one: Group, other: Group, better: Better
) -> Significance | None:
    """Test whether a metric's final values differ between two groups; None if a group has no value.

    Args:
        metric: name of the metric.
        finals: final value of each run; NaN and missing ones are left out.
        one: first group.
        other: second group.
        better: better direction of the metric.
    """
    a, b = (_values(finals, group) for group in (one, other))
    if not len(a) or not len(b):
        return None
    enough = len(a) > 1 and len(b) > 1
    p, least = permutation_test(a, b) if enough else (float("nan"), float("nan"))
    interval = welch_interval(a, b) if enough else (float("nan"), float("nan"))
    spreads = tuple(float(x.std(ddof=1)) if len(x) > 1 else float("nan") for x in (a, b))
    difference = float(b.mean() - a.mean())
    return Significance(
        metric=metric,
        groups=(one.name, other.name),
        counts=(len(a), len(b)),
        means=(float(a.mean()), float(b.mean())),
        spreads=(spreads[0], spreads[1]),
        difference=difference,
        interval=interval,
        p=p,
        least_p=least,
        statement=_statement((one.name, other.name), (len(a), len(b)), difference, p, least, better),
    )


def _values(finals: Mapping[str, float], group: Group) -> Floats:
    """Return one value per seed: the mean of the runs that share it."""
    found: list[float] = []
    for runs in group.independent:
        values = [finals[run] for run in runs if np.isfinite(finals.get(run, float("nan")))]
        if values:
            found.append(sum(values) / len(values))
    return np.array(found, np.float64)


def permutation_test(one: Floats, other: Floats) -> tuple[float, float]:
    """Return the two-sided p-value of the difference of means, and the smallest p-value that the counts allow.

    Args:
        one: ``[n]`` values of the first group.
        other: ``[m]`` values of the second group.
    """
    both = np.concatenate((one, other))
    count = len(one)
    ways = math.comb(len(both), count)
    if ways <= MOST_SPLITS:
        picks = np.array(list(combinations(range(len(both)), count)), np.intp)
        # With equal sizes every split has its mirror image with the same difference.
        least = (2 if len(one) == len(other) else 1) / ways
    else:
        shuffled = np.random.default_rng(0).random((MOST_SPLITS, len(both)))
        # The observed split is among the sampled ones, so that p is never 0.
        picks = np.concatenate((np.arange(count)[None], np.argsort(shuffled, axis=1)[:, :count]))
        least = 1 / len(picks)
    sums = both[picks].sum(axis=1)
    gaps = np.abs(sums / count - (both.sum() - sums) / len(other))
    seen = abs(float(one.mean() - other.mean()))
    # The tolerance covers sums in another order, which differ in their last bits.
    return float((gaps >= seen * (1 - 1e-9)).mean()), least


def welch_interval(one: Floats, other: Floats) -> tuple[float, float]:
    """Return Welch's 95 % interval of the second mean minus the first; NaN if neither group varies."""
    special: Any = import_module("scipy.special")  # slow to import, and most comparisons do not need it
    parts = [float(x.var(ddof=1)) / len(x) for x in (one, other)]
    total = sum(parts)
    if total <= 0:
        return float("nan"), float("nan")
    # Welch-Satterthwaite degrees of freedom.
    freedom = total**2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (one, other), strict=True))
    half = float(special.stdtrit(freedom, 0.975)) * math.sqrt(total)
    middle = float(other.mean() - one.mean())
    return middle - half, middle + half


def _statement(  # noqa: PLR0913, PLR0917  counts and results, for one sentence
    names: tuple[str, str], counts: tuple[int, int], difference: float, p: float, least: float, better: Better
) -> str:
    if min(counts) == 1:
        few = "one seed each" if counts == (1, 1) else f"one seed of {names[counts.index(1)]}"
        return f"{few}: no statement"
    if least > LEVEL:
        return f"p = {p:.3g}; {counts[0]} and {counts[1]} seeds cannot go below {least:.2g}: no statement"
    if p >= LEVEL:
        return f"no difference shown (p = {p:.3g})"
    if better not in ("higher", "lower"):
        return f"they differ (p = {p:.3g})"
    good = names[(difference > 0) == (better == "higher")]
    return f"{good} is better (p = {p:.3g})"
