"""From points on a surface to the mesh of one region of the scene: outliers, surface, trim, pieces."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from fieldwatch.recon.mesh import (
    MeshError,
    OrientedPoints,
    Triangles,
    cleaned,
    facing_outward,
    poisson_surface,
    trimmed,
    without_outliers,
    without_small_pieces,
)
from fieldwatch.recon.pipelines.splats.meshing.budget import MemoryBudget
from fieldwatch.recon.pipelines.splats.meshing.options import ExtractOptions

Progress = Callable[[str, float], None]
"""Called with what is being done, and what share of it is done."""
Empty = Callable[[Float64[np.ndarray, "n 3"]], Float64[np.ndarray, " n"]]
"""How far points lie inside space that cameras saw to be empty, world units."""

MIN_POINTS = 100
"""Fewer surface points make no surface."""
_POISSON_SHARE = 0.8  # of the memory that is left
_EMPTY_MARGIN = 1.5  # cells in front of the surface from which space counts as empty


@dataclass(frozen=True, kw_only=True)
class MeshRegion:
    """A region of the scene and its mesh.

    Attributes:
        name: foreground or background.
        mesh: its surface; None where there is none.
        notes: what a user should know of it.
    """

    name: str
    mesh: Triangles | None
    notes: tuple[str, ...] = ()


def poisson_region(  # noqa: PLR0913  the points of a region, and how its surface is made
    name: str,
    points: OrientedPoints,
    options: ExtractOptions,
    *,
    resolution: int,
    budget: MemoryBudget,
    empty: Empty,
    on_progress: Progress,
) -> MeshRegion:
    """Make the surface through some points; without enough of them, a region without a mesh, and a note.

    Raises:
        MeshError: the memory does not suffice for the grid; the message says what does.
    """
    inliers = without_outliers(points) if len(points) >= MIN_POINTS else points
    if len(inliers) < MIN_POINTS:
        return MeshRegion(name=name, mesh=None, notes=(_too_few_points(name, len(points)),))
    budget.release_freed()
    surface = poisson_surface(
        inliers,
        resolution=resolution,
        memory=budget.share(_POISSON_SHARE) if budget.limited else None,
        outside=_emptiness_on_grid(inliers, resolution, empty) if options.unseen == "close" else None,
        on_progress=lambda stage, share: on_progress(f"{name}: {stage}", share),
    )
    mesh = surface.mesh
    if options.trim and options.unseen == "trim":
        mesh = trimmed(surface, options.trim, support=inliers)
    del surface  # its grid takes memory that cleaning needs
    budget.check_faces(len(mesh.faces), resolution)
    return _cleaned_region(name, mesh, inliers, options)


def _cleaned_region(name: str, mesh: Triangles, points: OrientedPoints, options: ExtractOptions) -> MeshRegion:
    """Remove small pieces, repair the mesh, and make it face outwards."""
    if options.least_piece:
        mesh = without_small_pieces(mesh, least_share=options.least_piece)
    mesh = cleaned(replace(mesh))  # a copy without the cached properties, which take memory
    if not len(mesh.faces):
        return MeshRegion(name=name, mesh=None, notes=(f"the {name} has no surface after the trim: lower --trim",))
    return MeshRegion(name=name, mesh=replace(facing_outward(mesh, points)))


def _too_few_points(name: str, count: int) -> str:
    remedy = (
        "give the object's place with --bbox" if name == "foreground" else "nothing was seen there; --no-background"
    )
    return f"the {name} has {count} surface points, too few for a surface, and is left out: {remedy}"


def _emptiness_on_grid(points: OrientedPoints, resolution: int, empty: Empty) -> Empty:
    """Return the emptiness less a margin, so that the surface itself is not carved; finite, as a grid needs it."""
    longest = float(np.ptp(points.points, axis=0).max())
    margin = _EMPTY_MARGIN * longest / resolution

    def emptiness(positions: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
        return np.clip(empty(positions) - margin, -longest, longest)

    return emptiness


def refuse_empty(regions: list[MeshRegion]) -> None:
    """Refuse to go on with no surface at all.

    Raises:
        MeshError: no region has a mesh; the message has the notes of each.
    """
    if all(region.mesh is None for region in regions):
        notes = "; ".join(note for region in regions for note in region.notes)
        raise MeshError(f"no surface was found, and nothing is written: {notes}")
