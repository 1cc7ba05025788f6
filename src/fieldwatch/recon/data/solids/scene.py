"""A made-up scene whose surface is known: balls, a box and a ring on a round plate, with smooth textures."""

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

_LIGHT = np.array([-0.48, -0.36, 0.80])  # a unit vector towards the light
_AMBIENT = 0.40
_NOOK = 0.22  # world units: nearer to another surface than this, a surface darkens


@dataclass(frozen=True, eq=False)
class _WaveTexture:
    """A smooth pattern in space: waves around a colour."""

    colour: Array
    waves: Array
    phases: Array
    weights: Array

    @classmethod
    def random(cls, generator: np.random.Generator, colour: tuple[float, float, float], reach: float) -> "_WaveTexture":
        """Draw one whose shortest waves are `bounding_radius` world units long."""
        directions = generator.normal(size=(12, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        # Three octaves of wavelengths, longer ones with larger amplitudes.
        lengths = reach * 2.0 ** (np.arange(12) % 3)
        phases = generator.uniform(0, 2 * math.pi, 12)
        weights = generator.uniform(-1, 1, (12, 3)) * 0.055 * np.sqrt(lengths / reach)[:, None]
        return cls(np.array(colour), 2 * math.pi * directions / lengths[:, None], phases, weights)

    def __call__(self, points: Array) -> Array:
        return (self.colour + np.cos(points @ self.waves.T + self.phases) @ self.weights).clip(0.02, 1)


@dataclass(frozen=True, eq=False)
class _Solid:
    """A form at a place, turned around the vertical, with a texture."""

    shape: SolidShape
    centre: Array
    rotation: Array
    texture: _WaveTexture

    def local(self, points: Array) -> Array:
        return (points - self.centre) @ self.rotation

    def distance(self, points: Array) -> Array:
        return self.shape.distance(self.local(points))

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Return how far rays go; only those that come near are looked at closely."""
        towards = self.centre - origins
        along = row_dots(towards, directions)
        # Rays that pass the bounding sphere skip the expensive intersection.
        near = row_dots(towards, towards) - along * along < self.shape.bounding_radius**2
        result = np.full(len(origins), np.inf)
        result[near] = self.shape.intersect(self.local(origins[near]), directions[near] @ self.rotation)
        return result

    def normals(self, points: Array) -> Array:
        return self.shape.normals(self.local(points)) @ self.rotation.T


class SolidSpec(NamedTuple):
    """A form of a made-up scene.

    Attributes:
        shape: around its own origin.
        centre: where it is, world units.
        colour: its mean color, red, green, blue in 0 .. 1.
        wave: length of the shortest waves of its texture, world units.
        rotated: whether it is turned around the vertical by an angle that the scene's seed draws.
    """

    shape: SolidShape
    centre: tuple[float, float, float]
    colour: tuple[float, float, float]
    wave: float = 0.16
    rotated: bool = True


ON_A_PLATE = (
    SolidSpec(Cylinder(1.6, 0.06), (0.0, 0.0, -0.06), (0.55, 0.52, 0.46), 0.26),
    SolidSpec(Sphere(0.42), (-0.55, 0.35, 0.42), (0.70, 0.30, 0.24)),
    SolidSpec(RoundedBox((0.32, 0.26, 0.30), 0.07), (0.55, 0.40, 0.30), (0.28, 0.46, 0.66)),
    SolidSpec(Sphere(0.19), (0.55, 0.40, 0.79), (0.78, 0.66, 0.26)),
    SolidSpec(Torus(0.36, 0.14), (0.12, -0.62, 0.14), (0.34, 0.58, 0.32)),
)
"""The built-in scene: to be photographed from all around."""
BEFORE_A_WALL = (
    SolidSpec(RoundedBox((6.0, 0.3, 6.0), 0.05), (0.0, 10.3, 0.0), (0.62, 0.58, 0.52), 0.6, rotated=False),
    SolidSpec(Sphere(0.8), (-1.1, 6.5, -0.4), (0.70, 0.30, 0.24), 0.25),
    SolidSpec(RoundedBox((0.6, 0.5, 0.7), 0.1), (1.2, 7.2, -0.5), (0.28, 0.46, 0.66), 0.25),
    SolidSpec(Torus(0.6, 0.2), (0.1, 5.2, -1.0), (0.34, 0.58, 0.32), 0.2),
)
"""Things before a bare wall 10 units away: to be photographed from one side, by cameras that stand close together."""


class _Hits(NamedTuple):
    """What rays meet: how far (infinite: nothing), and which solid (meaningless there)."""

    travelled: Array
    solid: NDArray[np.int64]


class SolidScene:
    """Balls, a box and a ring on a round plate; z is up, the plate's top is at z = 0, all within 1.6 world units.

    Everything about it is known: the exact signed distance, and through any camera the exact depth, normals and image,
    found by intersecting rays with the forms.

    Args:
        seed: other textures and other turns; the forms stay where they are.
        solids: other forms at other places; None means those above.
    """

    def __init__(self, seed: int = 0, solids: Sequence[SolidSpec] | None = None) -> None:
        generator = np.random.Generator(np.random.PCG64(seed))
        self._solids: list[_Solid] = []
        for spec in ON_A_PLATE if solids is None else solids:
            angle = float(generator.uniform(0, math.pi)) if spec.rotated else 0.0
            c = math.cos(angle)
            s = math.sin(angle)
            rotation = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
            texture = _WaveTexture.random(generator, spec.colour, spec.wave)
            self._solids.append(_Solid(spec.shape, np.array(spec.centre), rotation, texture))

    def distance(self, points: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n"]:
        """Return the exact signed distance to the nearest surface, in world units, negative inside."""
        flat = points.detach().cpu().double().reshape(-1, 3).numpy()
        return torch.from_numpy(self._distance(flat)).to(points).reshape(points.shape[:-1])

    def depth(self, camera: Camera) -> Float[Tensor, "height width"]:
        """Return the depth along the optical axis at every pixel's centre, float64; 0 where nothing is."""
        origins, directions = _rays(camera, 1)
        hits = self._intersect(origins, directions)
        forward = camera.forward.detach().cpu().double().numpy()
        depth = np.where(np.isfinite(hits.travelled), hits.travelled, 0) * (directions @ forward)
        return torch.from_numpy(depth).reshape(camera.height, camera.width)

    def normals(self, camera: Camera) -> Float[Tensor, "height width 3"]:
        """Return outward unit normals in the world at every pixel's centre, float64; 0 where nothing is."""
        origins, directions = _rays(camera, 1)
        hits = self._intersect(origins, directions)
        is_hit = np.isfinite(hits.travelled)
        normals = np.zeros_like(origins)
        points = origins[is_hit] + hits.travelled[is_hit, None] * directions[is_hit]
        normals[is_hit] = self._normals(points, hits.solid[is_hit])
        return torch.from_numpy(normals).reshape(camera.height, camera.width, 3)

    def picture(self, camera: Camera, *, samples: int = 2, background: tuple[int, int, int] = (0, 0, 0)) -> PhotoPixels:
        """Take a photo: the mean of `samples` x `samples` rays in every pixel, on a plain background, with alpha."""
        origins, directions = _rays(camera, samples)
        hits = self._intersect(origins, directions)
        is_hit = np.isfinite(hits.travelled)
        colours = np.zeros((len(origins), 4))
        points = origins[is_hit] + hits.travelled[is_hit, None] * directions[is_hit]
        colours[is_hit, :3] = self.colours(points, hits.solid[is_hit])
        colours[is_hit, 3] = 1
        # Box filter over the samples of each pixel; alpha is the share of rays that hit.
        means = colours.reshape(camera.height, samples, camera.width, samples, 4).mean((1, 3))
        coverage = means[..., 3:]
        image = np.rint(255 * means[..., :3] + np.array(background) * (1 - coverage)).astype(np.uint8)
        alpha = torch.from_numpy(np.rint(255 * coverage[..., 0]).astype(np.uint8))
        return PhotoPixels(image=torch.from_numpy(image), alpha=None if bool((alpha == 255).all()) else alpha)

    def surface_points(self, count: int, seed: int = 0) -> Float[Tensor, "count 3"]:
        """Return points spread evenly over the surface above z = -0.001, float64: all that is seen from above.

        Places within a thin shell are drawn evenly and brought to the surface along the normal.
        """
        generator = np.random.Generator(np.random.PCG64(seed))
        chunks = list[Array]()
        total = 0
        while total < count:
            points = generator.uniform([-1.65, -1.65, -0.01], [1.65, 1.65, 1.0], (1 << 16, 3))
            distances = np.stack([owner.distance(points) for owner in self._solids])
            owner = distances.argmin(0)
            distance = distances.min(0)
            near = np.abs(distance) < 0.008
            moved = points[near] - distance[near, None] * self._normals(points[near], owner[near])
            # where two solids touch, the way along one's normal may end inside the other
            accepted = moved[(np.abs(self._distance(moved)) < 1e-6) & (moved[:, 2] > -0.001)]
            chunks.append(accepted)
            total += len(accepted)
        return torch.from_numpy(np.concatenate(chunks)[:count])

    def visible_points(self, camera: Camera, count: int, generator: np.random.Generator) -> tuple[Array, Array, Array]:
        """Return points that a camera sees, at random pixels: positions, outward normals and colours (0 .. 1)."""
        origins, directions = _rays(camera, 1)
        pixels = generator.integers(0, len(origins), 4 * count)
        hits = self._intersect(origins[pixels], directions[pixels])
        hit_rows = np.flatnonzero(np.isfinite(hits.travelled))[:count]
        points = origins[pixels][hit_rows] + hits.travelled[hit_rows, None] * directions[pixels][hit_rows]
        return points, self._normals(points, hits.solid[hit_rows]), self.colours(points, hits.solid[hit_rows])

    def colours(self, points: Array, solid: NDArray[np.int64]) -> Array:
        """Return the colours (0 .. 1) of surface points: texture, light from one side, darker in nooks."""
        normals = self._normals(points, solid)
        texture = np.zeros_like(points)
        for number, spec in enumerate(self._solids):
            rows = solid == number
            texture[rows] = spec.texture(spec.local(points[rows]))
        illumination = _AMBIENT + (1 - _AMBIENT) * np.maximum(normals @ _LIGHT, 0)
        # Cheap ambient occlusion: the distance field sampled a little way along the normal.
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
        travelled = np.stack([solid.intersect(origins, directions) for solid in self._solids])
        return _Hits(travelled.min(0), travelled.argmin(0))


def _rays(camera: Camera, samples: int) -> tuple[Array, Array]:
    """Return origins and unit directions of the rays through a grid of `samples` x `samples` in every pixel."""
    finer = camera.to("cpu", torch.float64).resized(camera.width * samples, camera.height * samples)
    origins, directions = finer.rays()
    return origins.reshape(-1, 3).numpy(), directions.reshape(-1, 3).numpy()
