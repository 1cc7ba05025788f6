"""How a command ends: errors that are the user's to mend, findings as a table, and where things were put."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fieldwatch.health import Finding

COLOURS = {"note": "cyan", "warning": "yellow", "error": "bold red"}


class BadInput(Exception):  # noqa: N818  it names what was wrong, not a fault of ours
    """Wrong usage or bad input: the message says what came, what was wanted and what to do. Exit code 2."""


@contextmanager
def reading_input() -> Iterator[None]:
    """Errors about files and values inside are the user's to mend: they become :class:`BadInput`."""
    try:
        yield
    except (ValueError, OSError, LookupError, ImportError) as error:
        raise BadInput(str(error)) from error


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Show findings, the gravest first: severity, step, rule and subject, then what was seen and what to do."""
    if not findings:
        console.print("[green]healthy[/]: no rule found anything")
        return
    console.print(f"[bold]{len(findings)} finding{'s' if len(findings) > 1 else ''}[/]")
    order = list(COLOURS)
    for finding in sorted(findings, key=lambda f: (-order.index(f.severity), f.step)):
        subject = f" ({finding.subject})" if finding.subject else ""
        where = f"  {finding.rule}{subject} at step {finding.step}"
        console.print(Text.assemble((finding.severity, COLOURS[finding.severity]), where), soft_wrap=True)
        console.print(Padding(Text(f"{finding.message}\n-> {finding.remedy}"), (0, 0, 0, 4)))


def print_places(console: Console, places: Mapping[str, str | Path]) -> None:
    """Say where things are, one line each, whole paths, ready to be copied."""
    width = max(len(name) for name in places)
    for name, place in places.items():
        console.print(Text(f"  {name:<{width}}  {place}"), soft_wrap=True, highlight=False)


def print_json(answer: Mapping[str, Any]) -> None:
    """Write the answer for a script to standard output."""
    sys.stdout.write(orjson.dumps(answer, option=orjson.OPT_INDENT_2, default=str).decode() + "\n")
