"""HTML page of an account, and the script that draws accounts on the page and in TensorBoard."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.page.page import is_page, report_page, write_page
    from fieldwatch.report.page.script import panels_script, panels_style, text_script

__all__ = ["is_page", "panels_script", "panels_style", "report_page", "text_script", "write_page"]

__getattr__, __dir__ = lazy_names(__name__)
