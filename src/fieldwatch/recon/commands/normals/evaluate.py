"""Evaluation of normals runs for ``fieldwatch eval``."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from rich.table import Table

from fieldwatch.files import output_names, output_path, spreadsheet_cell, whole_file, write_file
from fieldwatch.pipeline import EvaluationRequest, Scores
from fieldwatch.recon.commands.normals.job import quality_table
from fieldwatch.recon.mesh import MeshError, MeshEvaluation, evaluate_mesh
from fieldwatch.recon.pipelines.normals import (
    NormalsEvaluation,
    NormalsScene,
    StoredNormalsRun,
    align_mesh,
    camera_in_world,
    evaluate_surface,
    mesh_in_world,
    normal_colors,
    open_run,
    save_cut_out,
    save_picture,
    sheet_of,
)


def evaluate(request: EvaluationRequest) -> Scores:
    """Evaluate a checkpoint on training and held-out views, and its mesh.

    Raises:
        InputError: the run cannot be opened, or the files cannot be written.
    """
    stored = open_run(request.run, request.checkpoint, device=request.device)
    folder = request.folder(stored.step)
    pictures = output_path(folder, "normals")
    names = output_names(stored.scene.maps.names, ".png")

    # Pictures are written view by view: all of them together may not fit into memory.
    def save_view(sight: Any) -> None:
        rendered = sight.rendered
        save_cut_out(output_path(pictures, names[sight.number]), normal_colors(rendered.camera_normals), rendered.mask)

    with request.console.status("rendering and evaluating") as status:
        evaluation = evaluate_surface(stored.model, stored.scene, stored.config, on_view=save_view)
        status.update("measuring the mesh by the DiLiGenT-MV protocol")
        benchmark = diligent(stored, evaluation)
        files = {"normals": pictures, **write_files(stored, evaluation, benchmark, folder)}
    tables = [quality_table(evaluation.metrics)]
    if benchmark is not None:
        tables.append(benchmark_table(benchmark))
    return Scores(
        step=stored.step,
        metrics=evaluation.metrics,
        headline=f"{len(evaluation.rows)} views",
        details={"diligent": None if benchmark is None else benchmark.figures},
        files=files,
        display=tables,
    )


def diligent(stored: StoredNormalsRun, found: NormalsEvaluation) -> MeshEvaluation | None:
    """Compare the mesh with the true one by the DiLiGenT-MV protocol: first hits of all cameras inside their masks.

    Lengths are in world units (millimeters in DiLiGenT-MV). Learned poses are determined up to a similarity: the mesh
    is moved by the similarity that aligns the cameras with those of the data.

    Returns:
        None if there is no ground truth, the surface is empty, or the cameras see nothing of it inside the masks.
    """
    scene, surface = stored.scene, found.surface
    if scene.truth is None or surface is None or surface.empty:
        return None
    cameras = [camera_in_world(camera, scene) for camera in scene.maps.cameras]
    masks = [view.mask.cpu().numpy() for view in scene.maps.views]
    mesh, truth = (mesh_in_world(each, scene) for each in (align_mesh(surface.mesh, found.poses), scene.truth))
    try:
        return evaluate_mesh(mesh, truth, style="diligent", cameras=cameras, masks=masks)
    except MeshError:
        # No silhouette overlaps its mask: nothing to measure. Any other error is a bug.
        if found.metrics.get("Eval/iou", 0.0) == 0:
            return None
        raise


def write_files(
    stored: StoredNormalsRun, found: NormalsEvaluation, benchmark: MeshEvaluation | None, folder: Path
) -> dict[str, Path]:
    """Write tables and pictures; return the files by content."""
    rows = [row.row() for row in found.rows]
    figures: Mapping[str, Any] = {
        "step": stored.step,
        "iteration": round(stored.scene.schedule.iteration(stored.step)),
        "metrics": found.metrics,
        "mesh": None if found.against_truth is None else found.against_truth.figures,
        "diligent": None if benchmark is None else benchmark.figures,
        "poses": pose_rows(stored.scene, found),
        "views": rows,
    }
    data = orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n"
    per_view = output_path(folder, "per_view.csv")
    with whole_file(per_view) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        # Names of views come from the data: no cell may start a spreadsheet formula.
        writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
    return {
        "per view": per_view,
        "metrics": write_file(output_path(folder, "metrics.json"), data),
        "observed, rendered, error": save_picture(output_path(folder, "normals.png"), sheet_of(found.strips)),
    }


def pose_rows(scene: NormalsScene, found: NormalsEvaluation) -> list[dict[str, Any]] | None:
    """Return the errors of the learned poses after the best similarity alignment; None if poses were not learned."""
    if found.poses is None:
        return None
    errors = torch.stack([found.poses.rotations, found.poses.positions], 1).tolist()
    names = (scene.maps.names[number] for number in scene.train)
    return [
        {"view": name, "rotation_error": rotation, "position_error": position, "position_error_world": far}
        for name, (rotation, position), far in zip(
            names, errors, (found.poses.positions * scene.maps.scale).tolist(), strict=True
        )
    ]


def benchmark_table(found: MeshEvaluation) -> Table:
    """Return a table of the mesh errors in world units."""
    table = Table(title="mesh, DiLiGenT-MV's protocol (world units)", title_justify="left", show_header=False)
    table.add_row("accuracy (mesh to truth)", f"{found.accuracy:.4g}")
    table.add_row("completeness (truth to mesh)", f"{found.completeness:.4g}")
    table.add_row("Chamfer (their mean)", f"{found.chamfer:.4g}", f"{found.chamfer_percent:.3f} % of the diameter")
    for score in found.scores:
        table.add_row(f"F-score within {score.threshold:.3g}", f"{100 * score.f_score:.2f} %")
    return table
