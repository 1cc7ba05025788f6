"""From points on a surface to the mesh of one part of the scene: outliers, surface, trim, pieces."""

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
    open3d_poisson,
    poisson_surface,
    trimmed,
    without_outliers,
    without_small_pieces,
)
from fieldwatch.recon.pipelines.splats.meshing.budget import Budget
from fieldwatch.recon.pipelines.splats.meshing.options import ExtractOptions

Progress = Callable[[str, float], None]
"""Told what is being done, and what share of it is done."""
Empty = Callable[[Float64[np.ndarray, "n 3"]], Float64[np.ndarray, " n"]]
"""How far points lie in what was seen to be empty, world units."""

LEAST_POINTS = 100
_POISSON = 0.8  # of the memory that is left
_SEEN = 1.5  # cells in front of the surface from which a place counts as seen to be empty


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the scene.

    Attributes:
        name: foreground or background.
        mesh: its surface; None where there is none.
        notes: what a user should know of it.
    """

    name: str
    mesh: Triangles | None
    notes: tuple[str, ...] = ()


def poisson_part(  # noqa: PLR0913  the points of a part, and how its surface is made
    name: str,
    points: OrientedPoints,
    options: ExtractOptions,
    *,
    resolution: int,
    budget: Budget,
    empty: Empty,
    on_progress: Progress,
) -> Part:
    """Make the surface through some points; without enough of them, a part without a mesh that says so.

    Raises:
        MeshError: the memory does not suffice for the grid; the message says what does.
    """
    kept = without_outliers(points) if len(points) >= LEAST_POINTS else points
    if len(kept) < LEAST_POINTS:
        return Part(name=name, mesh=None, notes=(_nothing(name, len(points)),))
    budget.give_back()
    if options.method == "open3d":
        surface = open3d_poisson(kept, depth=max(resolution - 1, 1).bit_length())
    else:
        surface = poisson_surface(
            kept,
            resolution=resolution,
            memory=budget.share(_POISSON) if budget.limited else None,
            outside=_carving(kept, resolution, empty) if options.unseen == "close" else None,
            on_progress=lambda stage, share: on_progress(f"{name}: {stage}", share),
        )
    mesh = surface.mesh
    if options.trim and options.unseen == "trim":
        mesh = trimmed(surface, options.trim, support=kept)
    del surface
    budget.check_faces(len(mesh.faces), resolution)
    return _checked(name, mesh, kept, options)


def _checked(name: str, mesh: Triangles, points: OrientedPoints, options: ExtractOptions) -> Part:
    """Leave out small pieces, mend, and see to it that it faces outwards."""
    if options.least_piece:
        mesh = without_small_pieces(mesh, least_share=options.least_piece)
    mesh = cleaned(replace(mesh))  # replaced: without what has been worked out about it, which takes its place
    if not len(mesh.faces):
        return Part(name=name, mesh=None, notes=(f"the {name} has no surface after the trim: lower --trim",))
    return Part(name=name, mesh=replace(facing_outward(mesh, points)))


def _nothing(name: str, count: int) -> str:
    remedy = (
        "give the object's place with --bbox" if name == "foreground" else "nothing was seen there; --no-background"
    )
    return f"the {name} has {count} surface points, too few for a surface, and is left out: {remedy}"


def _carving(points: OrientedPoints, resolution: int, empty: Empty) -> Empty:
    """What was seen to be empty, less a margin: the surface itself is not to be touched. Finite, as a grid needs it."""
    longest = float(np.ptp(points.points, axis=0).max())
    margin = _SEEN * longest / resolution

    def carved(places: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
        return np.clip(empty(places) - margin, -longest, longest)

    return carved


def refuse_empty(parts: list[Part]) -> None:
    """Refuse to go on with no surface at all.

    Raises:
        MeshError: no part has a mesh; the message has what each says.
    """
    if all(part.mesh is None for part in parts):
        said = "; ".join(note for part in parts for note in part.notes)
        raise MeshError(f"no surface was found, and nothing is written: {said}")
