"""A synthetic scene with a known surface: balls, a box and a ring on a round plate, with smooth textures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.data.solids.shapes import Array, Cylinder, RoundedBox, SolidShape, Sphere, Torus, row_dots
from fieldwatch.recon.geometry import Camera

_LIGHT = np.array([-0.48, -0.36, 0.80])  # unit vector toward the light
_AMBIENT = 0.40  # fraction of the light that is ambient
_NOOK = 0.22  # world units: distance between surfaces below which ambient occlusion darkens them


@dataclass(frozen=True, eq=False)
class _WaveTexture:
    """A smooth solid texture: a sum of waves around a mean color."""

    color: Array
    waves: Array
    phases: Array
    weights: Array

    @classmethod
    def random(cls, generator: np.random.Generator, color: tuple[float, float, float], reach: float) -> "_WaveTexture":
        """Sample a texture whose shortest wavelength is `reach` world units."""
        directions = generator.normal(size=(12, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        # Three octaves of wavelengths; longer waves have larger amplitudes.
        lengths = reach * 2.0 ** (np.arange(12) % 3)
        phases = generator.uniform(0, 2 * math.pi, 12)
        weights = generator.uniform(-1, 1, (12, 3)) * 0.055 * np.sqrt(lengths / reach)[:, None]
        return cls(np.array(color), 2 * math.pi * directions / lengths[:, None], phases, weights)

    def __call__(self, points: Array) -> Array:
        return (self.color + np.cos(points @ self.waves.T + self.phases) @ self.weights).clip(0.02, 1)


@dataclass(frozen=True, eq=False)
class _Solid:
    """A positioned shape, rotated around the vertical axis, with a texture."""

    shape: SolidShape
    center: Array
    rotation: Array
    texture: _WaveTexture

    def local(self, points: Array) -> Array:
        return (points - self.center) @ self.rotation

    def distance(self, points: Array) -> Array:
        return self.shape.distance(self.local(points))

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Return the distances along rays to the shape; infinite for rays that miss it."""
        toward = self.center - origins
        along = row_dots(toward, directions)
        # Rays outside the bounding sphere skip the expensive intersection.
        near = row_dots(toward, toward) - along * along < self.shape.bounding_radius**2
        result = np.full(len(origins), np.inf)
        result[near] = self.shape.intersect(self.local(origins[near]), directions[near] @ self.rotation)
        return result

    def normals(self, points: Array) -> Array:
        return self.shape.normals(self.local(points)) @ self.rotation.T


class SolidSpec(NamedTuple):
    """A solid of a synthetic scene.

    Attributes:
        shape: shape around the origin of its local frame.
        center: position in world units.
        color: mean RGB color, 0 to 1.
        wave: shortest wavelength of the texture in world units.
        rotated: whether the solid is rotated around the vertical axis by an angle drawn from the scene's seed.
    """

    shape: SolidShape
    center: tuple[float, float, float]
    color: tuple[float, float, float]
    wave: float = 0.16
    rotated: bool = True


ON_A_PLATE = (
    SolidSpec(Cylinder(1.6, 0.06), (0.0, 0.0, -0.06), (0.55, 0.52, 0.46), 0.26),
    SolidSpec(Sphere(0.42), (-0.55, 0.35, 0.42), (0.70, 0.30, 0.24)),
    SolidSpec(RoundedBox((0.32, 0.26, 0.30), 0.07), (0.55, 0.40, 0.30), (0.28, 0.46, 0.66)),
    SolidSpec(Sphere(0.19), (0.55, 0.40, 0.79), (0.78, 0.66, 0.26)),
    SolidSpec(Torus(0.36, 0.14), (0.12, -0.62, 0.14), (0.34, 0.58, 0.32)),
)
"""Solids of the built-in scene, to be viewed from all sides."""
BEFORE_A_WALL = (
    SolidSpec(RoundedBox((6.0, 0.3, 6.0), 0.05), (0.0, 10.3, 0.0), (0.62, 0.58, 0.52), 0.6, rotated=False),
    SolidSpec(Sphere(0.8), (-1.1, 6.5, -0.4), (0.70, 0.30, 0.24), 0.25),
    SolidSpec(RoundedBox((0.6, 0.5, 0.7), 0.1), (1.2, 7.2, -0.5), (0.28, 0.46, 0.66), 0.25),
    SolidSpec(Torus(0.6, 0.2), (0.1, 5.2, -1.0), (0.34, 0.58, 0.32), 0.2),
)
"""Solids in front of a wall 10 world units away, to be viewed from one side by cameras close together."""


