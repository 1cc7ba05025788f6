"""The result of a replay in the form of an account, which the report's script draws."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldwatch.base import duration
from fieldwatch.report.page import Panel, document
from fieldwatch.report.replay.panels import (
    Series,
    difference_panel,
    equality_panel,
    groups_panel,
    memory_panel,
    not_finite_panel,
    passes_panel,
    samples_panel,
    terms_panel,
)
from fieldwatch.report.replay.sentences import Result, equality_sentence, findings_of, start_sentence, verdict_of


def replay_account(result: Result) -> dict[str, Any]:
    """Return the result of a replay in the form of a run's account, for `fieldwatch.draw`.

    Args:
        result: result of a replay; with a second result under ``against``, the account shows their difference.
    """
    series: Series = {}
    panels: list[Panel] = [
        not_finite_panel(result),
        passes_panel(result, series),
        terms_panel(result),
        samples_panel(result),
        groups_panel(result, series),
        memory_panel(result),
        equality_panel(result),
    ]
    other: Mapping[str, Any] | None = result.get("against")
    if other is not None:
        panels.insert(0, difference_panel(result, other))
    level, title = verdict_of(result)
    return document(
        f"{Path(result['run']).name}, step {result['step']}",
        facts=[start_sentence(result), f"in {duration(result['seconds'])}"],
        label="Replay",
        level=level,
        headline=title,
        detail=equality_sentence(result["equality"]),
        findings=findings_of(result),
        series=series,
        steps=(result["step"], result["step"]),
        panels=panels,
    )
