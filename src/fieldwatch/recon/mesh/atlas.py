"""Texture atlases: parameterization of a mesh onto a texture without overlaps."""

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
"""Largest texture side in texels that common graphics cards accept."""
_INSET = 0.5
_DIAGONAL_GAP = 2.5
"""Insets in texels, of a face's legs from the sides of its square and of its diagonal's ends from the corners.

They are chosen such that bilinear sampling anywhere inside one face never reads texels of the other face."""


def unwrapped(mesh: Triangles, *, method: AtlasLayout = "xatlas", size: int = 2048, padding: int = 4) -> Triangles:
    """Return a mesh with new texture coordinates `uvs`; its previous uvs and texture are dropped.

    `xatlas` cuts the surface into charts and packs them (J. Young, xatlas; after Levy et al., Least squares conformal
    maps, 2002), with few seams and texels of nearly uniform size. Its time grows faster than the number of faces; up to
    about 100,000 faces it is the better choice. `squares` puts every two faces into one square, whatever their shape.
    It is instant and always possible, but every edge is a seam.

    Args:
        mesh: closed or open mesh.
        method: layout algorithm.
        size: side of the square texture to be baked, in texels.
        padding: gap between charts in texels (`xatlas` only; the guard bands of `squares` are fixed).

    Raises:
        MeshError: the mesh has no faces, or the size is out of range or too small for the number of faces; the message
            says which size fits.
    """
    if not len(mesh.faces):
        raise MeshError("the mesh has no faces to unwrap: no surface was found; check the step that made it")
    if not 1 <= size <= LARGEST_SIZE:
        msg = f"the texture size must be from 1 to {LARGEST_SIZE} texels, got {size}"
        raise MeshError(msg)
    uvs = _square_uvs(len(mesh.faces), size) if method == "squares" else _xatlas_uvs(mesh, size, padding)
    return replace(mesh, uvs=uvs, texture=None)


def squares_across(faces: int) -> int:
    """Return the number of squares per row of the layout `squares` for a number of faces."""
    # Rounded up: an odd last face has a square alone.
    pairs = -(-faces // 2)
    return math.isqrt(pairs - 1) + 1 if pairs else 0


def _square_uvs(faces: int, size: int) -> Float64[np.ndarray, "m 3 2"]:
    across = squares_across(faces)
    square = size // across
    if square < SMALLEST_SQUARE:
        fitting_faces = 2 * (size // SMALLEST_SQUARE) ** 2
        msg = (
            f"{faces} faces do not fit {size} x {size} texels: two share a square of at least {SMALLEST_SQUARE} x "
            f"{SMALLEST_SQUARE}; use a size of at least {SMALLEST_SQUARE * across}, or decimate to {fitting_faces} "
            "faces"
        )
        raise MeshError(msg)
    low = _INSET
    high = square - _DIAGONAL_GAP
    first_triangle = np.array([[low, low], [high, low], [low, high]])
    triangles = np.stack([first_triangle, square - first_triangle])
    number = np.arange(faces)
    # Even faces are the lower left triangle of a square, odd faces the upper right one.
    corner = np.stack([number // 2 % across, number // 2 // across], axis=1) * square
    return (corner[:, None] + triangles[number % 2]) / size


def _xatlas_uvs(mesh: Triangles, size: int, padding: int) -> Float64[np.ndarray, "m 3 2"]:
    atlas = xatlas.Atlas()
    atlas.add_mesh(_unit(mesh.vertices).astype(np.float32), mesh.faces.astype(np.uint32))
    packing = xatlas.PackOptions()
    packing.resolution = size
    packing.padding = padding
    # Leave room for bilinear sampling around each chart.
    packing.bilinear = True
    atlas.generate(xatlas.ChartOptions(), packing)
    side = max(atlas.width, atlas.height)  # close to `size`, which xatlas only takes as an estimate
    rows, faces, texel_positions = atlas[0]
    # xatlas may drop faces or open a second atlas: the uvs are then not those of our faces.
    if not np.array_equal(rows[faces], mesh.faces) or atlas.atlas_count != 1 or not side:
        msg = f"xatlas did not keep all {len(mesh.faces)} faces in one atlas, but in {atlas.atlas_count}: use squares"
        raise MeshError(msg)
    # xatlas returns normalized coordinates of a possibly non-square atlas; the texture is square.
    texels = texel_positions.astype(np.float64) * (atlas.width, atlas.height)
    return np.clip(texels / side, 0, 1)[faces]


def _unit(positions: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n 3"]:
    """Center positions at 0 and scale them to size 1: xatlas uses single precision and absolute tolerances."""
    low = positions.min(0)
    high = positions.max(0)
    return (positions - (low + high) / 2) / max(float((high - low).max()), 1e-300)
