"""Charts of a dashboard and their arrangement on tabs."""

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
