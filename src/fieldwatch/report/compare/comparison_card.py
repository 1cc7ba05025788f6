"""A comparison as the output of a notebook's cell: the answer, and the values of every run."""

from collections.abc import Iterator

from fieldwatch.base import number
from fieldwatch.base.cell import Html, card, paragraphs, table
from fieldwatch.report.compare.comparison import Comparison
from fieldwatch.report.compare.comparison_text import DIGITS, sentences, title

MOST_METRICS = 20
MOST_RUNS = 8


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
