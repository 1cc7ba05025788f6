"""The verdict on a run, for tools that keep values of a run."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fieldwatch.record.manifest import RunState


def verdict_facts(state: RunState, severities: Iterable[str]) -> dict[str, Any]:
    """Return the verdict on a run.

    Args:
        state: state of the run.
        severities: severity of each of its findings: error, warning or note.

    Returns:
        ``level``, the word of the report as well: running, failed, findings, notes or healthy; ``state``; and the
        number of ``errors``, ``warnings`` and ``notes``.
    """
    found = finding_counts(severities)
    if state in ("failed", "diverged"):
        level = "failed"
    elif state == "running":
        level = "running"
    elif found["errors"] or found["warnings"]:
        level = "findings"
    else:
        level = "notes" if found["notes"] else "healthy"
    return {"level": level, "state": state, **found}


def finding_counts(severities: Iterable[str]) -> dict[str, int]:
    """Return the number of ``errors``, ``warnings`` and ``notes`` among the findings with these severities."""
    found = Counter(severities)
    return {"errors": found["error"], "warnings": found["warning"], "notes": found["note"]}
