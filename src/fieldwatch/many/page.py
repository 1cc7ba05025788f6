"""Comparison of all scenes in the form of a run's account, which the page's script draws."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from fieldwatch.base import duration, number
from fieldwatch.report.account import derived
from fieldwatch.report.page import Level, Panel, document, facts, group, lines, table

_GOOD: Final = frozenset({"healthy", "warnings"})
_BAD: Final = frozenset({"crashed", "refused", "diverged"})
_SCENES: Final = (
    ("scene", "scene", False),
    ("pipeline", "pipeline", False),
    ("state", "state", False),
    ("attempts", "attempts", True),
    ("resumed", "resumed at step", True),
    ("steps", "steps", True),
    ("time", "time", True),
    ("loss", "last loss", True),
    ("findings", "findings", True),
    ("folder", "folder", False),
)
_ATTEMPTS: Final = (
    ("number", "attempt", True),
    ("state", "result", False),
    ("cause", "cause", False),
    ("first", "from step", True),
    ("reached", "to step", True),
    ("seconds", "time", True),
)

Summary = Mapping[str, Any]


def scenes_account(scenes: Sequence[Summary]) -> dict[str, Any]:
    """Return the comparison of all scenes in the form of a run's account, for `write_page`.

    Links are relative to the folder of all scenes.

    Args:
        scenes: summaries as returned by `scene_summary`; their texts are untrusted.
    """
    states = sorted({scene["state"] for scene in scenes})
    words = {"findings": "with findings", "warnings": "with warnings"}
    counts = [f"{sum(scene['state'] == state for scene in scenes)} {words.get(state, state)}" for state in states]
    retries = sum(max(len(scene["tries"]) - 1, 0) for scene in scenes)
    wall = sum(scene["wall_seconds"] for scene in scenes)
    series = {
        _loss(scene): derived(
            np.array([step for step, _ in scene["curve"]], np.float64),
            np.array([value for _, value in scene["curve"]], np.float64),
            f"Total loss of {scene['scene']}.",
        )
        # An axis per pipeline: the number of steps differs by orders of magnitude between them.
        | {"axis": f"step of {scene['pipeline']}"}
        for scene in scenes
        if scene["curve"]
    }
    return document(
        f"{len(scenes)} scene{'s' * (len(scenes) != 1)}",
        facts=[f"{retries} retr{'y' if retries == 1 else 'ies'}", f"{duration(wall)} in total"],
        label="Scenes",
        level=_level(states),
        headline=", ".join(counts) or "No scene",
        findings=[
            {**finding, "rule": f"{scene['scene']}: {finding['rule']}"}
            for scene in scenes
            for finding in scene["findings"]
        ],
        series=series,
        panels=[_overview(scenes), *_losses(scenes), *_quality(scenes), *map(_details, scenes)],
    )


def _level(states: Sequence[str]) -> Level:
    """Return the most severe level among the states; a scene that did not end well counts as a finding."""
    if not states:
        return "empty"
    if _BAD.intersection(states):
        return "failed"
    return "healthy" if _GOOD.issuperset(states) else "findings"


def _loss(scene: Summary) -> str:
    return f"{scene['scene']}: total loss"


def _overview(scenes: Sequence[Summary]) -> Panel:
    rows = [
        {
            "scene": {"href": f"#{_anchor(scene)}", "text": scene["scene"]},
            "pipeline": scene["pipeline"],
            "state": scene["state"] + (" (earlier)" if scene["finished_earlier"] else ""),
            "attempts": len(scene["tries"]),
            "resumed": ", ".join(number(step) for step in scene["resumed_from"]),
            "steps": _steps(scene),
            "time": duration(scene["wall_seconds"]),
            "loss": scene["curve"][-1][1] if scene["curve"] else None,
            "findings": len(scene["findings"]),
            # The run folder lies in the folder of the page, so that the link also works after a move.
            "folder": {"href": f"{quote(PurePosixPath(scene['run']).name)}/", "text": "open"},
            "severity": "error" if scene["state"] in _BAD else "note" if scene["state"] in _GOOD else "warning",
        }
        for scene in scenes
    ]
    return table("Overview", _SCENES, rows, "One row per scene. Links are relative to the folder of this page.")


def _anchor(scene: Summary) -> str:
    """Return the id that the page's script gives to the panel of a scene."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", f"panel-scene-{scene['scene']}")


def _steps(scene: Summary) -> str:
    if scene["steps"] is None:
        return ""
    total = f" / {number(scene['total_steps'])}" if scene["total_steps"] else ""
    return number(scene["steps"]) + total


def _losses(scenes: Sequence[Summary]) -> Iterator[Panel]:
    """Yield one chart per pipeline, since losses are comparable only within a pipeline."""
    for pipeline, chosen in _by_pipeline(scenes):
        names = {_loss(scene): str(scene["scene"]) for scene in chosen if scene["curve"]}
        if names:
            yield lines(
                f"Loss: {pipeline}", list(names), "Total loss over the steps, one line per scene.", labels=names
            )


def _quality(scenes: Sequence[Summary]) -> Iterator[Panel]:
    """Yield one table of final metrics per pipeline, with a row per metric, so that scenes stand side by side."""
    for pipeline, chosen in _by_pipeline(scenes):
        measured = [scene for scene in chosen if scene["metrics"]]
        names = sorted({name for scene in measured for name in scene["metrics"]})
        if names:
            keys = [f"scene-{place}" for place in range(len(measured))]
            heads = [("metric", "metric", False)]
            heads += [(key, str(scene["scene"]), True) for key, scene in zip(keys, measured, strict=True)]
            rows = [
                {"metric": name} | {key: scene["metrics"].get(name) for key, scene in zip(keys, measured, strict=True)}
                for name in names
            ]
            yield table(f"Quality: {pipeline}", heads, rows, "Metrics at the end.")


def _by_pipeline(scenes: Sequence[Summary]) -> Iterator[tuple[str, list[Summary]]]:
    for pipeline in sorted({scene["pipeline"] for scene in scenes}):
        yield pipeline, [scene for scene in scenes if scene["pipeline"] == pipeline]


def _details(scene: Summary) -> Panel:
    name = scene["scene"]
    console = {"href": f"console/{quote(name, safe='')}.txt", "text": "console output"}
    about = [("command", scene["command"]), ("output", console), ("damage", scene["damage"])]
    attempts = [
        {
            **{key: attempt[key] for key in ("number", "state", "cause")},
            "first": attempt["first"],
            "reached": attempt["reached"],
            "seconds": duration(attempt["seconds"]),
        }
        for attempt in scene["tries"]
    ]
    parts = [facts("Scene", about, ""), table("Attempts", _ATTEMPTS, attempts, "")]
    return group(f"scene-{name}", name, "", parts, "")
