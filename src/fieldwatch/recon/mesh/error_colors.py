"""The color map of errors: from dark blue for zero through green to light yellow at the upper limit."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float64, UInt8

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles

# Oklab to cube roots of cone responses, and their cubes to linear sRGB
# (Ottosson, A perceptual color space for image processing, 2020).
_ROOTS = np.array(
    [[1.0, 0.3963377774, 0.2158037573], [1.0, -0.1055613458, -0.0638541728], [1.0, -0.0894841775, -1.2914855480]]
)
_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def error_ramp(shares: Float64[np.ndarray, "*n"]) -> UInt8[np.ndarray, "*n 3"]:
    """Map values from 0 to 1 to colors; values outside are clamped.

    The lightness in Oklab increases linearly, so a larger error is lighter for every viewer, in grayscale prints too.
    The hue runs from blue-violet through green to yellow.
    """
    share = np.clip(shares, 0.0, 1.0)
    lightness = 0.27 + 0.66 * share
    # About the largest chroma that sRGB has at these hues.
    chroma = 0.14 - 0.32 * share + 0.46 * share**2 - 0.13 * share**3
    # From blue-violet (290 degrees) to yellow (106 degrees).
    hue = np.deg2rad(290 - 184 * share**0.9)
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1)
    linear = np.clip((lab @ _ROOTS.T) ** 3 @ _LINEAR.T, 0, 1)
    # The sRGB transfer function (IEC 61966-2-1).
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(255 * encoded).astype(np.uint8)


def error_colored(mesh: Triangles, errors: Float64[np.ndarray, "n"], scale: float) -> Triangles:
    """Return the mesh with vertex colors for the errors of its vertices; `scale` and above get the last color.

    Raises:
        MeshError: the scale is not positive and finite.
    """
    if not 0 < scale < np.inf:
        raise MeshError(f"the error of the last color must be a finite length greater than 0, got {scale:g}")
    return replace(mesh, colors=error_ramp(errors / scale))
