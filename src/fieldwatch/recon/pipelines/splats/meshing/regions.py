"""Mesh of one region of the scene from surface points: outlier removal, surface, trim, small components."""

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
"""Function called with the name of the current stage and its progress from 0 to 1."""
Empty = Callable[[Float64[np.ndarray, "n 3"]], Float64[np.ndarray, " n"]]
"""Function from points to their depth inside space that cameras saw to be empty, world units."""

MIN_POINTS = 100
"""Minimum number of surface points for a reconstruction."""
_POISSON_SHARE = 0.8  # fraction of the remaining memory
_EMPTY_MARGIN = 1.5  # distance in front of the surface from which space counts as empty, cells


@dataclass(frozen=True, kw_only=True)
class MeshRegion:
    """A region of the scene and its mesh.

    Attributes:
        name: foreground or background.
        mesh: mesh of its surface; None if it has no surface.
        notes: messages for the user.
    """

    name: str
    mesh: Triangles | None
    notes: tuple[str, ...] = ()


def poisson_region(  # noqa: PLR0913  the points of a region, and settings of the reconstruction
    name: str,
    points: OrientedPoints,
    options: ExtractOptions,
    *,
    resolution: int,
    budget: MemoryBudget,
    empty: Empty,
    on_progress: Progress,
) -> MeshRegion:
    """Reconstruct the surface through points; with too few points, return a region without a mesh and with a note.

    Raises:
        MeshError: There is not enough memory for the grid; the message says what fits.
    """
    # The statistics of outlier removal are meaningless for few points.
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
    del surface  # frees its grid, whose memory the cleaning needs
    budget.check_faces(len(mesh.faces), resolution)
    return _cleaned_region(name, mesh, inliers, options)


def _cleaned_region(name: str, mesh: Triangles, points: OrientedPoints, options: ExtractOptions) -> MeshRegion:
    """Remove small components, repair the mesh, and orient it outwards."""
    # Copies without cached properties: those of a mesh to which the caller holds a reference would stay in memory.
    if options.least_piece:
        mesh = without_small_pieces(replace(mesh), least_share=options.least_piece)
    mesh = cleaned(replace(mesh))
    if not len(mesh.faces):
        return MeshRegion(name=name, mesh=None, notes=(f"the {name} has no surface after the trim: lower --trim",))
    return MeshRegion(name=name, mesh=replace(facing_outward(mesh, points)))


def _too_few_points(name: str, count: int) -> str:
    remedy = (
        "give the box of the object with --bbox"
        if name == "foreground"
        else "leave --background out if the scene has none"
    )
    return f"the {name} has {count} surface points, too few for a surface, and is skipped: {remedy}"


def _emptiness_on_grid(points: OrientedPoints, resolution: int, empty: Empty) -> Empty:
    """Return the emptiness minus a margin, so that the surface itself is not carved, clipped to finite values."""
    longest = float(np.ptp(points.points, axis=0).max())
    margin = _EMPTY_MARGIN * longest / resolution

    def emptiness(positions: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
        return np.clip(empty(positions) - margin, -longest, longest)

    return emptiness


def refuse_empty(regions: list[MeshRegion]) -> None:
    """Check that at least one region has a mesh.

    Raises:
        MeshError: No region has a mesh; the message contains the notes of each.
    """
    if all(region.mesh is None for region in regions):
        notes = "; ".join(note for region in regions for note in region.notes)
        raise MeshError(f"no surface was found and nothing was written: {notes}")
