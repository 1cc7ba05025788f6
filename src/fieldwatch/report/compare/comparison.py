"""Comparison of several runs: which one is better, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Any

import numpy as np

from fieldwatch.base import InputError
from fieldwatch.record import Better, tags
from fieldwatch.report.compare.align import By, Point, at_points, axis_of
from fieldwatch.report.compare.code import code_differences_of
from fieldwatch.report.compare.difference import Divergence, first_difference
from fieldwatch.report.compare.figures import Figure, figure_of, winner
from fieldwatch.report.compare.keys import config_differences_of, environment_differences_of
from fieldwatch.report.compare.pace import RunPace, pace_of
from fieldwatch.report.compare.quality import NO_QUALITY, Meaning, meaning_of
from fieldwatch.report.compare.seeds import Group, Significance, groups_of, significance_of
from fieldwatch.report.compare.side import Side

ALIGNED = 12
"""Maximum number of metrics that are aligned and tested; the table of final values has all chosen ones."""
UNKNOWN = 12
"""Maximum number of metrics shown if none has a known better direction."""
MOST_PAIRS = 30
"""Number of pairs of groups above which each group is tested against the first one only."""


class NoSuchMetric(InputError):  # noqa: N818  reads as what is missing
    """No run has a metric with the requested name."""


@dataclass(frozen=True, kw_only=True)
class ComparedMetric:
    """One metric of all runs.

    Attributes:
        name: tag of the metric.
        meaning: better direction and importance.
        figures: summary of the values of each run that has the metric.
        best_final: run with the best final value; empty if there is none.
        best_ever: run with the best value at any step; empty if there is none.
    """

    name: str
    meaning: Meaning
    figures: Mapping[str, Figure]
    best_final: str
    best_ever: str

    @property
    def better(self) -> Better:
        """Better direction of the metric."""
        return self.meaning.better

    @property
    def finals(self) -> dict[str, float]:
        """Final value of each run."""
        return {run: figure.final for run, figure in self.figures.items()}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of a comparison.

    Attributes:
        sides: compared runs, in the given order.
        positions: whether steps are positions on a metric's axis, as in TensorBoard.
        metrics: chosen metrics, most important first.
        shared: names of the metrics of all runs that have rows.
        partly: names of metrics that some runs lack, with the runs that have them.
        points: runs at the same points of the training, by kind of alignment.
        paces: speed and memory of each run.
        config: differing keys of the configs, with the value of each run.
        code: lines of the user's programs that differ between two runs, by file and line, with the text of each run.
        environment: differing versions, git states, hosts, devices and commands.
        divergences: first difference of each further run from the first run.
        groups: runs that repeat one experiment.
        significance: tests for each pair of groups and each metric.
    """

    sides: tuple[Side, ...]
    positions: bool
    metrics: tuple[ComparedMetric, ...]
    shared: tuple[str, ...]
    partly: Mapping[str, tuple[str, ...]]
    points: Mapping[By, tuple[Point, ...]]
    paces: Mapping[str, RunPace]
    config: Mapping[str, Mapping[str, Any]]
    code: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, Mapping[str, Any]]
    divergences: tuple[Divergence, ...]
    groups: tuple[Group, ...]
    significance: tuple[Significance, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the runs."""
        return tuple(side.name for side in self.sides)

    @property
    def headline(self) -> ComparedMetric | None:
        """The deciding metric: the first one for which two runs have a value and one is better."""
        return next((metric for metric in self.metrics if metric.best_final), None)


def compare(sides: Sequence[Side], patterns: Sequence[str] = (), *, repeats: bool = False) -> Comparison:
    """Compare runs.

    Args:
        sides: at least two runs.
        patterns: names of metrics, with `*` for any text; if empty, metrics of quality are chosen.
        repeats: whether runs in the same given folder repeat an experiment if no config is known.

    Raises:
        NoSuchMetric: if a pattern matches no metric of any run.
    """
    having = [side for side in sides if side.series]
    # Event files store one number per value, which is the position; steps are known for our own runs only.
    positions = any(side.kind == "tensorboard" for side in having)
    names = dict.fromkeys(name for side in having for name in side.series)
    owners = {name: tuple(side.name for side in having if name in side.series) for name in names}
    metrics = [compare_metric(sides, name, positions=positions) for name in chosen_metrics(having, owners, patterns)]
    groups = groups_of(sides, repeats=repeats)
    aligned = metrics[:ALIGNED]
    ways: tuple[By, ...] = ("step", "time", "phase")
    return Comparison(
        sides=tuple(sides),
        positions=positions,
        metrics=tuple(metrics),
        shared=tuple(name for name, runs in owners.items() if len(runs) == len(having)),
        partly={name: runs for name, runs in owners.items() if len(runs) < len(having)},
        points={
            by: tuple(p for m in aligned for p in at_points(sides, m.name, m.better, by, positions=positions))
            for by in ways
        },
        paces={side.name: pace_of(side) for side in sides},
        config=config_differences_of(sides),
        code=code_differences_of(sides),
        environment=environment_differences_of(sides),
        # Over all rows of all metrics, also those that were not chosen.
        divergences=tuple(_divergences(sides)),
        groups=tuple(groups),
        significance=tuple(_significance(aligned, groups)),
    )


def chosen_metrics(sides: Sequence[Side], owners: Mapping[str, Sequence[str]], patterns: Sequence[str]) -> list[str]:
    """Return the names of the metrics to show, in order.

    Raises:
        NoSuchMetric: if a pattern matches no metric.
    """
    if patterns:
        return list(dict.fromkeys(name for pattern in patterns for name in _fitting(pattern, list(owners))))
    # With a single run that has rows, its metrics are shown all the same.
    least = min(2, len(sides))
    shared = [name for name, runs in owners.items() if len(runs) >= least and not tags.is_bookkeeping(name)]
    ranks = {name: declared_meaning(sides, name).rank for name in shared}
    # Metrics of all runs first: a metric of two among ten cannot decide.
    chosen = sorted(
        (name for name in shared if ranks[name] < NO_QUALITY), key=lambda name: (-len(owners[name]), ranks[name])
    )
    return chosen or [name for name in shared if not declared_meaning(sides, name).machine][:UNKNOWN]


def _fitting(pattern: str, names: Sequence[str]) -> list[str]:
    # An exact name first: names of event files may contain brackets, which fnmatch reads as a set of characters.
    matches = [name for name in names if name == pattern] or [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        known = ", ".join(sorted(names)[:20]) or "none: the runs contain no scalars"
        raise NoSuchMetric(f"no run has a metric {pattern!r} (* matches any text); available metrics: {known}")
    return matches


def declared_meaning(sides: Sequence[Side], name: str) -> Meaning:
    """Return the meaning of a metric, as declared by the first run that declares it."""
    return meaning_of(name, next((side.declared[name] for side in sides if name in side.declared), None))


def compare_metric(sides: Sequence[Side], name: str, *, positions: bool) -> ComparedMetric:
    """Compare one metric between all runs that have it."""
    meaning = declared_meaning(sides, name)
    figures = {
        side.name: figure_of(series, meaning.better, axis_of(series, positions=positions))
        for side in sides
        if (series := side.series.get(name)) is not None
    }
    return ComparedMetric(
        name=name,
        meaning=meaning,
        figures=figures,
        best_final=winner({run: figure.final for run, figure in figures.items()}, meaning.better),
        best_ever=winner({run: figure.best for run, figure in figures.items()}, meaning.better),
    )


def _divergences(sides: Sequence[Side]) -> list[Divergence]:
    """Compare each run with the first one that has rows."""
    having = [side for side in sides if side.series]
    # Decided per pair: two runs of ours are compared by step, also if a third one comes from TensorBoard.
    return [
        first_difference(having[0], other, positions="tensorboard" in (having[0].kind, other.kind))
        for other in having[1:]
    ]


def _significance(metrics: Sequence[ComparedMetric], groups: Sequence[Group]) -> list[Significance]:
    """Test each pair of groups if any group repeats; with many groups, test each against the first only."""
    if len(groups) < 2 or all(len(group.independent) == 1 for group in groups):
        return []
    pairs = list(combinations(groups, 2))
    pairs = pairs if len(pairs) <= MOST_PAIRS else [(groups[0], other) for other in groups[1:]]
    tests = [
        significance_of(metric.name, metric.finals, first, second, metric.better)
        for first, second in pairs
        for metric in metrics
    ]
    return [test for test in tests if test is not None]


def ranked(metric: ComparedMetric) -> list[tuple[str, float]]:
    """Return the runs with their final values, best first; values that are not finite are left out."""
    known = [(run, value) for run, value in metric.finals.items() if np.isfinite(value)]
    return sorted(known, key=lambda pair: pair[1], reverse=metric.better == "higher")


def all_equal(comparison: Comparison) -> bool:
    """Return whether all runs are bitwise equal, end at the same step, and have rows."""
    pairs = comparison.divergences
    # Runs without rows are in no pair, so fewer pairs mean that not all runs were compared.
    return len(pairs) == len(comparison.sides) - 1 and all(d.identical and not d.longer for d in pairs) and bool(pairs)
