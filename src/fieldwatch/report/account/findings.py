"""Merging of repeated findings, and the facts about the crash that ended a run."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from fieldwatch.base.json_values import as_list, as_mapping
from fieldwatch.health import DamagedRecord, FellBack, Finding, findings_in
from fieldwatch.monitor import last_checkpoint
from fieldwatch.record import History, tags
from fieldwatch.report.account.run_status import RunStatus

GRAVITY = ("error", "warning", "note")
"""Severities, worst first."""
_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)+")
"""Tags of metrics within a message: words joined by slashes."""
_USUAL_METRICS = {
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
EVENT = "event "
"""Begin of ``because_of`` if an event, and no other finding, explains a finding."""
_MOST_TEXT = 200_000
"""Maximum number of bytes of a traceback; the end is kept, which names the error."""
_MOST_METRICS = 8
"""Maximum number of metrics per finding; a finding about every term would mark all charts."""


def findings_on_record(events: Sequence[Mapping[str, Any]], history: History) -> list[Finding]:
    """Return the findings of the live run and those about damage, which only a reader of the record notices.

    Args:
        events: recorded events.
        history: rows that were read, with an event for each damaged file.
    """
    recorded = list(findings_in(events))
    # A resumed run reads its own record: it may already have recorded the same damage.
    known = {(finding.rule, finding.subject) for finding in recorded}
    damage = (*DamagedRecord()(history), *FellBack()(history))
    return [*recorded, *(finding for finding in damage if (finding.rule, finding.subject) not in known)]


def joined_findings(findings: Sequence[Finding], names: Sequence[str]) -> list[dict[str, Any]]:
    """Merge findings of the same rule, subject and severity, and those of one rule with the same cause.

    Args:
        findings: explained findings: each cause, followed by its consequences.
        names: names of all recorded metrics; each finding lists those that it is about.

    Returns:
        The merged findings in the given order. ``because_of`` is the ``label`` of the cause, or an event.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        caused = finding.because_of and not finding.because_of.startswith(EVENT)
        key = (finding.rule, finding.severity, finding.because_of if caused else "", "" if caused else finding.subject)
        groups.setdefault(key, []).append(finding)
    return [_joined(group, names) for group in groups.values()]


def crash_of(folder: Path, status: RunStatus) -> dict[str, Any] | None:
    """Return the facts about the crash that ended the run; None if the run ended normally or is still running."""
    report = status.crash
    if report is None:
        return _unreported_death(folder, status) if status.state.broken else None
    crash_folder = folder / str(report.get("place", ""))
    bad = as_mapping(report.get("first_bad"))
    metrics = [str(metric) for metric in as_list(bad.get("metrics"))]
    return {
        "cause": str(report.get("cause", "unknown")),
        "error": str(report.get("error", "")),
        "step": report.get("step"),
        "first_bad": {"step": bad.get("step"), "metrics": metrics} if bad else None,
        # A process that hung or crashed in native code left no traceback, only the stacks of its threads.
        "traceback": _text(crash_folder / "traceback.txt") or _text(crash_folder / "stacks.txt"),
        "folder": str(report.get("place", "")),
        "memory": _memory(crash_folder / "memory.json"),
        "resume": str(report.get("resume") or status.state.resume),
        "last_checkpoint": report.get("last_checkpoint"),
    }


def _joined(group: Sequence[Finding], names: Sequence[str]) -> dict[str, Any]:
    first = group[0]
    return {
        "rule": first.rule,
        "subject": first.subject,
        "severity": first.severity,
        "step": first.step,
        "last_step": max(finding.step for finding in group),
        "count": len(group),
        "message": first.message,
        "remedy": first.remedy,
        "metrics": _metrics(first, names),
        "label": first.label,
        "because_of": first.because_of,
        "confidence": first.confidence,
    }


def _metrics(finding: Finding, names: Sequence[str]) -> list[str]:
    """Return the recorded metrics that a finding is about, according to its subject and its message."""
    words = set(_NAME.findall(finding.message)) | {finding.subject}
    # A metric at the end of a sentence is followed by a period, which tags may also contain.
    words |= {word.rstrip(".") for word in words}
    metrics = [name for name in names if name in words]
    if finding.subject and not metrics:
        # Subjects are often short: the name of a loss term or of a parameter group.
        candidates = (tags.COMPONENT.tag(finding.subject), tags.GROUP_NORM.tag(finding.subject))
        metrics = [name for name in names if name in candidates]
    if not metrics:
        metrics = [name for start, name in _USUAL_METRICS.items() if finding.rule.startswith(start) and name in names]
    return metrics[:_MOST_METRICS]


def _unreported_death(folder: Path, status: RunStatus) -> dict[str, Any]:
    """Return the facts about a crash without a crash report, taken from the heartbeat."""
    beat = status.beat
    cause, _, detail = beat.cause.partition(": ") if beat else ("", "", "")
    # A process cannot record its own SIGKILL: the heartbeat of a killed run has no cause.
    if status.state.word == "killed":
        cause = "killed"
        detail = status.state.detail
    when = f"; last heartbeat: {beat.when}, step {beat.step}, {beat.phase or 'between steps'}" if beat else ""
    return {
        "cause": cause or status.state.word,
        "error": f"{detail or 'no crash report was written; see log.txt'}{when}",
        "step": beat.step if beat else status.last,
        "first_bad": None,
        "traceback": "",
        "folder": "",
        "memory": None,
        "resume": status.state.resume,
        "last_checkpoint": last_checkpoint(folder, beat),
    }


def _memory(path: Path) -> str | None:
    """Return the verdict on a failed allocation; None if none was written, or if it was cut off by the crash."""
    text = _text(path)
    try:
        allocation = orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None
    verdict = as_mapping(as_mapping(allocation).get("verdict"))
    return " ".join(str(verdict[key]) for key in ("message", "remedy") if key in verdict) or None


def _text(path: Path) -> str:
    """Return the text of a file, only the end of a large one; empty if the file is missing or cannot be read."""
    if not path.is_file():
        return ""
    try:
        with path.open("rb") as file:
            file.seek(-min(_MOST_TEXT, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
