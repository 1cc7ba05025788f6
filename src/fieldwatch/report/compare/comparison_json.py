"""JSON of a comparison, for scripts."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from fieldwatch.report.compare.comparison import Comparison
from fieldwatch.report.compare.comparison_text import sentences, title
from fieldwatch.report.compare.keys import ABSENT
from fieldwatch.report.compare.side import Side


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison as plain JSON values; numbers that are not finite are null."""
    headline = comparison.headline
    # Scripts read these keys: they may be added to, but not renamed.
    document = {
        "verdict": {
            "title": title(comparison),
            "sentences": sentences(comparison),
            "best": headline.best_final if headline else None,
            "by": headline.name if headline else None,
        },
        "runs": [_run(comparison, side) for side in comparison.sides],
        "metrics": [
            {
                "name": metric.name,
                "better": metric.better,
                "better_is": metric.meaning.source,
                "best_final": metric.best_final or None,
                "best_ever": metric.best_ever or None,
                "runs": {run: asdict(figure) for run, figure in metric.figures.items()},
            }
            for metric in comparison.metrics
        ],
        "shared": comparison.shared,
        "not_in_all": comparison.partly,
        "aligned": {by: [asdict(point) for point in points] for by, points in comparison.points.items()},
        "config": comparison.config,
        "code": comparison.code,
        "environment": comparison.environment,
        "first_difference": [
            # asdict() has the fields only; these two are properties.
            {**asdict(pair), "identical": pair.identical, "sentence": pair.sentence}
            for pair in comparison.divergences
        ],
        "groups": [asdict(group) for group in comparison.groups],
        "significance": [asdict(test) for test in comparison.significance],
    }
    return plain_numbers(document)


def _run(comparison: Comparison, side: Side) -> dict[str, Any]:
    pace = comparison.paces[side.name]
    return {
        "name": side.name,
        "folder": str(side.folder),
        "kind": side.kind,
        "pipeline": side.pipeline or None,
        "state": side.state or None,
        "verdict": side.verdict or None,
        "rows": side.rows,
        "first_step": side.first,
        "last_step": side.last,
        **asdict(pace),
        "findings": [dict(finding) for finding in side.findings],
        "notes": side.notes,
    }


def plain_numbers(value: Any) -> Any:
    """Replace numbers that are not finite, and values of absent keys, by None at any depth."""
    if isinstance(value, Mapping):
        return {str(key): plain_numbers(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if value is ABSENT else value
