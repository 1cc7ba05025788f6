"""``fieldwatch mesh quality MESH``: measure a mesh, and grade it with reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fieldwatch.cli.kit import Terminal, print_json, print_paths, read_flags, reading_input
from fieldwatch.recon.commands.mesh.flags import QualityFlags
from fieldwatch.recon.data import read_gaussians
from fieldwatch.recon.mesh import MeshGrade, MeshQuality, gaussian_fit, grade_mesh, mesh_quality, read_mesh

GOOD = 75
"""Lowest score of GOOD; from there on the exit code is 0."""

GROUPS = {
    "Topology": "n_vertices n_faces n_edges is_watertight is_winding_consistent faces_outward n_boundary_edges "
    "n_non_manifold_edges n_duplicate_vertices n_isolated_vertices n_pieces",
    "Quality": "min_triangle_area max_triangle_area avg_triangle_area std_triangle_area n_degenerate_triangles "
    "min_aspect_ratio max_aspect_ratio avg_aspect_ratio std_aspect_ratio n_low_quality_triangles min_edge_length "
    "max_edge_length avg_edge_length std_edge_length edge_length_uniformity",
    "Geometry": "bbox_volume bbox_diagonal bbox_extent_x bbox_extent_y bbox_extent_z bbox_aspect_ratio surface_area "
    "file_size_mb",
    "Surface": "avg_normal_consistency n_flipped_normals n_degenerate_normals avg_vertex_valence min_vertex_valence "
    "max_vertex_valence",
}
"""Fields of `MeshQuality` by group of the table, in the order of the rows."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(QualityFlags, prog="fieldwatch mesh quality", arguments=arguments)
    with reading_input():
        mesh = read_mesh(chosen.mesh)
        quality = mesh_quality(mesh, file=chosen.mesh.expanduser())
        fit: dict[str, float | None] = {}
        if chosen.gaussians is not None:
            fit = gaussian_fit(mesh, read_gaussians(chosen.gaussians).means.numpy().astype(np.float64))
    grade = grade_mesh(quality, should_close=not chosen.open)
    if chosen.json:
        tags = quality.metrics | fit
        print_json({"mesh": chosen.mesh, "grade": asdict(grade), "quality": asdict(quality), "metrics": tags})
    else:
        console = Terminal()
        print_quality(console, quality, fit)
        print_grade(console, grade, chosen.mesh)
    return 0 if grade.score >= GOOD else 1


def print_quality(console: Console, quality: MeshQuality, fit: Mapping[str, float | None]) -> None:
    """Print all figures, by group."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_column(justify="right")
    for group, names in GROUPS.items():
        for number, name in enumerate(names.split()):
            table.add_row("" if number else group, name, formatted(getattr(quality, name)))
    for number, (tag, value) in enumerate(fit.items()):
        text = "none: the mesh is not closed" if value is None else formatted(value)
        table.add_row("" if number else "GaussianFit", tag.rsplit("/", 1)[-1], text)
    console.print(table, highlight=False)


def print_grade(console: Console, grade: MeshGrade, path: Path) -> None:
    """Print the grade and its reasons."""
    color = "green" if grade.score >= GOOD else "yellow" if grade.word == "FAIR" else "red"
    console.print(Text.assemble((f"{grade.word}", f"bold {color}"), f", {grade.score:.0f} of 100 points"))
    for reason in grade.reasons:
        console.print(Text(f"  {reason}"), soft_wrap=True, highlight=False)
    print_paths(console, {"mesh": path.expanduser().absolute()})


def formatted(value: float | bool | None) -> str:  # noqa: FBT001  a value to be shown, not a switch
    """Return a figure as text."""
    if value is None:
        return "unknown"
    # bool is a subclass of int: test it first.
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, int) else f"{value:.5g}"
