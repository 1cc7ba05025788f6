"""A comparison as the output of a notebook's cell: the answer, and the values of every run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fieldwatch.base import number
from fieldwatch.base.cell import Html, card, paragraphs, table
from fieldwatch.report.compare.comparison import Comparison, compare
from fieldwatch.report.compare.comparison_text import DIGITS, sentences, title
from fieldwatch.report.compare.sources import read_sides

MOST_METRICS = 20
MOST_RUNS = 8


@dataclass(frozen=True, kw_only=True, repr=False)
class ShownComparison(Comparison):
    """A comparison that shows itself in a notebook."""

    def __repr__(self) -> str:
        """Return the answer in a line."""
        return f"<Comparison: {title(self)}>"

    def _repr_html_(self) -> str:
        """Return the comparison as the output of a notebook's cell."""
        return comparison_card(self)


def compare_runs(*runs: Path | str, metrics: Sequence[str] = (), repeats: bool = False) -> ShownComparison:
    """Compare runs: which one is better, and why.

    Args:
        runs: run folders, TensorBoard folders, event files, or folders of these.
        metrics: names of metrics, with `*` for any text; by default those with a known better direction.
        repeats: whether the runs of each given folder repeat an experiment (needed if they have no config).

    Raises:
        MissingPathError: if a path does not exist.
        NoEventFiles: if a path contains no run of any kind.
        NothingToCompare: if fewer than two or more than 200 runs were found.
        NoSuchMetric: if a pattern matches no metric of any run.
    """
    return shown_comparison(compare(read_sides([Path(run) for run in runs]), metrics, repeats=repeats))


def shown_comparison(comparison: Comparison) -> ShownComparison:
    """Return a comparison that shows itself."""
    return ShownComparison(**{field.name: getattr(comparison, field.name) for field in fields(comparison)})


def comparison_card(comparison: Comparison) -> Html:
    """Return a comparison as HTML."""
    return card(
        " against ".join(comparison.names[:3]) + (" and more" if len(comparison.names) > 3 else ""),
        # Neutral: a comparison is neither healthy nor failed.
        level="notes",
        label="comparison",
        headline=title(comparison),
        facts=(f"{len(comparison.sides):,} runs", f"{len(comparison.metrics):,} metrics"),
        parts=_parts(comparison),
    )


def _parts(comparison: Comparison) -> Iterator[Html]:
    runs = comparison.names[:MOST_RUNS]
    if comparison.metrics:
        rows = [
            (each.name, each.better, *(number(each.finals.get(run), DIGITS) for run in runs), each.best_final)
            for each in comparison.metrics[:MOST_METRICS]
        ]
        columns = ("final values", "better", *runs, "best")
        yield table(columns, rows, numeric=range(2, 2 + len(runs)))
    left_out = [(len(comparison.names), MOST_RUNS, "runs"), (len(comparison.metrics), MOST_METRICS, "metrics")]
    more = [f"{count - most:,} more {what}" for count, most, what in left_out if count > most]
    yield paragraphs([f"Not shown: {', '.join(more)}." if more else ""])
    yield paragraphs(sentences(comparison))
