"""How a command ends: errors that are the user's to mend, findings as a table, and where things were put."""

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fieldwatch.base import InputError
from fieldwatch.health import Finding

PACKAGE = Path(__file__).resolve().parent.parent

_ABOUT_THE_PATH = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.ENXIO,
        errno.ENODEV,
    }
)
"""What the system says when the path is wrong; a full or failing disk, or too many open files, is not among it."""

_CONTROL_CHARACTERS = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is, and a terminal obeys; it is only ever found in strings."""

COLORS = {"note": "cyan", "warning": "yellow", "error": "bold red"}


class BadInput(InputError):  # noqa: N818  it names what was wrong, not a fault of ours
    """Wrong usage or bad input: the message says what came, what was expected and what to do. Exit code 2."""


@contextmanager
def reading_input() -> Iterator[None]:
    """Report errors about the user's files: an OSError about a path becomes :class:`BadInput`.

    Every :class:`InputError` passes through as it is. All other errors are bugs of ours, or troubles of the machine
    such as a full disk: they pass through, too, and keep their traceback.
    """
    try:
        yield
    except InputError:  # some are OSErrors, too, and say all by themselves
        raise
    except OSError as error:
        if is_about_input(error):
            raise BadInput(f"{os.fsdecode(error.filename)}: {error.strerror}; check the path and its rights") from error
        raise


def is_about_input(error: BaseException) -> bool:
    """Whether the user can mend this error: it is an InputError, or the system refused a path that the user gave."""
    if isinstance(error, InputError):
        return True
    # Errors without a file name (sockets, pipes) are not about a path that the user gave.
    if not isinstance(error, OSError) or error.errno not in _ABOUT_THE_PATH:
        return False
    return isinstance(error.filename, str | bytes | os.PathLike) and not _is_ours(os.fsdecode(error.filename))


def _is_ours(path: str) -> bool:
    """Whether a path lies in this package: a file that is missing there is a broken installation."""
    return Path(path).is_relative_to(PACKAGE)


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Show findings, the gravest first: severity, step, rule and subject, then what was seen and what to do."""
    if not findings:
        console.print("[green]healthy[/]: no rule found anything", markup=True)
        return
    counted = ", ".join(f"{number} {name}{'s' * (number > 1)}" for name, number in count(findings).items() if number)
    console.print(Text.assemble((f"{len(findings)} finding{'s' if len(findings) > 1 else ''}", "bold"), f": {counted}"))
    order = list(COLORS)
    for finding in sorted(findings, key=lambda f: (-order.index(f.severity), f.step)):
        subject = f" ({finding.subject})" if finding.subject else ""
        where = f"  {finding.rule}{subject} at step {finding.step}"
        console.print(Text.assemble((finding.severity, COLORS[finding.severity]), where), soft_wrap=True)
        console.print(Padding(Text(f"{finding.message}\n-> {finding.remedy}"), (0, 0, 0, 4)))


def count(findings: Sequence[Finding]) -> dict[str, int]:
    """Count findings by severity, the gravest first; severities without one are 0."""
    return {name: sum(finding.severity == name for finding in findings) for name in reversed(COLORS)}


def print_paths(console: Console, paths: Mapping[str, str | Path]) -> None:
    """Say where things are, one line each, whole paths, ready to be copied."""
    width = max(len(name) for name in paths)
    for name, path in paths.items():
        console.print(Text(f"  {name:<{width}}  {path}"), soft_wrap=True, highlight=False)


def print_json(answer: Mapping[str, Any]) -> None:
    """Write the answer for a script to standard output."""
    text = orjson.dumps(answer, option=orjson.OPT_INDENT_2, default=str).decode()
    # orjson leaves these characters as they are; inside a JSON string their escapes mean the same.
    sys.stdout.write(_CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")
