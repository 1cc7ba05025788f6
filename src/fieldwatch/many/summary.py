"""Write the results of all scenes: summary.json for scripts, summary.csv for spreadsheets, report.html for people."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from fieldwatch.base import spreadsheet_cell, write_file
from fieldwatch.many.driver import SceneStatus
from fieldwatch.many.page import scenes_account
from fieldwatch.many.run_folder import json_of, read_run
from fieldwatch.report.page import report_page

_COLUMNS: Final = ("scene", "pipeline", "state", "tries", "causes", "resumed_from", "steps", "total_steps")
_SECONDS: Final = ("wall_seconds", "training_seconds")


def scene_summary(status: SceneStatus, measured: tuple[str, ...]) -> dict[str, Any]:
    """Return the full summary of one scene as plain JSON values.

    Args:
        status: status of the scene.
        measured: prefixes of the tags of its pipeline's quality metrics.
    """
    run = json_of(read_run(status.folder, measured))
    tries = [attempt.as_json() for attempt in status.attempts]
    return {
        "scene": status.scene.name,
        "pipeline": status.scene.pipeline,
        "state": status.state,
        "run_state": run["state"],
        "finished_earlier": status.finished_earlier,
        "command": " ".join(("fieldwatch", *status.scene.command(status.folder))),
        "run": str(status.folder),
        "console": str(status.console),
        "tries": tries,
        # The first attempt is not a resume, and step 0 or None means that there was no checkpoint to resume from.
        "resumed_from": [attempt["first"] for attempt in tries[1:] if attempt["first"]],
        "wall_seconds": round(sum(attempt["seconds"] for attempt in tries), 3),
        "training_seconds": round(run["training_seconds"], 3),
        "steps": run["steps"],
        "total_steps": run["total"],
        **{name: run[name] for name in ("metrics", "findings", "damage", "curve")},
    }


def write_summary(
    out: Path, statuses: Sequence[SceneStatus], measured: Mapping[str, tuple[str, ...]], exit_code: int
) -> Mapping[str, Path]:
    """Write the three files atomically, and return their paths under the keys report, summary and table.

    Args:
        out: output folder of all scenes.
        statuses: status of each scene.
        measured: prefixes of the tags of quality metrics, by pipeline.
        exit_code: exit code of the command.
    """
    scenes = [scene_summary(status, measured[status.scene.pipeline]) for status in statuses]
    # Curves are only plotted on the page; in the JSON file they would dominate the size.
    without_curves = [{name: value for name, value in scene.items() if name != "curve"} for scene in scenes]
    stored = {"exit_code": exit_code, "scenes": without_curves}
    contents = {
        "report": ("report.html", report_page(scenes_account(scenes)).encode()),
        "summary": ("summary.json", orjson.dumps(stored, option=orjson.OPT_INDENT_2) + b"\n"),
        "table": ("summary.csv", summary_table(scenes).encode()),
    }
    for name, data in contents.values():
        _replace(out / name, data)
    return {key: (out / name).absolute() for key, (name, _) in contents.items()}


def summary_table(scenes: Sequence[Mapping[str, Any]]) -> str:
    """Return a CSV table with one line per scene, and columns for all fields and metrics; unknown values are empty."""
    metrics = sorted({name for scene in scenes for name in scene["metrics"]})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, *_SECONDS, "findings", *metrics, "run"])
    for scene in scenes:
        causes = " | ".join(attempt["cause"] for attempt in scene["tries"] if attempt["cause"])
        facts = {**scene, "tries": len(scene["tries"]), "causes": causes}
        facts["resumed_from"] = " ".join(str(step) for step in scene["resumed_from"])
        cells = [spreadsheet_cell(facts[name]) for name in (*_COLUMNS, *_SECONDS)]
        values = [spreadsheet_cell(scene["metrics"].get(name)) for name in metrics]
        writer.writerow([*cells, len(scene["findings"]), *values, scene["run"]])
    return text.getvalue()


def _replace(path: Path, data: bytes) -> None:
    write_file(path, data)
