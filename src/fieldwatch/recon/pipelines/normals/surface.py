"""The mesh of a trained field: marching cubes in blocks, the largest piece, closed and facing outwards."""

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

MOST_NODES = 512
"""Nodes along a side of the box, at most, as PMNI counts: twice as many take eight times as long and show no more."""
BLOCK = 64
_PART = 8  # cells along a side of the parts that one value may excuse
_ROOM = 2.0  # slope of the field that is reckoned with at least; 1 is that of a true distance
_MARGIN = 1.5  # on the steepest slope that was found
# the field's box
_LOW = -1.0
_HIGH = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface:
    """What an extraction found, which may be nothing.

    Attributes:
        mesh: the largest piece, in the frame of the scene's sphere; without faces where there is none.
        removed: other pieces (floaters, walls of hollows) that were left out.
        removed_share: of the area of all pieces.
        cells: along a side of the field's box.
        evaluated_share: share of the nodes at which the field was evaluated.
    """

    mesh: Triangles
    removed: int
    removed_share: float
    cells: int
    evaluated_share: float

    @property
    def empty(self) -> bool:
        """Whether the field is nowhere 0."""
        return not len(self.mesh.faces)

    def in_world(self, scene: NormalsScene) -> Triangles:
        """Return the mesh in the world that `NormalSet.world_from_unit` leads to."""
        return mesh_in_world(self.mesh, scene)


def surface_mesh(model: NormalsModel, scene: NormalsScene, resolution: int, *, world: bool = True) -> Triangles:
    """Return the mesh of a trained field; without faces where the field is nowhere 0.

    Args:
        model: what was trained.
        scene: says where the world is.
        resolution: nodes along a side of the field's box, 2 to 512; n nodes are n - 1 cells of 2 / (n - 1) units.
        world: in the world's frame; False leaves it in that of the scene's sphere.

    Raises:
        ValueError: another number of nodes.
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
    """Find the surface of a field in its box, and keep the largest piece, by area.

    Where the field says that the surface is far away, it is not evaluated at every node: one value in the middle of 8^3
    cells excuses all of them if it is larger than the way to their neighbours' corners times the slope, of which 1.5
    times the steepest that a coarse lattice shows is assumed, and 2 at least. The result is that of asking everywhere
    while the field is no steeper; what would be missed otherwise is smaller than such a part.

    Args:
        model: what was trained.
        resolution: nodes along a side of the field's box, 2 to 512; n nodes are n - 1 cells of 2 / (n - 1) units.
        chunks: how many points at a time.
        block: cells along a side of the blocks that the mesh is made in, one after the other.
        stop_point: called before each block; it may raise, to give up.

    Raises:
        InputError: another number of nodes.
        MeshError: the field is not finite somewhere.
        MemoryError: even few points at a time do not fit.
    """
    if not 2 <= resolution <= MOST_NODES:
        raise InputError(f"a mesh of {resolution} nodes along each side: wanted 2 to {MOST_NODES} (--mesh-resolution)")
    cells = resolution - 1
    field = _BlockSampler(model, 2 / cells, Chunks(model.grid.config.chunk) if chunks is None else chunks, stop_point)
    mesh_of_field = implicit_surface(field, np.full(3, _LOW), np.full(3, _HIGH), resolution=cells, block=block)
    mesh, removed, share = _largest(mesh_of_field)
    return Surface(mesh=mesh, removed=removed, removed_share=share, cells=cells, evaluated_share=field.asked)


def _largest(mesh: Triangles) -> tuple[Triangles, int, float]:
    """The largest piece, facing outwards, how many others there were, and their share of the area."""
    if not len(mesh.faces):
        return mesh, 0, 0.0
    areas = np.bincount(mesh.pieces, mesh.areas)
    first = int(areas.argmax())
    largest = mesh.chosen(mesh.pieces == first) if len(areas) > 1 else mesh
    largest = largest.turned() if largest.signed_volume < 0 else largest
    return largest, len(areas) - 1, float(1 - areas[first] / areas.sum()) if areas.sum() > 0 else 0.0


class _BlockSampler:
    """A field at the nodes of blocks; where it is far from 0, some value of the same sign instead.

    Args:
        model: whose field.
        cell: length of a cell's edge.
        chunks: points at a time.
        between: called before each block.

    Attributes:
        nodes: that were asked for.
        evaluated: points at which the field was evaluated for them.
    """

    def __init__(self, model: NormalsModel, cell: float, chunks: Chunks, between: Callable[[], object]) -> None:
        self._model = model
        self._cell = cell
        self._chunks = chunks
        self._between = between
        self._device = model.grid.occupied.device
        self.nodes = self.evaluated = 0
        # One cell more on each side: an edge that leaves the part must not cross the surface, as its value here is
        # made up.
        self._reach = 0.5 * math.sqrt(3) * (_PART + 2) * cell * self._slope()

    @property
    def asked(self) -> float:
        """Share of the nodes at which the field was evaluated; the middles of parts are counted in."""
        return self.evaluated / max(self.nodes, 1)

    def __call__(self, points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n"]:
        """Return values at points; those around the box are held to its sides."""
        self._between()
        self.nodes += len(points)
        # Nodes lie on multiples of a cell: rounding must not put the first one of a part into the part before.
        part = np.floor((points - points.min(0)) / (_PART * self._cell) + 1e-6).astype(np.int64)
        size = part.max(0) + 1
        number = np.ravel_multi_index(tuple(part.T), tuple(size))
        names = np.stack(np.unravel_index(np.arange(size.prod()), tuple(size)), -1)
        middles = points.min(0) + (names + 0.5) * (_PART * self._cell)
        coarse = self._values(middles)
        values = coarse[number]
        near = ~(np.abs(values) > self._reach)  # what is not a number is near
        values[near] = self._values(points[near])
        return values

    def _values(self, points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n"]:
        self.evaluated += len(points)
        clipped = torch.from_numpy(points.clip(_LOW, _HIGH)).float().to(self._device)
        return evaluate_in_chunks(self._model.sdf, clipped, self._chunks).double().cpu().numpy()

    def _slope(self) -> float:
        """Steepest slope between neighbours on a lattice of 32^3 nodes, with a margin."""
        line = torch.linspace(_LOW, _HIGH, 32)
        nodes = torch.stack(torch.meshgrid(line, line, line, indexing="ij"), -1).view(-1, 3).to(self._device)
        values: Tensor = evaluate_in_chunks(self._model.sdf, nodes, self._chunks).view(32, 32, 32)
        differences = [values.diff(dim=axis).abs().amax() for axis in range(3)]
        return max(_ROOM, _MARGIN * float(torch.stack(differences).max()) / float(line[1] - line[0]))
