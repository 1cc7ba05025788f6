"""Report of a run as a self-contained HTML page: it needs no network, server or other file."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fieldwatch.base import whole_file
from fieldwatch.report.page.script import PanelKind, page_frame, page_script, panels_style

GENERATOR: Final = '<meta name="generator" content="fieldwatch report">'
"""Element in the head of our pages by which `is_page` recognizes them."""
_HEAD: Final = 4096


def report_page(account: Mapping[str, Any], kinds: Sequence[PanelKind] = ()) -> str:
    """Return the page.

    Its content security policy forbids loading anything and allows only its own script and style, by their hashes. The
    account is embedded as JSON in the element with the id `account`. When drawing is complete, `body` has
    `data-state="drawn"`.

    Args:
        account: account from `account_of`; its texts are untrusted.
        kinds: kinds of its panels that the page's own script does not draw.

    Raises:
        ValueError: if the account contains NaN or infinity, which JSON cannot represent.
    """
    script = page_script(kinds)
    style = panels_style(kinds)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(_title(account)),
        "STYLE": style,
        "ACCOUNT": _embedded(account),
        "SCRIPT": script,
    }
    pieces = page_frame().split("%%")
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def write_page(account: Mapping[str, Any], path: Path, kinds: Sequence[PanelKind] = ()) -> None:
    """Write the page atomically; an existing page is replaced.

    Args:
        account: account from `account_of`.
        path: output file; its folder is created.
        kinds: kinds of its panels that the page's own script does not draw.

    Raises:
        OSError: if the file cannot be written.
        ValueError: if the account contains NaN or infinity.
    """
    page = report_page(account, kinds)
    with whole_file(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")


def is_page(path: Path) -> bool:
    """Return whether a file is a page written by `write_page`.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(_HEAD)


def _hash(text: str) -> str:
    """Return the hash source of a script or style for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _title(account: Mapping[str, Any]) -> str:
    name = account["run"]["name"]
    verdict = account["verdict"]["title"]
    return "".join(c if c.isprintable() else "?" for c in f"{name}: {verdict}")[:200]


def _embedded(account: Mapping[str, Any]) -> str:
    """Return ASCII JSON that can neither close its script element nor open another one."""
    # ensure_ascii also turns lone surrogates, from file names that are not UTF-8, into valid escapes.
    text = json.dumps(account, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
