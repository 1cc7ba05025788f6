"""Solid shapes around the origin with exact signed distances, normals and ray intersections."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_HIT_DISTANCE = 1e-9  # world units: distance at which a marching ray has hit the surface
_NEWTON_DISTANCE = 1e-3  # world units: unfinished rays this close are refined by Newton's method
_MAX_STEPS = 96
_NEWTON_STEPS = 6
_NEWTON_TOLERANCE = 1e-6


@runtime_checkable
class SolidShape(Protocol):
    """Interface of a solid around the origin."""

    @property
    def bounding_radius(self) -> float:
        """Radius of a sphere around the origin that contains the shape."""
        ...

    def distance(self, points: Array) -> Array:
        """Return exact signed distances of shape (n,), negative inside, for points of shape (n, 3)."""
        ...

    def normals(self, points: Array) -> Array:
        """Return outward unit normals (gradients of the distance) of shape (n, 3) for points of shape (n, 3)."""
        ...

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Return the distances of shape (n,) at which rays from outside hit the shape; infinite if they miss it."""
        ...


@dataclass(frozen=True)
class Sphere:
    """A ball."""

    radius: float

    @property
    def bounding_radius(self) -> float:
        """The radius."""
        return self.radius

    def distance(self, points: Array) -> Array:
        """Return the distance to the center minus the radius."""
        return _lengths(points) - self.radius

    def normals(self, points: Array) -> Array:
        """Return unit vectors away from the center."""
        return _unit(points)

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Intersect rays with the sphere by solving a quadratic equation."""
        return _sphere_span(self.radius, origins, directions)[0]


@dataclass(frozen=True)
class Cylinder:
    """An upright cylinder that extends from -half to half along z."""

    radius: float
    half: float

    @property
    def bounding_radius(self) -> float:
        """Distance of the edge from the origin."""
        return math.hypot(self.radius, self.half)

    def distance(self, points: Array) -> Array:
        """Return the distance to a rectangle in the plane of the axis and the point."""
        beside, above = self._offsets(points)
        # Inside, both offsets are negative and the larger one belongs to the nearest side.
        outside = np.hypot(np.maximum(beside, 0), np.maximum(above, 0))
        return outside + np.minimum(np.maximum(beside, above), 0)

    def normals(self, points: Array) -> Array:
        """Return radial normals at the side, vertical ones at the caps, and interpolated ones at the edges."""
        beside, above = self._offsets(points)
        radial = _unit(points * [1, 1, 0])
        vertical = np.sign(points[:, 2:]) * [0, 0, 1]
        # Outside both side and cap, the nearest point is on the edge.
        edge = (beside > 0) & (above > 0)
        flat = np.where((above >= beside)[:, None], vertical, radial)
        return np.where(edge[:, None], _unit(radial * beside[:, None] + vertical * above[:, None]), flat)

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Intersect the ray's interval in the infinite cylinder with its interval between the two planes."""
        flat = directions[:, :2]
        a = row_dots(flat, flat)
        b = row_dots(origins[:, :2], flat)
        c = row_dots(origins[:, :2], origins[:, :2]) - self.radius**2
        root = np.sqrt(np.maximum(b * b - a * c, 0))
        # Rays parallel to the axis or to the caps would otherwise divide by 0.
        a = np.maximum(a, 1e-30)
        steep = np.where(np.abs(directions[:, 2]) < 1e-30, 1e-30, directions[:, 2])
        ends = np.stack([(-self.half - origins[:, 2]) / steep, (self.half - origins[:, 2]) / steep])
        first = np.maximum((-b - root) / a, ends.min(0))
        last = np.minimum((-b + root) / a, ends.max(0))
        # Rays start outside, so an entry behind the origin means that the shape is behind, too.
        return np.where((b * b - a * c > 0) & (first < last) & (first > 0), first, np.inf)

    def _offsets(self, points: Array) -> tuple[Array, Array]:
        return np.hypot(points[:, 0], points[:, 1]) - self.radius, np.abs(points[:, 2]) - self.half


