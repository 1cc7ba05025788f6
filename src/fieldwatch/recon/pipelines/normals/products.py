"""Results of a trained normals run: mesh, images of it and of every view, poses, metrics."""

import csv
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch.files import output_path, spreadsheet_cell, whole_file
from fieldwatch.recon.data import write_video
from fieldwatch.recon.mesh import MeshRenderer, Triangles, error_colored, mesh_still, turntable_cameras, write_mesh
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.evaluate import NormalsEvaluation, align_mesh, evaluate_surface
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.pictures import save_array, save_picture, sheet_of
from fieldwatch.recon.pipelines.normals.pose_accuracy import PoseErrors
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.world import pose_in_world

RATE = 24.0
"""Frames per second of the turntable video."""
SIZE = 480
"""Width and height of the video and of each panel of the still image, in pixels."""
ERROR_SCALE = 0.005
"""Distance from the ground truth of the top color, as a fraction of its diameter."""


def write_products(  # noqa: PLR0913  the trained model, the output folder, its evaluation, and the video
    config: NormalsConfig,
    scene: NormalsScene,
    model: NormalsModel,
    folder: Path,
    *,
    evaluation: NormalsEvaluation | None = None,
    seconds: float = 4.0,
    stop_point: Callable[[], object] = lambda: None,
) -> Mapping[str, Path]:
    """Write all results of a finished run and return their paths by kind.

    `mesh.ply` and `mesh.glb` are in the world frame of the dataset. `mesh.png` shows the mesh from four sides,
    `turntable.mp4` is a video around it, `mesh_error.png` shows its distance from the ground truth if that is known.
    `normals.png` shows every view: observed normals, rendered normals, and the angle between them. `poses.npy` contains
    `world_from_camera` of all training views in the frame of the scene's sphere, `poses.json` the same with names,
    intrinsics and errors, and also in the world frame. `metrics.json` contains all metrics, `metrics.csv` one row per
    view.

    Mesh files are omitted if the field has no zero crossing; `metrics.json` then has `Eval/mesh_faces` 0.

    Args:
        config: settings of the run.
        scene: training data.
        model: trained model.
        folder: output folder, created if missing; existing files are replaced.
        evaluation: evaluation of this model with its mesh; computed if None or without a mesh.
        seconds: length of the video; 0 writes none.
        stop_point: called between parts of the work; may raise to abort.

    Raises:
        OSError: a file cannot be written.
        MeshError: the field is not finite somewhere.
    """
    if evaluation is None or evaluation.surface is None:
        evaluation = evaluate_surface(model, scene, config, stop_point=stop_point)
    paths = {
        "normals": save_picture(output_path(folder, "normals.png"), sheet_of(evaluation.strips)),
        **_write_poses(scene, model.poses().detach().double().cpu(), evaluation.poses, folder),
        **_write_figures(evaluation, folder),
    }
    surface = evaluation.surface
    # Images and tables do not need a surface; everything below does.
    if surface is None or surface.empty:
        return paths
    stop_point()
    mesh = surface.in_world(scene)
    # 0 for lengths below half a frame, which writes no video.
    frames = round(seconds * RATE)
    paths |= _write_meshes(scene, evaluation, mesh, folder)
    if frames:
        paths["turntable"] = write_film(
            mesh, output_path(folder, "turntable.mp4"), frames, upwards(scene), stop_point=stop_point
        )
    return paths


def upwards(scene: NormalsScene) -> tuple[float, float, float]:
    """Return the mean of the cameras' upward directions, or z if they cancel out."""
    # The y axis of OpenCV cameras points down.
    up = -torch.stack([camera.world_from_camera[:3, 1].double().cpu() for camera in scene.maps.cameras]).mean(0)
    # The directions may cancel out, for example if half of the cameras are upside down.
    x, y, z = up.tolist() if float(up.norm()) > 1e-3 else (0.0, 0.0, 1.0)
    return x, y, z


