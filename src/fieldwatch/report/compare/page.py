"""The comparison as one page that needs nothing else, drawn by the script of the report."""

import base64
import hashlib
import html
import json
import os
from importlib.resources import files
from pathlib import Path

from fieldwatch.report.compare.account import comparison_account
from fieldwatch.report.compare.comparison import Comparison
from fieldwatch.report.compare.words import printable, title
from fieldwatch.report.page import panels_script, panels_style


def comparison_page(comparison: Comparison) -> str:
    """Return the page; its policy forbids it to load anything, and to run any script but its own.

    What it draws stands in it as JSON, in the element with the id `account`. Once it is drawn its `body` has
    `data-state="drawn"`.
    """
    script, style = f"{panels_script()}(() => {{\n{_asset('compare.js')}}})();\n", panels_style()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    account = json.dumps(comparison_account(comparison), separators=(",", ":"), allow_nan=False)
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(printable(title(comparison), 200)),
        "STYLE": style,
        "ACCOUNT": account.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        "SCRIPT": script,
    }
    pieces = _asset("frame.html").split("%%")
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the page, whole or not at all; a page that is there is replaced.

    Raises:
        OSError: the file cannot be written.
    """
    page = comparison_page(comparison)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(page, encoding="utf-8", newline="\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _asset(name: str) -> str:
    return (files("fieldwatch.report.compare") / "assets").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """A source of a content security policy, by content."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
