"""A closed synthetic object with a known surface within the unit sphere: a ball in a ring."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data.solids.shapes import Array, RoundedBox, SolidShape, Sphere, Torus
from fieldwatch.recon.geometry import Camera


@runtime_checkable
class NormalScene(Protocol):
    """Interface of scenes that normal maps can be rendered from, such as `SolidScene`, `SolidUnion` and `MeshScene`."""

    def depth(self, camera: Camera) -> Float[Tensor, "height width"]:
        """Return the depth along the optical axis at every pixel center; 0 for the background."""
        ...

    def normals(self, camera: Camera) -> Float[Tensor, "height width 3"]:
        """Return outward unit normals in world axes at every pixel center; 0 for the background."""
        ...


@dataclass(frozen=True, eq=False)
class PlacedShape:
    """A positioned and rotated shape.

    Attributes:
        shape: shape around the origin of its local frame.
        center: position in the world.
        rotation: rotation matrix from local to world axes.
    """

    shape: SolidShape
    center: Array
    rotation: Array

    def local(self, points: Array) -> Array:
        """Transform world points to the local frame."""
        return (points - self.center) @ self.rotation


class SolidUnion:
    """Union of several shapes as one closed solid; by default a ball in a tilted ring, held by a bar.

    The default object extends 0.8 from the origin and has sharp concave creases, convex, saddle-shaped and flat parts,
    and tunnels. Depth and normals are exact, since rays are intersected with the shapes.

    Args:
        shapes: shapes of the union; None uses the built-in object.
    """

    def __init__(self, shapes: tuple[PlacedShape, ...] | None = None) -> None:
        self.shapes = shapes or _built_in()

    def distance(self, points: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n"]:
        """Return the signed distance to the surface, negative inside; exact outside and where shapes do not overlap."""
        flat = points.detach().cpu().double().reshape(-1, 3).numpy()
        return torch.from_numpy(self._distances(flat).min(0)).to(points).reshape(points.shape[:-1])

    def depth(self, camera: Camera) -> Float[Tensor, "height width"]:
        """Return the depth along the optical axis at every pixel center, float64; 0 for the background."""
        return self._render(camera)[0]

    def normals(self, camera: Camera) -> Float[Tensor, "height width 3"]:
        """Return outward unit normals in world axes at every pixel center, float64; 0 for the background."""
        return self._render(camera)[1]

    def surface_points(self, count: int, seed: int = 0) -> Float[Tensor, "count 3"]:
        """Return points distributed uniformly over the surface, float64."""
        generator = np.random.Generator(np.random.PCG64(seed))
        chunks = list[Array]()
        total = 0
        while total < count:
            # Sampling a thin shell and projecting along the normal makes the density independent of parametrization.
            points = generator.uniform(-1, 1, (1 << 16, 3))
            distances = self._distances(points)
            near = np.abs(distances.min(0)) < 0.01
            points = points[near]
            owner = distances.argmin(0)[near]
            points = points - distances.min(0)[near, None] * self._normals(points, owner)
            # Near a crease, the projection along the normal of one shape may end inside another.
            chunks.append(points[np.abs(self._distances(points).min(0)) < 1e-6])
            total += len(chunks[-1])
        return torch.from_numpy(np.concatenate(chunks)[:count])

    def _render(self, camera: Camera) -> tuple[Float[Tensor, "height width"], Float[Tensor, "height width 3"]]:
        origins, directions = (rays.reshape(-1, 3).numpy() for rays in camera.to("cpu", torch.float64).rays())
        traveled_by_shape = np.stack(
            [p.shape.intersect(p.local(origins), directions @ p.rotation) for p in self.shapes]
        )
        # Of a union of solids, the first surface along a ray is visible.
        traveled = traveled_by_shape.min(0)
        owner = traveled_by_shape.argmin(0)
        is_hit = np.isfinite(traveled)
        normals = np.zeros_like(origins)
        normals[is_hit] = self._normals(origins[is_hit] + traveled[is_hit, None] * directions[is_hit], owner[is_hit])
        forward = camera.forward.detach().cpu().double().numpy()
        # Distance along the ray to depth along the optical axis.
        depth = np.where(is_hit, traveled, 0) * (directions @ forward)
        size = camera.height, camera.width
        return torch.from_numpy(depth).reshape(size), torch.from_numpy(normals).reshape(*size, 3)

    def _distances(self, points: Array) -> Array:
        return np.stack([placed.shape.distance(placed.local(points)) for placed in self.shapes])

    def _normals(self, points: Array, owner: np.ndarray) -> Array:
        normals = np.zeros_like(points)
        for number, placed in enumerate(self.shapes):
            rows = owner == number
            normals[rows] = placed.shape.normals(placed.local(points[rows])) @ placed.rotation.T
        return normals


def _built_in() -> tuple[PlacedShape, ...]:
    # Tilted and turned, so that no symmetry hides a wrong axis.
    tilt = np.deg2rad(20.0)
    turn = np.deg2rad(35.0)
    about_x = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    about_z = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    return (
        PlacedShape(Sphere(0.40), np.array([0.0, 0.0, 0.10]), np.eye(3)),
        PlacedShape(Torus(0.62, 0.15), np.array([0.0, 0.0, -0.05]), about_x),
        PlacedShape(RoundedBox((0.62, 0.16, 0.16), 0.06), np.array([0.0, 0.0, -0.28]), about_z),
    )
