"""Public: runs in notebooks: a view that follows a run, and comparisons that show themselves; see docs/view.md."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.monitor.notebook import LiveView, live
    from fieldwatch.report.compare import compare_runs

__all__ = ["LiveView", "compare_runs", "live"]

__getattr__, __dir__ = lazy_names(__name__)