@dataclass(frozen=True)
class Torus:
    """A torus around the z axis."""

    major: float
    minor: float

    @property
    def bounding_radius(self) -> float:
        """Distance of the outer rim from the origin."""
        return self.major + self.minor

    def distance(self, points: Array) -> Array:
        """Return the distance to the center circle of the tube minus the tube's radius."""
        return np.hypot(np.hypot(points[:, 0], points[:, 1]) - self.major, points[:, 2]) - self.minor

    def normals(self, points: Array) -> Array:
        """Return unit vectors away from the center circle of the tube."""
        return _unit(points - self.major * _unit(points * [1, 1, 0]))

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Intersect rays with the torus by sphere tracing."""
        return sphere_trace(self, origins, directions)


@dataclass(frozen=True)
class RoundedBox:
    """A box with rounded edges; `half` contains half the outer side lengths."""

    half: tuple[float, float, float]
    rounding: float

    @property
    def bounding_radius(self) -> float:
        """Distance of the corners of the box without rounding."""
        return math.hypot(*self.half)

    def distance(self, points: Array) -> Array:
        """Return the distance to the inner box minus the rounding radius."""
        beyond = self._beyond(points)
        outside = _lengths(np.maximum(beyond, 0))
        return outside + np.minimum(np.maximum(np.maximum(beyond[:, 0], beyond[:, 1]), beyond[:, 2]), 0) - self.rounding

    def normals(self, points: Array) -> Array:
        """Return unit vectors away from the nearest point of the inner box; inside it, toward its nearest face."""
        beyond = self._beyond(points)
        face = np.eye(3)[beyond.argmax(1)]
        outside = beyond.max(1, keepdims=True) > 0
        return _unit(np.where(outside, np.maximum(beyond, 0), face)) * np.where(points < 0, -1.0, 1.0)

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Intersect rays with the box by sphere tracing."""
        return sphere_trace(self, origins, directions)

    def _beyond(self, points: Array) -> Array:
        return np.abs(points) - (np.array(self.half) - self.rounding)


def sphere_trace(shape: SolidShape, origins: Array, directions: Array) -> Array:
    """Return the distances at which rays from outside hit a shape, by sphere tracing and Newton's method.

    Rays that miss the bounding sphere are rejected at once. Grazing rays, for which sphere tracing converges slowly,
    are finished by Newton's method and count as hits only if it converges.
    """
    first, last = _sphere_span(shape.bounding_radius, origins, directions)
    result = np.full(len(origins), np.inf)
    active = np.flatnonzero(np.isfinite(first))
    traveled = first[active]
    for _ in range(_MAX_STEPS):
        gap = shape.distance(origins[active] + traveled[:, None] * directions[active])
        # A step of the signed distance cannot pass through the surface.
        traveled = traveled + gap
        arrived = gap < _HIT_DISTANCE
        missed = traveled > last[active]
        result[active[arrived & ~missed]] = traveled[arrived & ~missed]
        continuing = ~(arrived | missed)
        active = active[continuing]
        traveled = traveled[continuing]
        if not len(active):
            return result
    # Rays that are still active graze the surface or creep past it; only close ones can hit.
    gap = shape.distance(origins[active] + traveled[:, None] * directions[active])
    rays = active[gap < _NEWTON_DISTANCE]
    distances = traveled[gap < _NEWTON_DISTANCE]
    result[rays] = _newton(shape, origins[rays], directions[rays], distances)
    return result


def _newton(shape: SolidShape, origins: Array, directions: Array, traveled: Array) -> Array:
    for _ in range(_NEWTON_STEPS):
        points = origins + traveled[:, None] * directions
        # Newton's step for the distance along the ray; bounding the slope keeps grazing rays from diverging.
        slope = row_dots(shape.normals(points), directions)
        traveled = traveled - shape.distance(points) / np.minimum(slope, -1e-6)
    arrived = np.abs(shape.distance(origins + traveled[:, None] * directions)) < _NEWTON_TOLERANCE
    return np.where(arrived, traveled, np.inf)


def _sphere_span(radius: float, origins: Array, directions: Array) -> tuple[Array, Array]:
    """Return the distances at which rays enter and leave a sphere around the origin.

    Both are infinite if the ray misses the sphere or starts beyond its entry.
    """
    middle = -row_dots(origins, directions)
    nearest = origins + middle[:, None] * directions
    # Half the chord by Pythagoras. This loses fewer digits than the quadratic formula for distant origins.
    squared = radius**2 - row_dots(nearest, nearest)
    half = np.sqrt(np.maximum(squared, 0))
    hit = (squared > 0) & (middle - half > 0)
    return np.where(hit, middle - half, np.inf), np.where(hit, middle + half, np.inf)


def _unit(vectors: Array) -> Array:
    # The bound keeps zero vectors zero instead of NaN.
    return vectors / np.maximum(_lengths(vectors), 1e-300)[:, None]


def _lengths(vectors: Array) -> Array:
    return np.sqrt(row_dots(vectors, vectors))


def row_dots(first: Array, second: Array) -> Array:
    """Return inner products row by row; einsum is several times faster than a sum over an axis of length 3."""
    return np.einsum("ij,ij->i", first, second)
