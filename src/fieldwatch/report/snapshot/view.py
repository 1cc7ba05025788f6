"""Writes a snapshot as one page of HTML that needs nothing else: no network, no build step."""

import html
from importlib.resources import files
from os import PathLike
from pathlib import Path

import orjson

from fieldwatch.base import write_file
from fieldwatch.report.page import text_script
from fieldwatch.report.snapshot.fields import sanitized
from fieldwatch.report.snapshot.model import Snapshot
from fieldwatch.report.snapshot.view_data import view_data

_SCRIPTS = ("format.js", "timeline.js", "segments.js", "sites.js", "page.js")


def write_view(snapshot: Snapshot, path: str | PathLike[str]) -> Path:
    """Write the interactive page: the timeline by site, the map of segments, and the table of sites.

    Names from the snapshot reach the page only as JSON text in which ``<``, ``>`` and ``&`` are escaped, and are shown
    only as text; the page's own policy forbids it to load anything.

    Args:
        snapshot: the snapshot.
        path: the file to write; its folder is made.

    Returns:
        The path.

    Raises:
        OSError: the file cannot be written.
    """
    assets = files("fieldwatch.report.snapshot") / "assets"
    parts = {
        "TITLE": html.escape(f"Memory of {sanitized(snapshot.path.name)}"),
        "STYLE": (assets / "view.css").read_text("utf-8"),
        "DATA": _json(snapshot),
        "SCRIPT": "\n".join([text_script(), *((assets / name).read_text("utf-8") for name in _SCRIPTS)]),
    }
    pieces = (assets / "view.html").read_text("utf-8").split("%%")
    page = "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))
    return write_file(Path(path), page.encode())


def _json(snapshot: Snapshot) -> str:
    """Return the page's data, safe inside a script element."""
    text = orjson.dumps(view_data(snapshot)).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
