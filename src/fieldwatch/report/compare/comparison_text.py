"""The comparison in sentences: which run is better, by how much, and what limits the answer."""

from collections.abc import Iterator

import numpy as np

from fieldwatch.base import number
from fieldwatch.report.compare.comparison import Comparison, all_equal, ranked
from fieldwatch.report.compare.keys import is_seed
from fieldwatch.report.compare.quality import words_of

MOST_KEYS = 6
DIGITS = 5
"""Significant digits of metrics: runs that are compared often differ in the fourth."""


def printable(value: object, most: int = 60) -> str:
    """Return text that is safe for terminals and pages: without control characters, at most ``most`` characters."""
    # Names of metrics and runs come from files of others: an escape sequence would reach the terminal.
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def title(comparison: Comparison) -> str:
    """Return the answer in one line: which run is better, and in which metric."""
    if all_equal(comparison):
        how = " (as float32, as TensorBoard stores values)" if any(d.as_float32 for d in comparison.divergences) else ""
        return f"The {len(comparison.sides)} runs are bitwise equal{how}"
    metric = comparison.headline
    if metric is None:
        return "No best run: no shared metric has a known better direction, or the best values are equal"
    (best, value), (second, other) = ranked(metric)[:2]
    if len(pipelines_of(comparison)) > 1:
        return (
            f"Different pipelines; among the shared metrics, {best} has the better {metric.name}: "
            f"{number(value, DIGITS)}, followed by {second} with {number(other, DIGITS)}"
        )
    return (
        f"{best} is best: {metric.name} {number(value, DIGITS)}, followed by {second} with {number(other, DIGITS)} "
        f"({metric.better} is better)"
    )


def sentences(comparison: Comparison) -> list[str]:
    """Return the details of the answer: significance, differing configs, and what limits the comparison."""
    return [*_answer(comparison), *_why(comparison), *_limits(comparison)]


def _answer(comparison: Comparison) -> Iterator[str]:
    metric = comparison.headline
    if metric is None or all_equal(comparison):
        return
    decided = [each for each in comparison.metrics if each.best_final]
    wins = sum(each.best_final == metric.best_final for each in decided)
    # The headline is one metric: it matters whether the others agree.
    if len(decided) > 1:
        yield f"It is best in {wins} of the {len(decided)} metrics with a known better direction."
    points = [point for point in comparison.points["step"] if point.metric == metric.name]
    # A run may be best only because it was trained for longer.
    if points and points[-1].best and points[-1].best != metric.best_final:
        common = points[-1]
        yield (
            f"At {common.at}, the last one that all runs have, {common.best} is ahead with "
            f"{number(common.values[common.best], DIGITS)}: the runs are not equally long."
        )
    yield from _chance(comparison, metric.name)
    rates = {run: pace.steps_per_second for run, pace in comparison.paces.items()}
    known = {run: rate for run, rate in rates.items() if np.isfinite(rate) and rate > 0}
    if len(known) > 1:
        fast = max(known, key=known.__getitem__)
        slow = min(known, key=known.__getitem__)
        factor = number(known[fast] / known[slow], 2)
        yield f"{fast} is fastest: {number(known[fast], DIGITS)} steps/s, {factor} times as fast as {slow}."


def _chance(comparison: Comparison, metric: str) -> Iterator[str]:
    tests = [test for test in comparison.significance if test.metric == metric]
    if not tests:
        yield f"Chance: {why_no_test(comparison)}"
    for test in tests[:3]:
        yield f"Chance, {test.groups[0]} against {test.groups[1]}: {test.statement}."


def why_no_test(comparison: Comparison) -> str:
    """Return why there is no significance test."""
    repeated = [group for group in comparison.groups if len(group.independent) > 1]
    if len(comparison.groups) > 1:
        if repeated:
            return "the repeated experiments have no metric in common: no statement."
        return "one seed each: no statement. Repeat each experiment with other seeds to get one."
    if repeated:
        return (
            f"the runs repeat one experiment with {len(repeated[0].independent)} seeds: their differences are chance."
        )
    return "the runs have the same config and the same seed: their differences have another cause."


def _why(comparison: Comparison) -> Iterator[str]:
    keys = [key for key in comparison.config if not is_seed(key)]
    seeds = [key for key in comparison.config if is_seed(key)]
    unknown = [side.name for side in comparison.sides if side.config is None]
    if keys:
        more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
        yield f"Their configs differ in {', '.join(printable(key, 40) for key in keys[:MOST_KEYS])}{more}."
    elif seeds:
        yield "Their configs differ only in the seed."
    elif len(comparison.sides) - len(unknown) > 1:
        yield "Their configs are the same."
    if comparison.code:
        places = list(comparison.code)
        more = f" and {len(places) - MOST_KEYS} more places" if len(places) > MOST_KEYS else ""
        yield f"Their code differs in {', '.join(printable(place, 60) for place in places[:MOST_KEYS])}{more}."
    if unknown:
        yield f"No config is recorded for {_listed(unknown)}."


def _limits(comparison: Comparison) -> Iterator[str]:
    pipelines = pipelines_of(comparison)
    if len(pipelines) > 1:
        yield f"The runs use different pipelines ({', '.join(pipelines)}): only shared metrics are compared."
    metric = comparison.headline
    # The total of different weights is a different quantity, so the lower one is not necessarily the better run.
    weights = [key for key in comparison.config if {"weight", "loss", "lambda"} & words_of(key)]
    if metric and weights and {"total", "loss"} <= words_of(metric.name):
        yield (
            f"{metric.name} is a sum of terms, and {', '.join(printable(key, 40) for key in weights[:3])} "
            f"{'differs' if len(weights) == 1 else 'differ'}: its values may not be comparable between the runs."
        )
    empty = [side.name for side in comparison.sides if not side.series]
    if empty:
        yield f"{_listed(empty)} {'contains' if len(empty) == 1 else 'contain'} no scalars."
    if not comparison.shared and len(comparison.sides) - len(empty) > 1:
        yield "No metric is in all runs."
    if {side.kind for side in comparison.sides if side.series} == {"fieldwatch", "tensorboard"}:
        yield "Rows are matched by TensorBoard's step, which is the epoch for metrics recorded by epoch."
    for side in comparison.sides[:MOST_KEYS]:
        bad = [
            (each.name, figure) for each in comparison.metrics if (figure := each.figures.get(side.name)) and figure.bad
        ]
        if bad:
            name, figure = bad[0]
            more = f", and so are values of {len(bad) - 1} more metrics" if len(bad) > 1 else ""
            yield f"{name} of {side.name}: {figure.bad:,} of {figure.count:,} values are not finite{more}."


def pipelines_of(comparison: Comparison) -> list[str]:
    """Return the pipelines of the fieldwatch runs; event files do not name theirs."""
    sides = [side for side in comparison.sides if side.kind == "fieldwatch"]
    return list(dict.fromkeys(side.pipeline or "a custom loop" for side in sides))


def _listed(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
