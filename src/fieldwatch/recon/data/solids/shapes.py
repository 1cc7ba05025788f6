"""Solid forms around the origin: exact signed distances, where rays meet them, and which way their surface faces."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_HIT_DISTANCE = 1e-9  # world units: a marching ray has arrived
_NEWTON_DISTANCE = 1e-3  # a ray that is still under way this near is brought to the surface by Newton's method
_MAX_STEPS = 96
_NEWTON_STEPS = 6
_NEWTON_TOLERANCE = 1e-6


@runtime_checkable
class SolidShape(Protocol):
    """A solid around the origin."""

    @property
    def bounding_radius(self) -> float:
        """Radius of a ball around the origin that holds it."""
        ...

    def distance(self, points: Array) -> Array:
        """Return exact signed distances, negative inside; (n, 3) to (n,)."""
        ...

    def normals(self, points: Array) -> Array:
        """Return the gradient of the distance, a unit vector that faces outwards; (n, 3) to (n, 3)."""
        ...

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Return how far along unit directions rays from outside meet the form; infinite where they miss it."""
        ...


@dataclass(frozen=True)
class Sphere:
    """A ball."""

    radius: float

    @property
    def bounding_radius(self) -> float:
        """Its radius."""
        return self.radius

    def distance(self, points: Array) -> Array:
        """Distance from the centre, less the radius."""
        return _lengths(points) - self.radius

    def normals(self, points: Array) -> Array:
        """Away from the centre."""
        return _unit(points)

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Solve the quadratic equation."""
        return _sphere_span(self.radius, origins, directions)[0]


@dataclass(frozen=True)
class Cylinder:
    """A flat cylinder that stands upright: `radius` wide, `half` above and below the origin."""

    radius: float
    half: float

    @property
    def bounding_radius(self) -> float:
        """Distance of its edge."""
        return math.hypot(self.radius, self.half)

    def distance(self, points: Array) -> Array:
        """Distance to a rectangle in the plane of the axis and the point."""
        beside, above = self._offsets(points)
        outside = np.hypot(np.maximum(beside, 0), np.maximum(above, 0))
        return outside + np.minimum(np.maximum(beside, above), 0)

    def normals(self, points: Array) -> Array:
        """Outwards from the side, up or down from the ends, in between at the edge."""
        beside, above = self._offsets(points)
        outwards = _unit(points * [1, 1, 0])
        upwards = np.sign(points[:, 2:]) * [0, 0, 1]
        edge = (beside > 0) & (above > 0)
        flat = np.where((above >= beside)[:, None], upwards, outwards)
        return np.where(edge[:, None], _unit(outwards * beside[:, None] + upwards * above[:, None]), flat)

    def intersect(self, origins: Array, directions: Array) -> Array:
        """Cut the ray's span within the infinite cylinder with that between the two planes."""
        flat = directions[:, :2]
        a = row_dots(flat, flat)
        b = row_dots(origins[:, :2], flat)
        c = row_dots(origins[:, :2], origins[:, :2]) - self.radius**2
        root = np.sqrt(np.maximum(b * b - a * c, 0))
        # A ray parallel to the axis never meets the side; the division must stay finite.
        a = np.maximum(a, 1e-30)
        steep = np.where(np.abs(directions[:, 2]) < 1e-30, 1e-30, directions[:, 2])
        ends = np.stack([(-self.half - origins[:, 2]) / steep, (self.half - origins[:, 2]) / steep])
        first = np.maximum((-b - root) / a, ends.min(0))
        last = np.minimum((-b + root) / a, ends.max(0))
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
        """Distance of its outer rim."""
        return self.major + self.minor

    def distance(self, points: Array) -> Array:
        """Distance from the circle in the middle of the tube, less the tube's radius."""
        return np.hypot(np.hypot(points[:, 0], points[:, 1]) - self.major, points[:, 2]) - self.minor

    def normals(self, points: Array) -> Array:
        """Away from the circle in the middle of the tube."""
        return _unit(points - self.major * _unit(points * [1, 1, 0]))

    def intersect(self, origins: Array, directions: Array) -> Array:
        """March along the ray."""
        return sphere_trace(self, origins, directions)


