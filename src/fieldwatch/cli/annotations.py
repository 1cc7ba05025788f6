"""Findings as annotations of GitHub Actions, which shows them at the top of a workflow run."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from fieldwatch.health import Finding
from fieldwatch.monitor import RunState
from fieldwatch.record import Terminal

_COMMANDS = {"note": "notice", "warning": "warning", "error": "error"}
_IN_TEXT = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTIES = {**_IN_TEXT, ":": "%3A", ",": "%2C"}


def print_annotations(
    console: Terminal, run: str, state: RunState, findings: Sequence[Finding], deaths: Sequence[Mapping[str, Any]]
) -> None:
    """Print a line with the state of a run, and an annotation for its failure and for each finding."""
    lines = [f"{run}: {state}"]
    if state.broken:
        lines.append(annotation("error", run, str(state)))
    lines += [
        annotation("error", f"{run} died", f"{death.get('cause', 'unknown')} ({death['place']})") for death in deaths
    ]
    for finding in findings:
        subject = f" ({finding.subject})" if finding.subject else ""
        title = f"{finding.rule}{subject} at step {finding.step} of {run}"
        lines.append(annotation(_COMMANDS[finding.severity], title, f"{finding.message}\n{finding.remedy}"))
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def annotation(command: str, title: str, message: str) -> str:
    """Return a workflow command; no text can end it or begin another one."""
    return f"::{command} title={_escaped(title, _IN_PROPERTIES)}::{_escaped(message, _IN_TEXT)}"


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(character, character) for character in text)
