"""Script and style sheet that draw an account, for the page and for the TensorBoard tab."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

_TEXT_FORMAT: Final = "text_format.js"
_PARTS: Final = (
    _TEXT_FORMAT, "text.js", "colors.js", "chart_data.js", "chart_drawing.js", "chart.js", "histogram.js",
    "view.js", "table.js", "canvas_panel.js", "allocations.js", "segments.js", "points.js", "head.js", "panels.js",
)  # fmt: skip
VENDORED: Final = "vendor/uPlot.iife.min.js"


@dataclass(frozen=True)
class PanelKind:
    """A kind of panel that only the pages of one command have, such as a mesh to turn.

    Attributes:
        name: value of "kind" in the panel.
        script: defines `drawPanel(view, panel)`, which returns an element or an array of elements. It can use the
            functions of the page's own script, such as `make` and `number`, and its names are local.
        style: rules of its elements, each below `.fieldwatch`.
    """

    name: str
    script: str
    style: str = ""


def panels_script(kinds: Sequence[PanelKind] = ()) -> str:
    """Return the script that defines `fieldwatch.draw(root, account)` and `fieldwatch.panel(account, panel)`.

    It defines no other global name; uPlot, which draws the lines, is local to it.

    Args:
        kinds: further kinds of panels that it draws.
    """
    added = [f'KINDS["{kind.name}"] = (() => {{\n{kind.script}\nreturn drawPanel;\n}})();' for kind in kinds]
    inside = "\n".join([*(_asset(name) for name in (VENDORED, *_PARTS)), *added])
    return f'(() => {{\n"use strict";\n{inside}\n}})();\n'


def text_script() -> str:
    """Return the functions that format numbers, sizes, durations and dates, for a page with a script of its own."""
    return _asset(_TEXT_FORMAT)


def panels_style(kinds: Sequence[PanelKind] = ()) -> str:
    """Return the style sheet; our rules apply only inside elements of class `fieldwatch`."""
    return "\n".join([_asset("vendor/uPlot.min.css"), _asset("panels.css"), *(kind.style for kind in kinds)])


def page_frame() -> str:
    """Return the page template with placeholders `%%NAME%%` for POLICY, TITLE, STYLE, ACCOUNT and SCRIPT."""
    return _asset("frame.html")


def page_script(kinds: Sequence[PanelKind] = ()) -> str:
    """Return the script of the page, which draws the embedded account."""
    return panels_script(kinds) + f"(() => {{\n{_asset('page.js')}}})();\n"


def _asset(name: str) -> str:
    return (files("fieldwatch.report.page") / "assets").joinpath(name).read_text("utf-8")
