"""Output of commands: errors that the user can fix, findings, file paths and JSON."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fieldwatch.base import InputError
from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:  # importing all rules takes half of the time of `--help`
    from fieldwatch.health import Diagnosis, Finding

__getattr__, _ = lazy_names(__name__)  # resolves the quoted annotations at run time

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
"""Error codes of wrong paths; full or failing disks and too many open files are not among them."""

_CONTROL_CHARACTERS = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters that JSON does not escape and terminals interpret; they occur only inside strings."""

COLORS = {"note": "cyan", "warning": "yellow", "error": "bold red"}


class BadInput(InputError):  # noqa: N818  an error of the user, not of the program
    """Wrong usage or bad input (exit code 2); the message gives the value, what was expected and what to do."""


@contextmanager
def reading_input() -> Iterator[None]:
    """Report errors about the user's files: an OSError about a path becomes :class:`BadInput`.

    Every :class:`InputError` passes through unchanged. All other errors are bugs, or problems of the machine such as a
    full disk: they pass through with their traceback.
    """
    try:
        yield
    # Some InputErrors are also OSErrors, with better messages than the one below.
    except InputError:
        raise
    except OSError as error:
        if is_about_input(error):
            raise BadInput(f"{os.fsdecode(error.filename)}: {error.strerror}; check the path and its rights") from error
        raise


def is_about_input(error: BaseException) -> bool:
    """Return whether the user can fix an error: it is an InputError, or an OSError about a path of the user."""
    if isinstance(error, InputError):
        return True
    # Errors without a file name (sockets, pipes) are not about a path that the user gave.
    if not isinstance(error, OSError) or error.errno not in _ABOUT_THE_PATH:
        return False
    return isinstance(error.filename, str | bytes | os.PathLike) and not _is_ours(os.fsdecode(error.filename))


def _is_ours(path: str) -> bool:
    """Return whether a path is inside this package: a file missing there means a broken installation."""
    return Path(path).is_relative_to(PACKAGE)


def print_findings(console: Console, findings: Sequence[Finding], *, broken: bool = False) -> None:
    """Print findings: the most likely cause first, and below each cause the findings that it explains.

    Findings that are not explained yet are explained by each other, without the events of the run.

    Args:
        console: console to print to.
        findings: findings of the run.
        broken: whether the run diverged, failed or was killed: without findings, it is not healthy either.
    """
    if not findings:
        healthy = () if broken else (("healthy", "green"), ": ")
        console.print(Text.assemble(*healthy, "no rule found a problem"))
        return
    from fieldwatch.health import diagnose  # noqa: PLC0415  at first use

    diagnoses = diagnose(findings)
    counted = ", ".join(f"{number} {name}{'s' * (number > 1)}" for name, number in count(findings).items() if number)
    console.print(Text.assemble((f"{len(findings)} finding{'s' if len(findings) > 1 else ''}", "bold"), f": {counted}"))
    events = {finding.label: finding.because_of for finding in findings}
    for number, diagnosis in enumerate(diagnoses):
        cause = diagnosis.cause
        subject = f" ({cause.subject})" if cause.subject else ""
        where = f"  {cause.rule}{subject} at step {cause.step}"
        first = f"  most likely cause, {cause.certainty}" if not number and cause.severity != "note" else ""
        console.print(Text.assemble((cause.severity, COLORS[cause.severity]), where, (first, "bold")), soft_wrap=True)
        before = events.get(cause.label) or cause.because_of
        follows = f"\nIt follows {before}." if before.startswith("event ") else ""
        console.print(Padding(Text(f"{cause.message}{follows}\n-> {cause.remedy}"), (0, 0, 0, 4)))
        if diagnosis.consequences:
            console.print(Padding(Text(f"explains: {_listed(diagnosis.consequences)}", style="dim"), (0, 0, 0, 4)))


def _listed(findings: Sequence[Finding]) -> str:
    """Return findings as a list, with repeated rules counted."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    return ", ".join(
        f"{members[0].label}{f' and {len(members) - 1} more' if len(members) > 1 else ''}"
        for members in by_rule.values()
    )


def verdict_of(diagnoses: Sequence[Diagnosis]) -> dict[str, Any] | None:
    """Return the most likely cause as JSON, with the labels of the findings that it explains; None if all is well."""
    if not diagnoses or diagnoses[0].severity == "note":
        return None
    first = diagnoses[0]
    cause = first.cause
    return {
        "rule": cause.rule,
        "subject": cause.subject,
        "step": cause.step,
        "severity": first.severity,
        "message": cause.message,
        "remedy": cause.remedy,
        "confidence": cause.confidence,
        "because_of": cause.because_of,
        "consequences": [finding.label for finding in first.consequences],
    }


def closer_look(folder: Path, findings: Sequence[Finding]) -> dict[str, str]:
    """Return the command that replays the step of a finding, as a line for `print_paths`.

    That is the first value that is not finite, or else the first of the most severe findings; empty if there is neither
    a warning nor an error.
    """
    from fieldwatch.health import replay_command  # noqa: PLC0415  at first use

    found = {name: [finding.step for finding in findings if finding.severity == name] for name in ("warning", "error")}
    not_finite = [finding.step for finding in findings if finding.rule == "NonFinite"]
    steps = not_finite or found["error"] or found["warning"]
    command = replay_command(folder, min(steps)) if steps else ""
    return {"look closer": command} if command else {}


def count(findings: Sequence[Finding]) -> dict[str, int]:
    """Count findings by severity, the most severe first; absent severities are 0."""
    return {name: sum(finding.severity == name for finding in findings) for name in reversed(COLORS)}


def print_paths(console: Console, paths: Mapping[str, str | Path]) -> None:
    """Print one line per path; long paths are not wrapped, so that they can be copied."""
    width = max(len(name) for name in paths)
    for name, path in paths.items():
        console.print(Text(f"  {name:<{width}}  {path}"), soft_wrap=True, highlight=False)


def print_json(answer: Mapping[str, Any]) -> None:
    """Write a JSON object to standard output."""
    text = orjson.dumps(answer, option=orjson.OPT_INDENT_2, default=str).decode()
    # orjson leaves these characters as they are; inside a JSON string their escapes mean the same.
    sys.stdout.write(_CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")
