"""The page: what it can show, and the file that shows it, which opens offline and needs nothing else."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.page.page import is_page, report_page, write_page
    from fieldwatch.report.page.page_document import Level, document
    from fieldwatch.report.page.panels import Panel, Row, facts, group, lines, points, slug, stack, table, text
    from fieldwatch.report.page.script import PanelKind, panels_script, panels_style, text_script

__all__ = [
    "Level",
    "Panel",
    "PanelKind",
    "Row",
    "document",
    "facts",
    "group",
    "is_page",
    "lines",
    "panels_script",
    "panels_style",
    "points",
    "report_page",
    "slug",
    "stack",
    "table",
    "text",
    "text_script",
    "write_page",
]

__getattr__, __dir__ = lazy_names(__name__)
