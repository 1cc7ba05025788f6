"""Record of an evaluation: metrics and images in the run, and a table of the views in the run folder."""

import csv
from pathlib import Path

import orjson

from fieldwatch import Run
from fieldwatch.files import output_path, spreadsheet_cell, whole_file
from fieldwatch.recon.pipelines.splats.evaluation import Evaluation
from fieldwatch.recon.pipelines.splats.pictures import COMPARED, Picture, as_picture, error_picture, sheet, strip
from fieldwatch.recon.pipelines.splats.scene import Scene

FOLDER = "evaluations"
"""Subfolder of the run folder with the tables."""


def record_evaluation(run: Run, evaluation: Evaluation, scene: Scene, position: int) -> Path:
    """Record the metrics and images of an evaluation, write the table of its views, and return the table's path.

    Args:
        run: current run.
        evaluation: evaluation to record.
        scene: scene with the evaluated photos.
        position: number of finished steps.
    """
    run.record(evaluation.metrics, position=position)
    scores = {score.name: score.psnr for score in evaluation.rows}
    run.event("sample_scores", metric="Test/psnr", better="higher", values=scores)
    run.image("Test/worst_views", worst_views(evaluation, scene), position)
    run.image("Test/depth", evaluation.sample.depth, position)
    run.image("Test/normals", evaluation.sample.normal, position)
    return write_table(output_path(run.folder, FOLDER), evaluation, position)


def worst_views(evaluation: Evaluation, scene: Scene) -> Picture:
    """Return a picture with photo, rendering and error of the worst views, the worst first."""
    rows: list[Picture] = []
    for view in evaluation.worst:
        photo = scene.photo_view(view.index).image.cpu()
        panels = [as_picture(photo), as_picture(view.image), error_picture(photo, view.image)]
        rows.append(strip(panels, COMPARED, f"{view.score.name}: {view.score.psnr:.2f} dB"))
    return sheet(rows)


def write_table(folder: Path, evaluation: Evaluation, position: int) -> Path:
    """Write `step_<position>.csv` with one row per view, and `metrics.json`; return the path of the table."""
    rows = [score.row() for score in evaluation.rows]
    table = output_path(folder, f"step_{position}.csv")
    with whole_file(table) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
    # Overwritten by every evaluation: the tables keep the history.
    about = {"step": position, "held_out": evaluation.held_out, "views": len(rows)}
    with whole_file(output_path(folder, "metrics.json")) as draft:
        draft.write_bytes(orjson.dumps(about | {"metrics": evaluation.metrics}, option=orjson.OPT_INDENT_2) + b"\n")
    return table
