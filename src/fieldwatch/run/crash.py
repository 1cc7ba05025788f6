"""What is left behind when a run ends badly: one folder that says when, where and why."""

import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fieldwatch.health import Finding
from fieldwatch.record import History, versions

ROWS = 512


def write_crash(  # noqa: PLR0913  one argument per thing that is kept
    folder: Path,
    *,
    error: BaseException,
    step: int,
    history: History,
    findings: Sequence[Finding],
    facts: Mapping[str, Any],
) -> Path:
    """Write ``crash/<time>/``: the traceback, the last rows of every metric, the first bad step, the findings.

    Returns:
        The folder that was written.
    """
    place = folder / "crash" / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    place.mkdir(parents=True)
    (place / "traceback.txt").write_text("".join(traceback.format_exception(error)))
    report = {
        "error": f"{type(error).__name__}: {error}",
        "step": step,
        "first_bad": first_bad(history),
        "refusals": list(history.events("refusal"))[-20:],
        "findings": [finding.as_event() for finding in findings],
        "versions": versions(),
        **facts,
    }
    (place / "crash.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2, default=str))
    with (place / "rows.jsonl").open("wb") as file:
        for name in history.names():
            series = history[name].last(ROWS)
            values = [value if np.isfinite(value) else str(value) for value in series.values.tolist()]
            file.write(orjson.dumps({"metric": name, "steps": series.steps.tolist(), "values": values}) + b"\n")
    return place


def first_bad(history: History) -> dict[str, Any] | None:
    """The first step in the kept history with a value that is not finite, and the metrics that were not."""
    bad: dict[int, list[str]] = {}
    for name in history.names():
        series = history[name]
        wrong = np.flatnonzero(~np.isfinite(series.values))
        if len(wrong):
            bad.setdefault(int(series.steps[wrong[0]]), []).append(name)
    return {"step": min(bad), "metrics": bad[min(bad)]} if bad else None
