"""Charts of a dashboard and their arrangement on tabs."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.record.charts.layout import Chart, Layout, Margin, Tab, default_layout
    from fieldwatch.record.charts.memory_tab import MEMORY_TAB

__all__ = [
    "MEMORY_TAB",
    "Chart",
    "Layout",
    "Margin",
    "Tab",
    "default_layout",
]

__getattr__, __dir__ = lazy_names(__name__)
