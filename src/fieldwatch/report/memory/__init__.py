"""Memory reports: analysis of tensor logs, memory logs and runs, as text, as JSON or as a page."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.memory.analysis import Analysis, Quantity, analyze
    from fieldwatch.report.memory.compare import comparison
    from fieldwatch.report.memory.jumps import Jump, Link
    from fieldwatch.report.memory.leak import LeakJudgment
    from fieldwatch.report.memory.page import memory_account
    from fieldwatch.report.memory.sources import labels, latest, read_trace
    from fieldwatch.report.memory.text import report
    from fieldwatch.report.memory.trace import LargestTensor, MemoryHistory, RecordedCurve
    from fieldwatch.report.memory.trend import Trend, trend_of

__all__ = [
    "Analysis",
    "Jump",
    "LargestTensor",
    "LeakJudgment",
    "Link",
    "MemoryHistory",
    "Quantity",
    "RecordedCurve",
    "Trend",
    "analyze",
    "comparison",
    "labels",
    "latest",
    "memory_account",
    "read_trace",
    "report",
    "trend_of",
]

__getattr__, __dir__ = lazy_names(__name__)
