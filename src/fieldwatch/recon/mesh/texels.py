"""Rasterization of a mesh in texture space: the face of each texel, and the point on it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles

REACH = math.sqrt(2)
"""Distance in texels from a face within which bilinear sampling inside the face reads (one in each direction)."""
_PAIRS = 1 << 20  # pairs of face and texel per batch


@dataclass(frozen=True, kw_only=True, eq=False)
class Texels:
    """The texels of a square texture that a mesh uses, in row order.

    Attributes:
        size: side of the texture in texels.
        indices: index of each texel, row by row from the upper left.
        faces: face of each texel.
        weights: barycentric coordinates on that face of the texel's center, or of the point nearest to the center.
        inside: True if the center lies in the face; False for a border texel, which only sampling near an edge reads.
    """

    size: int
    indices: Int64[np.ndarray, "t"]
    faces: Int64[np.ndarray, "t"]
    weights: Float32[np.ndarray, "t 3"]
    inside: Bool[np.ndarray, "t"]

    def __len__(self) -> int:
        return len(self.indices)

    def points(self, mesh: Triangles, rows: Int64[np.ndarray, "k"]) -> Float64[np.ndarray, "k 3"]:
        """Return the surface points of the selected texels."""
        return np.einsum("kc,kci->ki", self.weights[rows], mesh.corners[self.faces[rows]])


def find_texels(mesh: Triangles, size: int) -> Texels:
    """Find the texels that a mesh uses in a texture of a given size, including the border around each face.

    If faces overlap in the texture, a texel belongs to the first of them. Coordinates outside the texture are not
    wrapped around.

    Raises:
        MeshError: the mesh has no texture coordinates, or none of its faces touches the texture.
    """
    if mesh.uvs is None:
        raise MeshError("the mesh has no texture coordinates: compute them with unwrapped()")
    corners = mesh.uvs * size
    # v runs upward, rows run downward.
    corners[..., 1] = size - corners[..., 1]
    nearest = np.full(size * size, np.inf, np.float32)
    face_of_texel = np.full(size * size, -1, np.int32)
    for faces, texels in _candidates(corners, size):
        distance, _ = _closest(corners[faces], _centers(texels, size))
        better = np.flatnonzero((distance <= REACH) & (distance < nearest[texels]))
        # With repeated indices the last assignment wins: sort the nearest, then the first face, to the end.
        better = better[np.lexsort((-faces[better], -distance[better]))]
        nearest[texels[better]] = distance[better]
        face_of_texel[texels[better]] = faces[better]
    indices = np.flatnonzero(face_of_texel >= 0)
    if not len(indices):
        raise MeshError("no face of the mesh lies in the texture: its texture coordinates are outside 0 to 1")
    faces = face_of_texel[indices].astype(np.int64)
    weights = np.empty((len(indices), 3), np.float32)
    for start in range(0, len(indices), _PAIRS):
        rows = slice(start, start + _PAIRS)
        _, weights[rows] = _closest(corners[faces[rows]], _centers(indices[rows], size))
    return Texels(size=size, indices=indices, faces=faces, weights=weights, inside=nearest[indices] == 0)


def _centers(texels: Int64[np.ndarray, "k"], size: int) -> Float64[np.ndarray, "k 2"]:
    return np.stack([texels % size, texels // size], axis=1) + 0.5


def _candidates(
    corners: Float64[np.ndarray, "m 3 2"], size: int
) -> Iterator[tuple[Int64[np.ndarray, "k"], Int64[np.ndarray, "k"]]]:
    """Yield batches of pairs of a face and a texel of its bounding box."""
    # Texels whose centers are within REACH of the face's bounding box.
    low = np.ceil(corners.min(1) - REACH - 0.5).clip(0, size).astype(np.int64)
    end = np.floor(corners.max(1) + REACH + 0.5).clip(0, size).astype(np.int64)
    spans = np.maximum(end - low, 0)
    rows_per_band = max(1, _PAIRS // max(int(spans[:, 0].max(initial=1)), 1))
    # A large face is split into several bands of rows, so that no batch exceeds _PAIRS by much.
    face = np.repeat(np.arange(len(corners)), -(-spans[:, 1] // rows_per_band))
    first = np.arange(len(face)) - np.searchsorted(face, face)
    top = low[face, 1] + first * rows_per_band
    counts = np.minimum(end[face, 1] - top, rows_per_band) * spans[face, 0]
    keep = counts > 0
    face = face[keep]
    top = top[keep]
    counts = counts[keep]
    if not len(face):
        return
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, np.arange(0, int(ends[-1]), _PAIRS), side="right")
    for start, stop in zip(cuts, [*cuts[1:], len(face)], strict=True):
        band_rows = slice(int(start), int(stop))
        pair_bands = np.repeat(face[band_rows], counts[band_rows])
        offset = np.arange(len(pair_bands)) - np.repeat(
            ends[band_rows] - counts[band_rows] - (ends[band_rows] - counts[band_rows])[:1], counts[band_rows]
        )
        width = spans[pair_bands, 0]
        rows = np.repeat(top[band_rows], counts[band_rows]) + offset // np.maximum(width, 1)
        yield pair_bands, rows * size + low[pair_bands, 0] + offset % np.maximum(width, 1)


def _closest(
    corners: Float64[np.ndarray, "k 3 2"], points: Float64[np.ndarray, "k 2"]
) -> tuple[Float64[np.ndarray, "k"], Float64[np.ndarray, "k 3"]]:
    """Return distances of points to triangles in the plane (0 inside) and barycentric weights of the nearest points."""
    areas = np.empty((len(points), 3))
    best = np.full(len(points), np.inf)
    weights = np.zeros((len(points), 3))
    for corner in range(3):
        first = (corner + 1) % 3
        second = (corner + 2) % 3
        side = corners[:, second] - corners[:, first]
        offset = points - corners[:, first]
        areas[:, corner] = side[:, 0] * offset[:, 1] - side[:, 1] * offset[:, 0]
        length = (side**2).sum(1)
        along = np.divide((side * offset).sum(1), length, out=np.zeros(len(points)), where=length > 0).clip(0, 1)
        squared = ((offset - along[:, None] * side) ** 2).sum(1)
        nearer = squared < best
        best[nearer] = squared[nearer]
        weights[nearer] = 0
        weights[nearer, first] = 1 - along[nearer]
        weights[nearer, second] = along[nearer]
    # The sum of the edge functions is twice the signed area of the triangle.
    total = areas.sum(1)
    # Accept either winding: texture coordinates may be mirrored.
    inside = ((areas >= 0).all(1) | (areas <= 0).all(1)) & (total != 0)
    weights[inside] = areas[inside] / total[inside, None]
    return np.where(inside, 0, np.sqrt(best)), weights