@dataclass(frozen=True)
class RoundedBox:
    """A box with round edges; `half` is half its outer size."""

    half: tuple[float, float, float]
    rounding: float

    @property
    def bounding_radius(self) -> float:
        """Distance of its corners, were they sharp."""
        return math.hypot(*self.half)

    def distance(self, points: Array) -> Array:
        """Distance to the smaller box inside, less the radius of the rounding."""
        beyond = self._beyond(points)
        outside = _lengths(np.maximum(beyond, 0))
        return outside + np.minimum(np.maximum(np.maximum(beyond[:, 0], beyond[:, 1]), beyond[:, 2]), 0) - self.rounding

    def normals(self, points: Array) -> Array:
        """Away from the nearest point of the smaller box; inside of it, towards its nearest face."""
        beyond = self._beyond(points)
        face = np.eye(3)[beyond.argmax(1)]
        outside = beyond.max(1, keepdims=True) > 0
        return _unit(np.where(outside, np.maximum(beyond, 0), face)) * np.where(points < 0, -1.0, 1.0)

    def intersect(self, origins: Array, directions: Array) -> Array:
        """March along the ray."""
        return sphere_trace(self, origins, directions)

    def _beyond(self, points: Array) -> Array:
        return np.abs(points) - (np.array(self.half) - self.rounding)


def sphere_trace(shape: SolidShape, origins: Array, directions: Array) -> Array:
    """Return how far rays from outside go until they meet a form: steps as long as its distance, then Newton's method.

    Rays that miss the ball around the form are done at once; rays along its surface, which would creep, are finished by
    Newton's method and count only if it arrives.
    """
    first, last = _sphere_span(shape.bounding_radius, origins, directions)
    result = np.full(len(origins), np.inf)
    active = np.flatnonzero(np.isfinite(first))
    travelled = first[active]
    for _ in range(_MAX_STEPS):
        gap = shape.distance(origins[active] + travelled[:, None] * directions[active])
        # Sphere tracing: no surface is nearer than the signed distance.
        travelled = travelled + gap
        arrived = gap < _HIT_DISTANCE
        missed = travelled > last[active]
        result[active[arrived & ~missed]] = travelled[arrived & ~missed]
        continuing = ~(arrived | missed)
        active = active[continuing]
        travelled = travelled[continuing]
        if not len(active):
            return result
    gap = shape.distance(origins[active] + travelled[:, None] * directions[active])
    rays = active[gap < _NEWTON_DISTANCE]
    distances = travelled[gap < _NEWTON_DISTANCE]
    result[rays] = _newton(shape, origins[rays], directions[rays], distances)
    return result


def _newton(shape: SolidShape, origins: Array, directions: Array, travelled: Array) -> Array:
    for _ in range(_NEWTON_STEPS):
        points = origins + travelled[:, None] * directions
        # Newton's step on the distance along the ray; the bound keeps grazing rays from diverging.
        slope = row_dots(shape.normals(points), directions)
        travelled = travelled - shape.distance(points) / np.minimum(slope, -1e-6)
    arrived = np.abs(shape.distance(origins + travelled[:, None] * directions)) < _NEWTON_TOLERANCE
    return np.where(arrived, travelled, np.inf)


def _sphere_span(radius: float, origins: Array, directions: Array) -> tuple[Array, Array]:
    """Return where rays enter and leave a ball around the origin; infinite where they miss it or start beyond it."""
    middle = -row_dots(origins, directions)
    nearest = origins + middle[:, None] * directions
    squared = radius**2 - row_dots(nearest, nearest)
    half = np.sqrt(np.maximum(squared, 0))
    hit = (squared > 0) & (middle - half > 0)
    return np.where(hit, middle - half, np.inf), np.where(hit, middle + half, np.inf)


def _unit(vectors: Array) -> Array:
    return vectors / np.maximum(_lengths(vectors), 1e-300)[:, None]


def _lengths(vectors: Array) -> Array:
    return np.sqrt(row_dots(vectors, vectors))


def row_dots(first: Array, second: Array) -> Array:
    """Return the inner product row by row; several times faster than a sum over an axis of three."""
    return np.einsum("ij,ij->i", first, second)
