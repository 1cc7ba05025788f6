"""Texels of a texture: which face each of them shows, and where on it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles

REACH = math.sqrt(2)
"""Texels around a face that sampling inside it may take (bilinear: less than one, across and down)."""
_PAIRS = 1 << 20  # of face and texel that are looked at together


@dataclass(frozen=True, kw_only=True, eq=False)
class Texels:
    """The texels of a square picture that a mesh uses, in the order of the picture's rows.

    Attributes:
        size: texels along a side of the picture.
        places: of each texel in the picture, counted row by row from the upper left.
        faces: the face that it shows.
        weights: barycentric, of that face's corners: the texel's centre, or the point of the face nearest to it.
        inside: its centre lies in the face; else it is a border texel, which only sampling near an edge takes.
    """

    size: int
    places: Int64[np.ndarray, "t"]
    faces: Int64[np.ndarray, "t"]
    weights: Float32[np.ndarray, "t 3"]
    inside: Bool[np.ndarray, "t"]

    def __len__(self) -> int:
        return len(self.places)

    def points(self, mesh: Triangles, rows: Int64[np.ndarray, "k"]) -> Float64[np.ndarray, "k 3"]:
        """Return the places on the surface that some of the texels show."""
        return np.einsum("kc,kci->ki", self.weights[rows], mesh.corners[self.faces[rows]])


def find_texels(mesh: Triangles, size: int) -> Texels:
    """Return the texels that a mesh with `uvs` uses in a picture of a size; those around its faces are included.

    Where faces overlap in the picture, a texel belongs to the one that comes first. Texels outside the picture are not
    wrapped around.

    Raises:
        MeshError: the mesh has no texture coordinates, or none of its faces touches the picture.
    """
    if mesh.uvs is None:
        raise MeshError("the mesh has no texture coordinates: lay it out first (unwrapped)")
    corners = mesh.uvs * size
    corners[..., 1] = size - corners[..., 1]
    nearest = np.full(size * size, np.inf, np.float32)
    owner = np.full(size * size, -1, np.int32)
    for faces, texels in _candidates(corners, size):
        gap, _ = _closest(corners[faces], _centres(texels, size))
        better = np.flatnonzero((gap <= REACH) & (gap < nearest[texels]))
        better = better[np.lexsort((-faces[better], -gap[better]))]  # of equal places the last one written stays
        nearest[texels[better]] = gap[better]
        owner[texels[better]] = faces[better]
    places = np.flatnonzero(owner >= 0)
    if not len(places):
        raise MeshError("no face of the mesh lies in the picture: its texture coordinates are outside 0 to 1")
    faces = owner[places].astype(np.int64)
    weights = np.empty((len(places), 3), np.float32)
    for start in range(0, len(places), _PAIRS):
        part = slice(start, start + _PAIRS)
        _, weights[part] = _closest(corners[faces[part]], _centres(places[part], size))
    return Texels(size=size, places=places, faces=faces, weights=weights, inside=nearest[places] == 0)


def _centres(texels: Int64[np.ndarray, "k"], size: int) -> Float64[np.ndarray, "k 2"]:
    return np.stack([texels % size, texels // size], axis=1) + 0.5


def _candidates(
    corners: Float64[np.ndarray, "m 3 2"], size: int
) -> Iterator[tuple[Int64[np.ndarray, "k"], Int64[np.ndarray, "k"]]]:
    """Faces and the texels of the boxes around them, some at a time."""
    low = np.ceil(corners.min(1) - REACH - 0.5).clip(0, size).astype(np.int64)
    end = np.floor(corners.max(1) + REACH + 0.5).clip(0, size).astype(np.int64)
    spans = np.maximum(end - low, 0)
    bands = max(1, _PAIRS // max(int(spans[:, 0].max(initial=1)), 1))
    face = np.repeat(np.arange(len(corners)), -(-spans[:, 1] // bands))  # a large face comes in several bands of rows
    first = np.arange(len(face)) - np.searchsorted(face, face)
    top = low[face, 1] + first * bands
    counts = np.minimum(end[face, 1] - top, bands) * spans[face, 0]
    kept = counts > 0
    face = face[kept]
    top = top[kept]
    counts = counts[kept]
    if not len(face):
        return
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, np.arange(0, int(ends[-1]), _PAIRS), side="right")
    for start, stop in zip(cuts, [*cuts[1:], len(face)], strict=True):
        part = slice(int(start), int(stop))
        pair = np.repeat(face[part], counts[part])
        at = np.arange(len(pair)) - np.repeat(ends[part] - counts[part] - (ends[part] - counts[part])[:1], counts[part])
        width = spans[pair, 0]
        rows = np.repeat(top[part], counts[part]) + at // np.maximum(width, 1)
        yield pair, rows * size + low[pair, 0] + at % np.maximum(width, 1)


def _closest(
    corners: Float64[np.ndarray, "k 3 2"], points: Float64[np.ndarray, "k 2"]
) -> tuple[Float64[np.ndarray, "k"], Float64[np.ndarray, "k 3"]]:
    """Distances of points to triangles in the plane, 0 inside, and barycentric weights of the nearest points."""
    areas = np.empty((len(points), 3))
    best = np.full(len(points), np.inf)
    weights = np.zeros((len(points), 3))
    for corner in range(3):
        one = (corner + 1) % 3
        two = (corner + 2) % 3
        side = corners[:, two] - corners[:, one]
        off = points - corners[:, one]
        areas[:, corner] = side[:, 0] * off[:, 1] - side[:, 1] * off[:, 0]
        length = (side**2).sum(1)
        along = np.divide((side * off).sum(1), length, out=np.zeros(len(points)), where=length > 0).clip(0, 1)
        gap = ((off - along[:, None] * side) ** 2).sum(1)
        nearer = gap < best
        best[nearer] = gap[nearer]
        weights[nearer] = 0
        weights[nearer, one] = 1 - along[nearer]
        weights[nearer, two] = along[nearer]
    total = areas.sum(1)
    inside = ((areas >= 0).all(1) | (areas <= 0).all(1)) & (total != 0)
    weights[inside] = areas[inside] / total[inside, None]
    return np.where(inside, 0, np.sqrt(best)), weights
