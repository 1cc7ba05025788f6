"""View-dependent colors as real spherical harmonics (SH), with the order and signs of splat files.

The functions of degree l have indices l*l to (l+1)*(l+1)-1, by order m = -l to l, with the sign (-1)^m
(Condon-Shortley): degree 1 is (-y, z, -x) times sqrt(3 / 4 pi). They are orthonormal over the sphere.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

MAX_DEGREE = 3

# Normalization constants of degrees 0 to 3.
_C0 = math.sqrt(1 / (4 * math.pi))
_C1 = math.sqrt(3 / (4 * math.pi))
_C2 = math.sqrt(15 / (4 * math.pi))
_C3 = math.sqrt(7 / (4 * math.pi))


def harmonics_count(degree: int) -> int:
    """Return the number of SH functions up to a degree.

    Raises:
        ValueError: if the degree is not in 0 to 3.
    """
    if not 0 <= degree <= MAX_DEGREE:
        msg = f"SH degree must be in 0 to {MAX_DEGREE}, got {degree}"
        raise ValueError(msg)
    return (degree + 1) ** 2


def harmonics(directions: Float[Tensor, "*n 3"], degree: int) -> Float[Tensor, "*n functions"]:
    """Evaluate all (degree + 1)^2 SH functions up to `degree`.

    Args:
        directions: unit vectors.
        degree: maximum degree, 0 to 3.

    Raises:
        ValueError: if the degree is not in 0 to 3.
    """
    harmonics_count(degree)
    x, y, z = directions.unbind(-1)
    values = [torch.full_like(x, _C0)]
    if degree > 0:
        values += [-_C1 * y, _C1 * z, -_C1 * x]
    if degree > 1:
        values += _second(x, y, z)
    if degree > 2:
        values += _third(x, y, z)
    return torch.stack(values, -1)


def _second(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    # Orders -2 to 2.
    return [
        _C2 * x * y,
        -_C2 * y * z,
        _C2 / math.sqrt(12) * (3 * z * z - 1),
        -_C2 * x * z,
        _C2 / 2 * (x * x - y * y),
    ]


def _third(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    # Orders -3 to 3.
    outer = _C3 * math.sqrt(5 / 8)
    inner = _C3 * math.sqrt(3 / 8)
    return [
        -outer * y * (3 * x * x - y * y),
        _C3 * math.sqrt(15) * x * y * z,
        -inner * y * (5 * z * z - 1),
        _C3 / 2 * z * (5 * z * z - 3),
        -inner * x * (5 * z * z - 1),
        _C3 * math.sqrt(15) / 2 * z * (x * x - y * y),
        -outer * x * (x * x - 3 * y * y),
    ]


def harmonic_colors(
    coefficients: Float[Tensor, "n functions channels"], directions: Float[Tensor, "n 3"]
) -> Float[Tensor, "n channels"]:
    """Evaluate colors in the given directions: the weighted sum of the SH functions plus 0.5, clamped at 0.

    Args:
        coefficients: SH coefficients, 1, 4, 9 or 16 per channel.
        directions: unit vectors from the camera to the Gaussian.
    """
    degree = math.isqrt(coefficients.shape[1]) - 1
    values = harmonics(directions, degree)
    # Splat files store colors relative to mid-gray.
    return ((values[..., None] * coefficients).sum(1) + 0.5).clamp_min(0)


def colors_to_constant(colors: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
    """Convert colors (0 to 1) to SH coefficients of degree 0."""
    return (colors - 0.5) / _C0


def constant_to_colors(constant: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
    """Convert SH coefficients of degree 0 to colors; they are not clamped to 0 to 1."""
    return constant * _C0 + 0.5