def write_film(
    mesh: Triangles,
    path: Path,
    frames: int,
    up: tuple[float, float, float],
    *,
    stop_point: Callable[[], object] = lambda: None,
) -> Path:
    """Write a clay-shaded video around a mesh; ``stop_point`` is called before each frame and may raise to abort."""
    cameras = turntable_cameras(mesh, frames, SIZE, up=up)
    renderer = MeshRenderer(mesh)

    def rendered_frames() -> Iterator[UInt8[Tensor, "3 height width"]]:
        for camera in cameras:
            stop_point()
            yield torch.from_numpy(renderer.render(camera, shading="clay")).permute(2, 0, 1)

    return write_video(path, rendered_frames(), rate=RATE)


def _write_meshes(scene: NormalsScene, evaluation: NormalsEvaluation, mesh: Triangles, folder: Path) -> dict[str, Path]:
    up = upwards(scene)
    paths = {
        "mesh": write_mesh(output_path(folder, "mesh.ply"), mesh),
        "mesh_glb": write_mesh(output_path(folder, "mesh.glb"), mesh),
        "still": save_picture(output_path(folder, "mesh.png"), mesh_still(mesh, size=SIZE, up=up)),
    }
    mesh_evaluation = evaluation.against_truth
    surface = evaluation.surface
    if mesh_evaluation is not None and surface is not None:
        # In units of the top color, which `error_colored` expects in [0, 1].
        errors = mesh_evaluation.vertex_errors / mesh_evaluation.diameter / ERROR_SCALE
        colored = error_colored(align_mesh(surface.mesh, evaluation.poses), errors, 1.0)
        paths["mesh_error"] = save_picture(output_path(folder, "mesh_error.png"), mesh_still(colored, size=SIZE, up=up))
    return paths


def _write_poses(
    scene: NormalsScene, poses: Float[Tensor, "views 4 4"], errors: PoseErrors | None, folder: Path
) -> dict[str, Path]:
    """Write poses as an array, and as a JSON table with everything that another tool needs."""
    # Both frames are written: training uses the scene's sphere, other tools use the world.
    world = pose_in_world(poses, scene)
    views: list[dict[str, Any]] = []
    for row_index, number in enumerate(scene.train):
        camera = scene.maps.views[number].camera
        row: dict[str, Any] = {
            name: getattr(camera, name) for name in ("name", "width", "height", "fx", "fy", "cx", "cy")
        }
        row |= {"unit_from_camera": poses[row_index].tolist(), "world_from_camera": world[row_index].tolist()}
        if errors is not None:
            row |= {
                "rotation_error": float(errors.rotations[row_index]),
                "position_error": float(errors.positions[row_index]),
            }
        views.append(row)
    table: dict[str, Any] = {
        "axes": "OpenCV: x right, y down, z forward",
        "world_from_unit": scene.maps.world_from_unit.double().tolist(),
        "views": views,
    }
    if errors is not None:
        change = errors.alignment
        table["data_from_learned"] = {
            "scale": change.scale,
            "rotation": change.rotation.tolist(),
            "translation": change.translation.tolist(),
        }
    return {
        "poses": save_array(output_path(folder, "poses.npy"), poses.numpy()),
        "poses_table": _write(output_path(folder, "poses.json"), _json(table)),
    }


def _write_figures(evaluation: NormalsEvaluation, folder: Path) -> dict[str, Path]:
    rows = [row.row() for row in evaluation.rows]
    stream = StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    # `spreadsheet_cell` escapes names that a spreadsheet would interpret as formulas.
    writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
    against = evaluation.against_truth
    figures = {"metrics": evaluation.metrics, "mesh": None if against is None else against.figures, "views": rows}
    return {
        "metrics": _write(output_path(folder, "metrics.json"), _json(figures)),
        "metrics_table": _write(output_path(folder, "metrics.csv"), stream.getvalue().encode()),
    }


def _json(values: Mapping[str, Any]) -> bytes:
    return orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def _write(path: Path, data: bytes) -> Path:
    with whole_file(path) as draft:
        draft.write_bytes(data)
    return path
