"""Colours that depend on the direction: real spherical harmonics, in the order and with the signs of splat files.

Functions of degree l stand at l*l .. (l+1)*(l+1)-1, by order m = -l .. l, each with the sign (-1)^m (Condon-Shortley):
the first degree is (-y, z, -x) times sqrt(3 / 4 pi). They are orthonormal over the sphere.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

MAX_DEGREE = 3

_C0 = math.sqrt(1 / (4 * math.pi))
_C1 = math.sqrt(3 / (4 * math.pi))
_C2 = math.sqrt(15 / (4 * math.pi))
_C3 = math.sqrt(7 / (4 * math.pi))


def harmonics_count(degree: int) -> int:
    """Return how many functions there are up to a degree.

    Raises:
        ValueError: a degree outside 0 .. 3.
    """
    if not 0 <= degree <= MAX_DEGREE:
        msg = f"spherical harmonics of degree {degree} were asked for: degrees 0 to {MAX_DEGREE} are built"
        raise ValueError(msg)
    return (degree + 1) ** 2


def harmonics(directions: Float[Tensor, "*n 3"], degree: int) -> Float[Tensor, "*n functions"]:
    """Return the values of all functions up to `degree` (0 .. 3).

    Args:
        directions: unit vectors.
        degree: the highest; (degree + 1)^2 functions come back.

    Raises:
        ValueError: a degree outside 0 .. 3.
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
    return [
        _C2 * x * y,
        -_C2 * y * z,
        _C2 / math.sqrt(12) * (3 * z * z - 1),
        -_C2 * x * z,
        _C2 / 2 * (x * x - y * y),
    ]


def _third(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
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


def harmonic_colours(
    coefficients: Float[Tensor, "n functions channels"], directions: Float[Tensor, "n 3"]
) -> Float[Tensor, "n channels"]:
    """Return colours seen in the given unit directions, 0 or above: the sum of the functions plus 0.5, clamped at 0.

    Args:
        coefficients: 1, 4, 9 or 16 per channel.
        directions: from the camera to the Gaussian.
    """
    degree = math.isqrt(coefficients.shape[1]) - 1
    values = harmonics(directions, degree)
    # Splat files store colors around mid-grey, hence the 0.5.
    return ((values[..., None] * coefficients).sum(1) + 0.5).clamp_min(0)


def colours_to_constant(colours: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
    """Return the coefficient of the constant function that shows a colour (0 .. 1) from everywhere."""
    return (colours - 0.5) / _C0


def constant_to_colours(constant: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
    """Return the colour that a coefficient of the constant function shows; outside 0 .. 1 where it overshoots."""
    return constant * _C0 + 0.5
