"""Texture atlases: where each face of a mesh lies in a picture, without two lying on each other."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import xatlas
from jaxtyping import Float64

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles

AtlasLayout = Literal["xatlas", "squares"]
SMALLEST_SQUARE = 4
LARGEST_SIZE = 16384
"""Texels along a side: what graphics cards take."""
_INSET = 0.5
_DIAGONAL_GAP = 2.5
"""Texels from a square's sides to the two faces' corners, and from their sloping sides' ends to its corners: the four
texels that bilinear sampling takes anywhere inside a face are then never those of the other face."""


def unwrapped(mesh: Triangles, *, method: AtlasLayout = "xatlas", size: int = 2048, padding: int = 4) -> Triangles:
    """Return a mesh with texture coordinates of its own, `uvs`; a texture or coordinates that it had are dropped.

    `xatlas` cuts the surface into charts and packs them (J. Young, xatlas; after Levy et al., Least squares conformal
    maps, 2002): few seams, texels of about the same size everywhere. Its time grows faster than the number of faces:
    up to some 100,000 faces it is the better choice. `squares` gives every two faces a square of their own, whatever
    their shape: instant and always possible, with as many seams as edges.

    Args:
        mesh: any, closed or open.
        method: the layout.
        size: texels along a side of the square picture that will be baked.
        padding: texels between charts (`xatlas`); of `squares`, guard bands are fixed.

    Raises:
        MeshError: no faces, a size out of bounds, or too small for that many faces; the message says what fits.
    """
    if not len(mesh.faces):
        raise MeshError("the mesh has no faces to lay out: what made it found no surface")
    if not 1 <= size <= LARGEST_SIZE:
        msg = f"a picture of {size} x {size} texels was asked for: sizes from 1 to {LARGEST_SIZE} can be made"
        raise MeshError(msg)
    uvs = _square_uvs(len(mesh.faces), size) if method == "squares" else _xatlas_uvs(mesh, size, padding)
    return replace(mesh, uvs=uvs, texture=None)


def squares_across(faces: int) -> int:
    """Return how many squares stand in a row of the layout `squares` of so many faces."""
    pairs = -(-faces // 2)
    return math.isqrt(pairs - 1) + 1 if pairs else 0


def _square_uvs(faces: int, size: int) -> Float64[np.ndarray, "m 3 2"]:
    across = squares_across(faces)
    square = size // across
    if square < SMALLEST_SQUARE:
        fitting_faces = 2 * (size // SMALLEST_SQUARE) ** 2
        msg = (
            f"{faces} faces do not fit {size} x {size} texels: two share a square of at least {SMALLEST_SQUARE} x "
            f"{SMALLEST_SQUARE}; ask for {SMALLEST_SQUARE * across} texels or more, or decimate to {fitting_faces} "
            "faces"
        )
        raise MeshError(msg)
    low = _INSET
    high = square - _DIAGONAL_GAP
    first_triangle = np.array([[low, low], [high, low], [low, high]])
    triangles = np.stack([first_triangle, square - first_triangle])
    number = np.arange(faces)
    # Two faces share a square: the lower and the upper triangle.
    corner = np.stack([number // 2 % across, number // 2 // across], axis=1) * square
    return (corner[:, None] + triangles[number % 2]) / size


def _xatlas_uvs(mesh: Triangles, size: int, padding: int) -> Float64[np.ndarray, "m 3 2"]:
    atlas = xatlas.Atlas()
    atlas.add_mesh(_unit(mesh.vertices).astype(np.float32), mesh.faces.astype(np.uint32))
    packing = xatlas.PackOptions()
    packing.resolution = size
    packing.padding = padding
    # Leaves room for the four texels of bilinear sampling around each chart.
    packing.bilinear = True
    atlas.generate(xatlas.ChartOptions(), packing)
    side = max(atlas.width, atlas.height)  # near to `size`: it is an estimate
    rows, faces, texel_positions = atlas[0]
    # The result is usable only if xatlas kept every face, in order.
    if not np.array_equal(rows[faces], mesh.faces) or atlas.atlas_count != 1 or not side:
        msg = f"xatlas laid {len(mesh.faces)} faces out on {atlas.atlas_count} pictures: choose the layout 'squares'"
        raise MeshError(msg)
    texels = texel_positions.astype(np.float64) * (atlas.width, atlas.height)
    return np.clip(texels / side, 0, 1)[faces]


def _unit(positions: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n 3"]:
    """Around 0 and of size 1: xatlas counts in single precision, with absolute tolerances."""
    low = positions.min(0)
    high = positions.max(0)
    return (positions - (low + high) / 2) / max(float((high - low).max()), 1e-300)