class _Hits(NamedTuple):
    """Intersections of rays: distances (infinite for a miss) and indices of the solids (arbitrary for a miss)."""

    traveled: Array
    solid: NDArray[np.int64]


class SolidScene:
    """Synthetic scene of balls, a box and a ring on a round plate, within 1.6 world units of the origin.

    z is up and the top of the plate is at z = 0. The signed distance is exact, and so are depth, normals and image for
    any camera, since rays are intersected with the shapes.

    Args:
        seed: seed of textures and rotations; the positions are fixed.
        solids: solids of the scene; None uses the built-in ones.
    """

    def __init__(self, seed: int = 0, solids: Sequence[SolidSpec] | None = None) -> None:
        generator = np.random.Generator(np.random.PCG64(seed))
        self._solids: list[_Solid] = []
        for spec in ON_A_PLATE if solids is None else solids:
            angle = float(generator.uniform(0, math.pi)) if spec.rotated else 0.0
            c = math.cos(angle)
            s = math.sin(angle)
            rotation = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
            texture = _WaveTexture.random(generator, spec.color, spec.wave)
            self._solids.append(_Solid(spec.shape, np.array(spec.center), rotation, texture))

    def distance(self, points: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n"]:
        """Return the exact signed distance to the nearest surface in world units, negative inside."""
        flat = points.detach().cpu().double().reshape(-1, 3).numpy()
        return torch.from_numpy(self._distance(flat)).to(points).reshape(points.shape[:-1])

    def depth(self, camera: Camera) -> Float[Tensor, "height width"]:
        """Return the depth along the optical axis at every pixel center, float64; 0 for the background."""
        origins, directions = _rays(camera, 1)
        hits = self._intersect(origins, directions)
        forward = camera.forward.detach().cpu().double().numpy()
        # Distance along the ray to depth along the optical axis.
        depth = np.where(np.isfinite(hits.traveled), hits.traveled, 0) * (directions @ forward)
        return torch.from_numpy(depth).reshape(camera.height, camera.width)

    def normals(self, camera: Camera) -> Float[Tensor, "height width 3"]:
        """Return outward unit normals in world axes at every pixel center, float64; 0 for the background."""
        origins, directions = _rays(camera, 1)
        hits = self._intersect(origins, directions)
        is_hit = np.isfinite(hits.traveled)
        normals = np.zeros_like(origins)
        points = origins[is_hit] + hits.traveled[is_hit, None] * directions[is_hit]
        normals[is_hit] = self._normals(points, hits.solid[is_hit])
        return torch.from_numpy(normals).reshape(camera.height, camera.width, 3)

    def picture(self, camera: Camera, *, samples: int = 2, background: tuple[int, int, int] = (0, 0, 0)) -> PhotoPixels:
        """Render an image with `samples` x `samples` rays per pixel on a plain background, with alpha."""
        origins, directions = _rays(camera, samples)
        hits = self._intersect(origins, directions)
        is_hit = np.isfinite(hits.traveled)
        colors = np.zeros((len(origins), 4))
        points = origins[is_hit] + hits.traveled[is_hit, None] * directions[is_hit]
        colors[is_hit, :3] = self.colors(points, hits.solid[is_hit])
        colors[is_hit, 3] = 1
        # Box filter over the samples of each pixel; alpha is the fraction of rays that hit.
        means = colors.reshape(camera.height, samples, camera.width, samples, 4).mean((1, 3))
        coverage = means[..., 3:]
        image = np.rint(255 * means[..., :3] + np.array(background) * (1 - coverage)).astype(np.uint8)
        alpha = torch.from_numpy(np.rint(255 * coverage[..., 0]).astype(np.uint8))
        return PhotoPixels(image=torch.from_numpy(image), alpha=None if bool((alpha == 255).all()) else alpha)

    def surface_points(self, count: int, seed: int = 0) -> Float[Tensor, "count 3"]:
        """Return points distributed uniformly over the surface above z = -0.001, float64.

        Points are sampled uniformly in a thin shell and projected to the surface along the normal. The lower side of
        the plate is excluded, because no camera sees it.
        """
        generator = np.random.Generator(np.random.PCG64(seed))
        chunks = list[Array]()
        total = 0
        while total < count:
            points = generator.uniform([-1.65, -1.65, -0.01], [1.65, 1.65, 1.0], (1 << 16, 3))
            distances = np.stack([owner.distance(points) for owner in self._solids])
            owner = distances.argmin(0)
            distance = distances.min(0)
            # A thinner shell would reject more samples, a thicker one would distort the density at curved surfaces.
            near = np.abs(distance) < 0.008
            moved = points[near] - distance[near, None] * self._normals(points[near], owner[near])
            # Where two solids touch, the projection along the normal of one may end inside the other.
            accepted = moved[(np.abs(self._distance(moved)) < 1e-6) & (moved[:, 2] > -0.001)]
            chunks.append(accepted)
            total += len(accepted)
        return torch.from_numpy(np.concatenate(chunks)[:count])

    def visible_points(self, camera: Camera, count: int, generator: np.random.Generator) -> tuple[Array, Array, Array]:
        """Return points visible at random pixels of a camera: positions, outward normals and colors (0 to 1)."""
        origins, directions = _rays(camera, 1)
        # Four times as many rays as points, since some of them miss the scene.
        pixels = generator.integers(0, len(origins), 4 * count)
        hits = self._intersect(origins[pixels], directions[pixels])
        hit_rows = np.flatnonzero(np.isfinite(hits.traveled))[:count]
        points = origins[pixels][hit_rows] + hits.traveled[hit_rows, None] * directions[pixels][hit_rows]
        return points, self._normals(points, hits.solid[hit_rows]), self.colors(points, hits.solid[hit_rows])

    def colors(self, points: Array, solid: NDArray[np.int64]) -> Array:
        """Return the colors (0 to 1) of surface points: texture, directional light and ambient occlusion."""
        normals = self._normals(points, solid)
        texture = np.zeros_like(points)
        for number, spec in enumerate(self._solids):
            rows = solid == number
            texture[rows] = spec.texture(spec.local(points[rows]))
        illumination = _AMBIENT + (1 - _AMBIENT) * np.maximum(normals @ _LIGHT, 0)
        # Ambient occlusion from one sample of the distance field along the normal.
        open_sky = 0.45 + 0.55 * (self._distance(points + _NOOK * normals) / _NOOK).clip(0, 1)
        return texture * (illumination * open_sky)[:, None]

    def _distance(self, points: Array) -> Array:
        return np.stack([solid.distance(points) for solid in self._solids]).min(0)

    def _normals(self, points: Array, solid: NDArray[np.int64]) -> Array:
        normals = np.zeros_like(points)
        for number, spec in enumerate(self._solids):
            rows = solid == number
            normals[rows] = spec.normals(points[rows])
        return normals

    def _intersect(self, origins: Array, directions: Array) -> _Hits:
        traveled = np.stack([solid.intersect(origins, directions) for solid in self._solids])
        return _Hits(traveled.min(0), traveled.argmin(0))


def _rays(camera: Camera, samples: int) -> tuple[Array, Array]:
    """Return origins and unit directions of `samples` x `samples` rays per pixel."""
    finer = camera.to("cpu", torch.float64).resized(camera.width * samples, camera.height * samples)
    origins, directions = finer.rays()
    return origins.reshape(-1, 3).numpy(), directions.reshape(-1, 3).numpy()
