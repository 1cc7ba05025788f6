"""Comparison of runs: which one is better, and why; for runs of fieldwatch and plain TensorBoard folders."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.compare.account import comparison_account
    from fieldwatch.report.compare.align import By, Point
    from fieldwatch.report.compare.comparison import ComparedMetric, Comparison, NoSuchMetric, compare
    from fieldwatch.report.compare.comparison_card import compare_runs, shown_comparison
    from fieldwatch.report.compare.difference import Divergence, MetricDifference, first_difference
    from fieldwatch.report.compare.figures import Figure, figure_of
    from fieldwatch.report.compare.quality import Meaning, meaning_of
    from fieldwatch.report.compare.seeds import Group, Significance, permutation_test, welch_interval
    from fieldwatch.report.compare.side import RunPhase, Side
    from fieldwatch.report.compare.sources import NothingToCompare, read_sides, runs_in, side_of
    from fieldwatch.report.compare.table import tables
from fieldwatch.report.compare.comparison_json import as_json
from fieldwatch.report.compare.comparison_text import printable, sentences, title

__all__ = [
    "By",
    "ComparedMetric",
    "Comparison",
    "Divergence",
    "Figure",
    "Group",
    "Meaning",
    "MetricDifference",
    "NoSuchMetric",
    "NothingToCompare",
    "Point",
    "RunPhase",
    "Side",
    "Significance",
    "as_json",
    "compare",
    "compare_runs",
    "comparison_account",
    "figure_of",
    "first_difference",
    "meaning_of",
    "permutation_test",
    "printable",
    "read_sides",
    "runs_in",
    "sentences",
    "shown_comparison",
    "side_of",
    "tables",
    "title",
    "welch_interval",
]

__getattr__, __dir__ = lazy_names(__name__)
