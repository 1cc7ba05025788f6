"""Objects with known surfaces for benchmarks of normals: a jug of plain solids, and a vase with grooves and pits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64

from fieldwatch.recon.data import MeshScene, SolidUnion, ring_cameras, synthetic_normal_maps, write_normal_maps
from fieldwatch.recon.data.normal_maps import PlacedShape
from fieldwatch.recon.data.solids.shapes import RoundedBox, Sphere, Torus
from fieldwatch.recon.mesh import Triangles, implicit_surface, write_mesh
from fieldwatch.recon.mesh.sampling import sample_surface

Points = Float64[np.ndarray, "n 3"]
Values = Float64[np.ndarray, " n"]
CELLS = 320
"""Cells along a side of the box from which a generated surface is meshed."""
GROOVE_DEPTH = 0.02
"""Depth of the grooves of the vase, whose views have pixels of 0.007 units."""
PIT_DEPTH = 0.03
"""Depth of its pits."""
GROOVE_PITCH = 0.1
"""Rise of the groove that winds around it, in a turn."""
# A groove and a pit are Gaussian: distance from the middle at which the depth has fallen by a factor of e.
_GROOVE_WIDTH = 0.018
_PIT_WIDTH = 0.03
_RADIUS = 0.45  # about that of the vase
_FLUTES = 24
_PITS = 28
_PIT_ROWS = 0.15  # height up to which there are pits, and beyond which there are grooves


def jug() -> SolidUnion:
    """Return a jug: a ball, a foot, a handle and a spout that no threshold was chosen on."""
    tilt = np.deg2rad(65.0)
    lean = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    turn = np.deg2rad(25.0)
    about_y = np.array([[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]])
    return SolidUnion(
        (
            PlacedShape(Sphere(0.45), np.array([0.0, 0.05, 0.0]), np.eye(3)),
            PlacedShape(RoundedBox((0.34, 0.3, 0.1), 0.05), np.array([0.0, 0.0, -0.48]), np.eye(3)),
            PlacedShape(Torus(0.28, 0.08), np.array([0.05, 0.45, 0.1]), lean),
            PlacedShape(RoundedBox((0.1, 0.12, 0.4), 0.05), np.array([0.3, -0.15, 0.3]), about_y),
        )
    )


def vase_without_relief(points: Points) -> Values:
    """Return a function whose zero level is the smooth vase, about its distance."""
    height = points[:, 2]
    radius = 0.42 + 0.1 * np.cos(4.5 * height + 0.6)
    around = np.hypot(points[:, 0], points[:, 1])
    # The rounded intersection of a turned profile and a slab.
    outside = np.stack([around - radius, np.abs(height) - 0.6])
    inner = np.minimum(outside.max(0) + 0.1, 0)
    return inner + np.hypot(*np.maximum(outside + 0.1, 0)) - 0.1


def vase_relief(points: Points) -> Values:
    """Return how deep the grooves and pits of the vase are at points."""
    height = points[:, 2]
    angle = np.arctan2(points[:, 1], points[:, 0])
    # One groove winds around the lower half; straight ones run along the upper half.
    to_groove = np.abs((height + GROOVE_PITCH * angle / (2 * np.pi)) % GROOVE_PITCH - GROOVE_PITCH / 2)
    to_flute = _RADIUS * np.abs(angle % (2 * np.pi / _FLUTES) - np.pi / _FLUTES)
    lower = _step((-_PIT_ROWS - height) / 0.01) * _step((height + 0.45) / 0.01)
    upper = _step((height - _PIT_ROWS) / 0.01) * _step((0.45 - height) / 0.01)
    deep = GROOVE_DEPTH * lower * np.exp(-((to_groove / _GROOVE_WIDTH) ** 2))
    deep += GROOVE_DEPTH * upper * np.exp(-((to_flute / _GROOVE_WIDTH) ** 2))
    # Two rows of pits around the middle.
    to_pit = _RADIUS * np.abs(angle % (2 * np.pi / _PITS) - np.pi / _PITS)
    to_row = np.abs(np.abs(height) - 0.06)
    return deep + PIT_DEPTH * np.exp(-(to_pit**2 + to_row**2) / _PIT_WIDTH**2)


def vase(points: Points) -> Values:
    """Return a function whose zero level is the vase with its relief."""
    return vase_without_relief(points) + vase_relief(points)


def _step(values: Values) -> Values:
    return 0.5 + 0.5 * np.tanh(values)


def relief_kept(mesh: Triangles) -> tuple[float, float]:
    """Return the depth of the grooves and of the pits in a mesh of the vase, as fractions of the true ones."""
    points = sample_surface(mesh, 200_000, seed=0).points
    true = vase_relief(points)
    found = -vase_without_relief(points)
    of_pits = np.abs(points[:, 2]) < _PIT_ROWS
    kept: list[float] = []
    for which, depth in ((~of_pits, GROOVE_DEPTH), (of_pits, PIT_DEPTH)):
        deep = which & (true > 0.5 * depth)
        kept.append(float((true[deep] * found[deep]).sum() / np.square(true[deep]).sum()))
    return kept[0], kept[1]


def surface_of(distance: Callable[[Points], Values], cells: int = CELLS) -> Triangles:
    """Return the zero level of a function in the box [-1, 1]^3."""
    return implicit_surface(distance, np.full(3, -1.0), np.full(3, 1.0), resolution=cells)


def write_object(name: str, folder: Path, *, views: int = 20, size: int = 256) -> Path:
    """Write the exact normal maps and masks of an object and its true surface in the layout of PMNI; return the folder.

    The jug's normals are exact. Those of the vase are the smooth ones of a mesh with about two vertices per pixel.

    Args:
        name: "jug" or "vase".
        folder: folder to write to.
        views: number of views, in two rings.
        size: width and height of a view in pixels.
    """
    if name == "jug":
        scene = jug()
        truth = surface_of(lambda points: scene.distance(torch.from_numpy(points)).numpy())
    else:
        truth = surface_of(vase)
        scene = MeshScene(torch.from_numpy(truth.vertices), torch.from_numpy(truth.faces), shading="smooth")
    maps = synthetic_normal_maps(scene, cameras=ring_cameras(views, size), depth="none")
    folder.mkdir(parents=True)
    mesh = write_mesh(folder / "mesh_Gt.ply", truth)
    return write_normal_maps(replace(maps, mesh=mesh), folder)
