"""The .splat format of the antimatter15 viewer: 32 bytes per Gaussian, without header and without view-dependent color.

Position and scale are 3 float32 each (world units, not logarithms), then come red, green, blue and opacity as bytes,
and the quaternion (w, x, y, z) as four bytes 128 + 128 q (format description in the README of antimatter15/splat).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.data.gaussians.error import SplatFileError
from fieldwatch.recon.data.gaussians.quantization import (
    Floats,
    colors_of_constants,
    constants_of_colors,
    logits_of_opacities,
    opacities_of_logits,
    to_bytes,
    unit,
)
from fieldwatch.recon.data.gaussians.raw import RawGaussians, check_count, log_scales_of

_ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("color", "u1", 4), ("rotation", "u1", 4)])


def read_dot_splat(path: Path) -> RawGaussians:
    """Read a .splat file.

    Raises:
        SplatFileError: if its size is not a multiple of 32 bytes.
    """
    size = path.stat().st_size
    if size % _ROW.itemsize:
        raise SplatFileError(
            f"{path}: expected a .splat file of {_ROW.itemsize} bytes per Gaussian, got {size} bytes, which leaves "
            f"{size % _ROW.itemsize}: the file is cut short or of another format; copy it again"
        )
    check_count(path, size // _ROW.itemsize)
    rows = np.fromfile(path, _ROW)
    colors = rows["color"].astype(np.float32) / 255
    return RawGaussians(
        means=rows["mean"],
        log_scales=log_scales_of(rows["scale"]),
        quaternions=_quaternions(rows["rotation"].astype(np.float32)),
        logits=logits_of_opacities(colors[:, 3]),
        constant=constants_of_colors(colors[:, :3]),
        rest=np.zeros((len(rows), 0, 3), np.float32),
    )


def _quaternions(stored: Floats) -> Floats:
    quaternions = (stored - 128) / 128
    # All four bytes 128: no rotation was stored.
    quaternions[~quaternions.any(1), 0] = 1
    return quaternions


def dot_splat_order(raw: RawGaussians) -> NDArray[np.intp]:
    """Return the order of the rows: largest and most opaque Gaussians first, as viewers that stream expect."""
    importance = raw.log_scales.astype(np.float64).sum(1) + np.log(opacities_of_logits(raw.logits).clip(1e-12))
    return np.argsort(-importance, kind="stable")


def dot_splat_bytes(raw: RawGaussians) -> bytes:
    """Return the content of a .splat file; view-dependent color is left out."""
    rows = np.empty(len(raw.means), _ROW)
    rows["mean"] = raw.means
    rows["scale"] = np.exp(raw.log_scales)
    rows["color"][:, :3] = to_bytes(255 * colors_of_constants(raw.constant))
    rows["color"][:, 3] = to_bytes(255 * opacities_of_logits(raw.logits))
    rows["rotation"] = to_bytes(128 + 128 * unit(raw.quaternions))
    return rows.tobytes()
