"""Merging of repeated findings, and the facts about the crash that ended a run."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from fieldwatch.health import DamagedRecord, FellBack, Finding, findings_in
from fieldwatch.monitor import last_checkpoint
from fieldwatch.record import History, tags
from fieldwatch.report.account.json_values import as_list, as_mapping
from fieldwatch.report.account.run_status import RunStatus

GRAVITY = ("error", "warning", "note")
_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)+")
_USUAL = {
    "Loss": "Loss/total",
    "LearnedNothing": "Loss/total",
    "Gradient": "Gradients/total_norm",
    "Refused": "Guard/refused",
    "Step": "Time/step",
    "Stalled": "Time/step",
    "DataStarved": "Time/data",
    "Growth": "Model/size",
    "Population": "Model/size",
    "Memory": "Memory/allocated_MB",
    "OutOfMemory": "Memory/peak_MB",
}
"""Metric by prefix of the rule, for findings whose subject and message name no metric."""
_LARGEST = 200_000
"""Maximum number of bytes of a traceback; the end is kept, which names the error."""


def findings_on_record(events: Sequence[Mapping[str, Any]], history: History) -> list[Finding]:
    """Return the findings of the live run and those about damage, which only a reader of the record notices.

    Args:
        events: recorded events.
        history: rows that were read, with an event for each damaged file.
    """
    found = list(findings_in(events))
    told = {(finding.rule, finding.subject) for finding in found}
    seen = (*DamagedRecord()(history), *FellBack()(history))
    return [*found, *(finding for finding in seen if (finding.rule, finding.subject) not in told)]


def joined_findings(findings: Sequence[Finding], names: Sequence[str]) -> list[dict[str, Any]]:
    """Merge findings of the same rule, subject and severity; order by severity, then by step.

    Args:
        findings: findings in order of step.
        names: names of all recorded metrics; each finding lists those that it is about.
    """
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.rule, finding.subject, finding.severity), []).append(finding)
    told = [_joined(group, names) for group in groups.values()]
    return sorted(told, key=lambda one: (GRAVITY.index(one["severity"]), one["step"]))


def crash_of(folder: Path, status: RunStatus) -> dict[str, Any] | None:
    """Return the facts about the crash that ended the run; None if the run ended normally or is still running."""
    told = status.crash
    if told is None:
        return _unreported_death(folder, status) if status.state.broken else None
    place = folder / str(told.get("place", ""))
    bad = as_mapping(told.get("first_bad"))
    first_bad = {"step": bad.get("step"), "metrics": [str(one) for one in as_list(bad.get("metrics"))]} if bad else None
    return {
        "cause": str(told.get("cause", "unknown")),
        "error": str(told.get("error", "")),
        "step": told.get("step"),
        "first_bad": first_bad,
        "traceback": _text(place / "traceback.txt") or _text(place / "stacks.txt"),
        "folder": str(told.get("place", "")),
        "memory": _memory(place / "memory.json"),
        "resume": str(told.get("resume") or status.state.resume),
        "last_checkpoint": told.get("last_checkpoint"),
    }


def _joined(group: Sequence[Finding], names: Sequence[str]) -> dict[str, Any]:
    first = group[0]
    return {
        "rule": first.rule,
        "subject": first.subject,
        "severity": first.severity,
        "step": first.step,
        "last_step": max(one.step for one in group),
        "count": len(group),
        "message": first.message,
        "remedy": first.remedy,
        "metrics": _metrics(first, names),
    }


def _metrics(finding: Finding, names: Sequence[str]) -> list[str]:
    """Return the recorded metrics that a finding is about, according to its subject and its message."""
    words = set(_NAME.findall(finding.message)) | {finding.subject}
    words |= {word.rstrip(".") for word in words}
    told = [name for name in names if name in words]
    if finding.subject and not told:
        ends = (tags.COMPONENT.tag(finding.subject), tags.GROUP_NORM.tag(finding.subject))
        told = [name for name in names if name in ends]
    if not told:
        told = [name for start, name in _USUAL.items() if finding.rule.startswith(start) and name in names]
    return told[:8]


def _unreported_death(folder: Path, status: RunStatus) -> dict[str, Any]:
    """Return the facts about a crash without a crash report, taken from the heartbeat."""
    beat = status.beat
    word, _, said = beat.cause.partition(": ") if beat else ("", "", "")
    if status.state.word == "killed":
        word = "killed"
        said = status.state.detail
    when = f"; last heartbeat: {beat.when}, step {beat.step}, {beat.phase or 'between steps'}" if beat else ""
    return {
        "cause": word or status.state.word,
        "error": f"{said or 'no crash report was written; see log.txt'}{when}",
        "step": beat.step if beat else status.last,
        "first_bad": None,
        "traceback": "",
        "folder": "",
        "memory": None,
        "resume": status.state.resume,
        "last_checkpoint": last_checkpoint(folder, beat),
    }


def _memory(path: Path) -> str | None:
    text = _text(path)
    try:
        told = orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None
    verdict = as_mapping(as_mapping(told).get("verdict"))
    return " ".join(str(verdict[key]) for key in ("message", "remedy") if key in verdict) or None


def _text(path: Path) -> str:
    """Return a file's text, of a large one its end; empty where there is no such file."""
    if not path.is_file():
        return ""
    try:
        with path.open("rb") as file:
            file.seek(-min(_LARGEST, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
