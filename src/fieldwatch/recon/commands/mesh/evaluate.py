"""``fieldwatch mesh evaluate MESH --gt TRUTH``: compare a mesh with the ground truth."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from fieldwatch.cli.kit import BadInput, Terminal, check_writable, print_json, print_paths, read_flags, reading_input
from fieldwatch.files import output_path, whole_file, write_file
from fieldwatch.recon.commands.mesh.flags import MeshComparisonFlags
from fieldwatch.recon.data import PhotoSet, SolidScene
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import (
    MeshEvaluation,
    StyleLengths,
    Triangles,
    error_colored,
    error_histogram,
    error_scale,
    evaluate_mesh,
    implicit_surface,
    read_mesh,
    write_mesh,
)
from fieldwatch.recon.pipelines.splats import prepare_scene, stored_config

BUILT_IN = "built-in"
LOW, HIGH = (-1.7, -1.7, -0.2), (1.7, 1.7, 1.1)
"""Corners of the box around the built-in scene."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(MeshComparisonFlags, prog="fieldwatch mesh evaluate", arguments=arguments)
    if chosen.samples < 1 or chosen.resolution < 8:
        raise BadInput(
            f"--samples must be at least 1, got {chosen.samples}, and --resolution at least 8, got {chosen.resolution}"
        )
    console = Terminal(stderr=chosen.json)
    with reading_input(), console.status("reading") as status:
        folder = chosen.out or chosen.mesh.expanduser().parent
        check_writable(folder)
        mesh = read_mesh(chosen.mesh)
        truth = true_mesh(chosen)
        cameras, masks = visible_cameras(chosen)
        status.update("measuring")
        evaluation = evaluate_mesh(
            mesh,
            truth,
            align=chosen.align,
            thresholds=chosen.threshold or None,
            style=chosen.style,
            cameras=cameras,
            masks=masks,
            samples=chosen.samples,
            lengths=StyleLengths(spacing=chosen.spacing, cap=chosen.cap),
            seed=chosen.seed,
        )
        files = write_files(evaluation, chosen, folder)
    paths = {name: path.absolute() for name, path in files.items()}
    if chosen.json:
        print_json({**about(chosen), **evaluation.figures, "files": paths})
        return 0
    print_evaluation(console, evaluation)
    print_paths(console, paths)
    return 0


def about(chosen: MeshComparisonFlags) -> dict[str, Any]:
    """Return the inputs of the comparison, for the record."""
    return {
        "mesh": str(chosen.mesh),
        "truth": chosen.gt,
        "visible_from": chosen.visible_from and str(chosen.visible_from),
    }


def true_mesh(chosen: MeshComparisonFlags) -> Triangles:
    """Read the ground truth, or extract the surface of the built-in scene.

    Raises:
        MeshError: the file cannot be read.
    """
    if chosen.gt != BUILT_IN:
        return read_mesh(chosen.gt)
    # The built-in scene has an exact distance function: its mesh is exact up to the grid.
    scene = SolidScene()
    return implicit_surface(
        lambda points: scene.distance(torch.from_numpy(points)).numpy(),
        np.array(LOW),
        np.array(HIGH),
        resolution=chosen.resolution,
    )


def visible_cameras(chosen: MeshComparisonFlags) -> tuple[tuple[Camera, ...] | None, list[np.ndarray | None] | None]:
    """Return the cameras of the run that --visible-from names, and the masks of its photos if the style needs them.

    Raises:
        ValueError, OSError: there is no such run, or its photos can no longer be read.
    """
    if chosen.visible_from is None:
        return None, None
    photos = prepare_scene(stored_config(chosen.visible_from)).photos
    # Only the DiLiGenT protocol restricts rays to the masks.
    masks = [mask_of(photos, index) for index in range(len(photos.cameras))] if chosen.style == "diligent" else None
    return photos.cameras, masks


def mask_of(photos: PhotoSet, index: int) -> np.ndarray | None:
    """Return the pixels that show the object (inside its mask, and opaque); None without mask and alpha."""
    photo = photos[index]
    masks = [mask.numpy() > 127 for mask in (photo.mask, photo.alpha) if mask is not None]
    return np.logical_and.reduce(masks) if masks else None


def write_files(evaluation: MeshEvaluation, chosen: MeshComparisonFlags, folder: Path) -> dict[str, Path]:
    """Write the colored mesh, the histogram and the figures; return the files by content."""
    stem = chosen.mesh.stem
    names = {"colored": "error.ply", "histogram": "errors.png", "figures": "evaluation.json"}
    colored, histogram, figures = (output_path(folder, f"{stem}_{name}") for name in names.values())
    write_mesh(colored, error_colored(evaluation.aligned, evaluation.vertex_errors, error_scale(evaluation)))
    with whole_file(histogram) as draft:
        title = f"{chosen.mesh.name} against {Path(chosen.gt).name}"
        Image.fromarray(error_histogram(evaluation, title=title)).save(draft, "PNG")
    write_file(figures, orjson.dumps({**about(chosen), **evaluation.figures}, option=orjson.OPT_INDENT_2))
    return {"error-colored mesh": colored, "histogram": histogram, "figures": figures}


def print_evaluation(console: Console, evaluation: MeshEvaluation) -> None:
    """Print the figures as two small tables."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    # Relative to the diameter of the ground truth: comparable between scenes of any unit.
    percent = 100 / evaluation.diameter
    for name, value in (
        ("accuracy (mesh to truth)", evaluation.accuracy),
        ("completeness (truth to mesh)", evaluation.completeness),
        ("Chamfer (their mean)", evaluation.chamfer),
        ("farthest from the truth", evaluation.worst_accuracy),
        ("farthest from the mesh", evaluation.worst_completeness),
    ):
        table.add_row(name, f"{value:.5g}", f"{percent * value:.3g} % of the diameter")
    table.add_row(
        "normal consistency",
        f"{evaluation.normal_consistency:.4f}",
        f"{100 * evaluation.facing_alike:.1f} % have the same orientation",
    )
    console.print(table, highlight=False)
    scores = Table("within", "precision", "recall", "F-score", box=None, pad_edge=False, padding=(0, 2))
    for score in evaluation.scores:
        percentages = (f"{100 * value:.2f} %" for value in (score.precision, score.recall, score.f_score))
        scores.add_row(f"{score.threshold:.4g}", *percentages)
    console.print(scores, highlight=False)
    if evaluation.align != "none":
        change = evaluation.alignment
        moved_by = ", ".join(f"{value:.4g}" for value in change.translation.tolist())
        console.print(f"aligned ({evaluation.align}): scale {change.scale:.6g}, moved by ({moved_by})", highlight=False)
