"""Mesh extraction from a trained field: marching cubes in blocks, largest component, closed, faces outward."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.mesh import Triangles, implicit_surface
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.world import mesh_in_world
from fieldwatch.recon.render import Chunks, evaluate_in_chunks

MOST_NODES = 2048
"""Maximum number of nodes along a side, as in PMNI; twice as many take eight times as long and show no more detail."""
BLOCK = 64
_PART = 8  # cells along a side of a part that may be skipped after a single evaluation
_ROOM = 2.0  # minimum slope assumed for the field; a true distance has slope 1
_MARGIN = 1.5  # safety factor on the steepest slope measured
# Bounds of the field's box along each axis.
_LOW = -1.0
_HIGH = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface:
    """Result of a mesh extraction, which may be empty.

    Attributes:
        mesh: largest connected component, in the frame of the scene's sphere; without faces if there is no surface.
        removed: number of other components (floaters, walls of cavities) that were removed.
        removed_share: fraction of the total area that was removed.
        cells: number of cells along a side of the field's box.
        evaluated_share: fraction of the nodes at which the field was evaluated.
    """

    mesh: Triangles
    removed: int
    removed_share: float
    cells: int
    evaluated_share: float

    @property
    def empty(self) -> bool:
        """Whether the field has no zero crossing."""
        return not len(self.mesh.faces)

    def in_world(self, scene: NormalsScene) -> Triangles:
        """Return the mesh in the world frame given by `NormalSet.world_from_unit`."""
        return mesh_in_world(self.mesh, scene)


def surface_mesh(model: NormalsModel, scene: NormalsScene, resolution: int, *, world: bool = True) -> Triangles:
    """Extract the mesh of a trained field; it has no faces if the field has no zero crossing.

    Args:
        model: trained model.
        scene: scene, which defines the world frame.
        resolution: nodes along a side of the field's box, 2 to 2048; n nodes make n - 1 cells of 2 / (n - 1) units.
        world: return the mesh in the world frame; False keeps the frame of the scene's sphere.

    Raises:
        ValueError: the resolution is out of bounds.
        MeshError: the field is not finite somewhere.
    """
    surface = find_surface(model, resolution)
    return surface.in_world(scene) if world else surface.mesh


@torch.no_grad()
def find_surface(
    model: NormalsModel,
    resolution: int,
    *,
    chunks: Chunks | None = None,
    block: int = BLOCK,
    stop_point: Callable[[], object] = lambda: None,
) -> Surface:
    """Extract the surface of a field in its box, and keep the largest component by area.

    Parts of 8^3 cells far from the surface are skipped: the field is first evaluated at the center of a part. If that
    value exceeds the distance to the corners of the adjacent cells times the field's slope, the part cannot contain the
    surface. The slope is taken as 1.5 times the steepest slope on a coarse lattice, and at least 2. The result equals
    that of a full evaluation unless the field is steeper; what could be missed then is smaller than such a part.

    Args:
        model: trained model.
        resolution: nodes along a side of the field's box, 2 to 2048; n nodes make n - 1 cells of 2 / (n - 1) units.
        chunks: number of points evaluated at a time.
        block: cells along a side of the blocks that are meshed one after the other.
        stop_point: called before each block; may raise to abort.

    Raises:
        InputError: the resolution is out of bounds.
        MeshError: the field is not finite somewhere.
        MemoryError: even the smallest chunk does not fit into memory.
    """
    if not 2 <= resolution <= MOST_NODES:
        raise InputError(f"--mesh-resolution must be between 2 and {MOST_NODES} nodes per side, got {resolution}")
    cells = resolution - 1
    field = _BlockSampler(model, 2 / cells, Chunks(model.grid.config.chunk) if chunks is None else chunks, stop_point)
    mesh_of_field = implicit_surface(field, np.full(3, _LOW), np.full(3, _HIGH), resolution=cells, block=block)
    mesh, removed, share = _largest(mesh_of_field)
    return Surface(mesh=mesh, removed=removed, removed_share=share, cells=cells, evaluated_share=field.evaluated_share)


def _largest(mesh: Triangles) -> tuple[Triangles, int, float]:
    """Return the largest component, facing outward, the number of other components, and their fraction of the area."""
    if not len(mesh.faces):
        return mesh, 0, 0.0
    # Total area of each connected component.
    areas = np.bincount(mesh.pieces, mesh.areas)
    first = int(areas.argmax())
    largest = mesh.chosen(mesh.pieces == first) if len(areas) > 1 else mesh
    # A negative volume means that the faces are oriented inward.
    largest = largest.turned() if largest.signed_volume < 0 else largest
    return largest, len(areas) - 1, float(1 - areas[first] / areas.sum()) if areas.sum() > 0 else 0.0


class _BlockSampler:
    """Samples a field at the nodes of blocks; far from the surface it returns some value of the same sign instead.

    Args:
        model: model with the field.
        cell: edge length of a cell.
        chunks: number of points evaluated at a time.
        between: called before each block.

    Attributes:
        nodes: number of nodes requested.
        evaluated: number of points at which the field was evaluated for them.
    """

    def __init__(self, model: NormalsModel, cell: float, chunks: Chunks, between: Callable[[], object]) -> None:
        self._model = model
        self._cell = cell
        self._chunks = chunks
        self._between = between
        self._device = model.grid.occupied.device
        self.nodes = self.evaluated = 0
        # One more cell on each side: edges that leave the part must not cross the surface, because the value at their
        # inner end is not the field's.
        self._reach = 0.5 * math.sqrt(3) * (_PART + 2) * cell * self._slope()

    @property
    def evaluated_share(self) -> float:
        """Fraction of the nodes at which the field was evaluated, including the centers of parts."""
        return self.evaluated / max(self.nodes, 1)

    def __call__(self, points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n"]:
        """Return values at points; points outside the box are clamped to it."""
        self._between()
        self.nodes += len(points)
        # Nodes lie on multiples of a cell: rounding must not assign the first node of a part to the previous part.
        part = np.floor((points - points.min(0)) / (_PART * self._cell) + 1e-6).astype(np.int64)
        # Parts are numbered within the block that was requested.
        size = part.max(0) + 1
        number = np.ravel_multi_index(tuple(part.T), tuple(size))
        names = np.stack(np.unravel_index(np.arange(size.prod()), tuple(size)), -1)
        middles = points.min(0) + (names + 0.5) * (_PART * self._cell)
        # One evaluation per part decides whether its nodes are evaluated.
        coarse = self._values(middles)
        values = coarse[number]
        near = ~(np.abs(values) > self._reach)  # negated, so that NaN counts as near
        values[near] = self._values(points[near])
        return values

    def _values(self, points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n"]:
        self.evaluated += len(points)
        clipped = torch.from_numpy(points.clip(_LOW, _HIGH)).float().to(self._device)
        return evaluate_in_chunks(self._model.sdf, clipped, self._chunks).double().cpu().numpy()

    def _slope(self) -> float:
        """Return the steepest slope between neighbors on a lattice of 32^3 nodes, with a safety factor."""
        line = torch.linspace(_LOW, _HIGH, 32)
        nodes = torch.stack(torch.meshgrid(line, line, line, indexing="ij"), -1).view(-1, 3).to(self._device)
        values: Tensor = evaluate_in_chunks(self._model.sdf, nodes, self._chunks).view(32, 32, 32)
        differences = [values.diff(dim=axis).abs().amax() for axis in range(3)]
        # The lattice may miss the steepest place, hence the margin and the minimum.
        return max(_ROOM, _MARGIN * float(torch.stack(differences).max()) / float(line[1] - line[0]))
