"""Pages about something other than one run, in the form of a run's account, so that the same script draws them."""

import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Literal

from fieldwatch.base import moment
from fieldwatch.report.page.panels import Panel

Level = Literal["healthy", "notes", "findings", "failed", "running", "empty"]


def document(  # noqa: PLR0913  the parts of a page
    title: str,
    *,
    facts: Sequence[str],
    label: str,
    level: Level,
    headline: str,
    detail: str = "",
    findings: Sequence[Mapping[str, Any]] = (),
    phases: Sequence[Mapping[str, Any]] = (),
    marks: Sequence[Mapping[str, Any]] = (),
    series: Mapping[str, Mapping[str, Any]] | None = None,
    steps: tuple[int, int] | None = None,
    panels: Sequence[Panel],
) -> dict[str, Any]:
    """Return a page that is not the account of one run.

    Args:
        title: heading of the page.
        facts: short texts below the heading.
        label: kind of the page, such as "Comparison".
        level: color of the verdict.
        headline: verdict in a sentence.
        detail: further sentences.
        findings: findings, as events.
        phases: named ranges of steps, drawn behind the charts.
        marks: events, drawn above the charts.
        series: series of the charts, by name.
        steps: first and last step of all charts.
        panels: panels in reading order.
    """
    made = moment(time.time())
    first, last = steps or (0, None)
    return {
        "format": 1,
        "run": {
            "name": title,
            "said": [*facts, f"made {made}"],
            "first_step": first,
            "last_step": last,
        },
        "verdict": {"level": level, "label": label, "title": headline, "detail": detail},
        "findings": list(findings),
        "crash": None,
        "phases": list(phases),
        "marks": list(marks),
        "series": dict(series or {}),
        "panels": list(panels),
        "json_of": f"fieldwatch {metadata.version('fieldwatch')}, {made}",
    }
