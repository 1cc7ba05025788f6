"""Verdict at the top of the report: how the run went, what went wrong, what to do."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fieldwatch.base import number
from fieldwatch.monitor import RunState
from fieldwatch.record import History, tags
from fieldwatch.report.account.findings import EVENT, GRAVITY
from fieldwatch.report.account.run_status import RunStatus

_MOST_REPEATED = 3
"""Maximum number of findings that the verdict repeats."""
_TAIL = 20
"""The last value of the loss is the median of this fraction of the curve: one twentieth."""
_NOT_WELL = ("silent", "hung")
"""States of a run that has not ended and has stopped sending heartbeats."""


def verdict_of(
    status: RunStatus, findings: Sequence[Mapping[str, Any]], crash: Mapping[str, Any] | None, *, outcome: str = ""
) -> dict[str, str]:
    """Return the verdict.

    Args:
        status: state and progress of the run.
        findings: merged findings, most severe first.
        crash: crash that ended the run; None without one.
        outcome: change of the loss, in a sentence.
    """
    # A crash comes before any finding: it is the first thing that has to be dealt with.
    if status.state.broken:
        return _verdict("failed", _died(status, crash), _why(findings, crash))
    if status.last is None:
        started = "The run has started; its first step is not recorded yet."
        detail = "The run ended before its first step." if status.state.ended else started
        return _verdict("empty", "Nothing is recorded yet", detail)
    # Steps count from 0.
    done = status.last + 1
    steps = f"{done:,} of {status.planned:,} steps" if status.planned else f"{done:,} step{'s' if done > 1 else ''}"
    counted = _counted(findings)
    if not status.state.ended:
        return _open(status.state, steps, counted, _paragraphs(_advice(findings), outcome))
    ended = "interrupted" if status.state.word == "interrupted" else "finished"
    if not counted:
        return _verdict("healthy", f"Healthy: {ended} after {steps}, no rule found anything", outcome)
    # Notes need no action, so the change of the loss comes before them.
    if all(finding["severity"] == "note" for finding in findings):
        return _verdict("notes", f"Healthy: {ended} after {steps}, {counted}", _paragraphs(outcome, _advice(findings)))
    return _verdict(
        "findings", f"{ended.capitalize()} after {steps} with {counted}", _paragraphs(_advice(findings), outcome)
    )


def _open(state: RunState, steps: str, counted: str, detail: str) -> dict[str, str]:
    """Return the verdict for a run that has not ended."""
    word = state.word.capitalize()
    if state.word not in _NOT_WELL:
        return _verdict("running", f"{word}, {steps} done: {counted or 'no rule found anything so far'}", detail)
    # A silent run may only have lost its connection; a hung one needs someone to end it.
    level = "failed" if state.word == "hung" else "findings"
    return {**_verdict(level, f"{word}, {steps} done: {state.detail}", detail), "label": word}


def outcome_of(history: History) -> str:
    """Describe the change of the loss in a sentence; empty if none was recorded.

    The end is the median of the last steps, because a single step may have drawn a hard sample.
    """
    if tags.TOTAL not in history:
        return ""
    # All rows, not the points of the chart: thinning keeps extremes and spikes, which are no typical values.
    total = history[tags.TOTAL]
    finite = np.isfinite(total.values)
    known = total.values[finite]
    if len(known) < 2:
        return ""
    lowest = int(known.argmin())
    last = float(np.median(known[-max(len(known) // _TAIL, 1) :]))
    change = f"{tags.TOTAL} went from {number(known[0])} to {number(last)}"
    return f"{change} (lowest {number(known[lowest])} in step {int(total.steps[finite][lowest]):,})."


def _verdict(level: str, title: str, detail: str) -> dict[str, str]:
    return {"level": level, "title": title, "detail": detail}


def _paragraphs(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _counted(findings: Sequence[Mapping[str, Any]]) -> str:
    counts = {severity: sum(finding["severity"] == severity for finding in findings) for severity in GRAVITY}
    return ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count)


def _is_consequence(finding: Mapping[str, Any]) -> bool:
    """Return whether another finding explains this one."""
    because_of = str(finding.get("because_of") or "")
    return bool(because_of) and not because_of.startswith(EVENT)


def _died(status: RunStatus, crash: Mapping[str, Any] | None) -> str:
    word = status.state.word.capitalize()
    step = crash.get("step") if crash else status.last
    # "Diverged in step 49: diverged" says nothing more.
    cause = f": {crash['cause']}" if crash and crash["cause"] not in (status.state.word, "unknown") else ""
    if not isinstance(step, int):
        return word + cause
    return f"{word} in step {step:,}{cause}" if step >= 0 else f"{word} before the first step{cause}"


def _why(findings: Sequence[Mapping[str, Any]], crash: Mapping[str, Any] | None) -> str:
    parts = [crash["error"]] if crash else []
    if crash and crash["first_bad"]:
        bad = crash["first_bad"]
        parts.append(f"The first non-finite value is in step {bad['step']}: {', '.join(bad['metrics'][:4])}.")
    if crash and crash["memory"]:
        parts.append(crash["memory"])
    # A note, such as a slow step, is not the reason of a crash.
    return _paragraphs(*parts, _advice([finding for finding in findings if finding["severity"] != "note"]))


def _advice(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the messages and remedies of the most serious causes, the most likely one first."""
    causes = [one for one in findings if not _is_consequence(one)]
    if not causes:
        return ""
    worst = [one for one in causes if one["severity"] == causes[0]["severity"]][:_MOST_REPEATED]
    return _paragraphs(*(f"{one['rule']} at step {one['step']:,}: {one['message']} {one['remedy']}" for one in worst))
