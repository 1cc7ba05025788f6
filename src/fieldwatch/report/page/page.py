"""The account of a run as one page that needs nothing else: no network, no server, no other file."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fieldwatch.base import whole_file
from fieldwatch.report.page.script import page_frame, page_script, panels_style

GENERATOR: Final = '<meta name="generator" content="fieldwatch report">'
"""What a page of ours says of itself in its head."""
_HEAD: Final = 4096


def report_page(account: Mapping[str, Any]) -> str:
    """Return the page.

    Its policy forbids it to load anything, and to run any script but its own: both are named there by their hashes.
    The account stands in it as JSON, in the element with the id `account`. Once it is drawn its `body` has
    `data-state="drawn"`.

    Args:
        account: of `account_of`; nothing in it is trusted to be harmless.

    Raises:
        ValueError: the account holds NaN or an infinity, which JSON does not know.
    """
    script = page_script()
    style = panels_style()
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


def write_page(account: Mapping[str, Any], path: Path) -> None:
    """Write the page, whole or not at all; a page that is there is replaced.

    Args:
        account: of `account_of`.
        path: of the file; its folder is made.

    Raises:
        OSError: the file cannot be written.
        ValueError: the account holds NaN or an infinity.
    """
    page = report_page(account)
    with whole_file(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")


def is_page(path: Path) -> bool:
    """Whether a file is a page that `write_page` wrote.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(_HEAD)


def _hash(text: str) -> str:
    """A source of a content security policy, by content."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _title(account: Mapping[str, Any]) -> str:
    name = account["run"]["name"]
    verdict = account["verdict"]["title"]
    return "".join(c if c.isprintable() else "?" for c in f"{name}: {verdict}")[:200]


def _embedded(account: Mapping[str, Any]) -> str:
    """JSON in ASCII that cannot end its script element, nor begin another."""
    text = json.dumps(account, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
