"""Script and style sheet that draw an account, for the page and for the TensorBoard tab."""

from importlib.resources import files
from typing import Final

_TEXT_FORMAT: Final = "text_format.js"
_PARTS: Final = (
    _TEXT_FORMAT, "text.js", "colors.js", "chart_data.js", "chart_drawing.js", "chart.js", "histogram.js",
    "view.js", "table.js", "canvas_panel.js", "allocations.js", "segments.js", "points.js", "head.js", "panels.js",
)  # fmt: skip
VENDORED: Final = "vendor/uPlot.iife.min.js"


def panels_script() -> str:
    """Return the script that defines `fieldwatch.draw(root, account)` and `fieldwatch.panel(account, panel)`.

    It defines no other global name; uPlot, which draws the lines, is local to it.
    """
    inside = "\n".join(_asset(name) for name in (VENDORED, *_PARTS))
    return f'(() => {{\n"use strict";\n{inside}\n}})();\n'


def text_script() -> str:
    """Return the functions that format numbers, sizes, durations and dates, for a page with a script of its own."""
    return _asset(_TEXT_FORMAT)


def panels_style() -> str:
    """Return the style sheet; our rules apply only inside elements of class `fieldwatch`."""
    return _asset("vendor/uPlot.min.css") + "\n" + _asset("panels.css")


def page_frame() -> str:
    """Return the page template with placeholders `%%NAME%%` for POLICY, TITLE, STYLE, ACCOUNT and SCRIPT."""
    return _asset("frame.html")


def page_script() -> str:
    """Return the script of the page, which draws the embedded account."""
    return panels_script() + f"(() => {{\n{_asset('page.js')}}})();\n"


def _asset(name: str) -> str:
    return (files("fieldwatch.report.page") / "assets").joinpath(name).read_text("utf-8")
