"""Quantities as splat formats quantize them: opacities, base colors, unit quaternions, spherical harmonics."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Bytes = NDArray[np.uint8]

_C0 = math.sqrt(1 / (4 * math.pi))  # value of the constant SH function
_SQRT_HALF = math.sqrt(0.5)
# Signs of the SH functions of degrees 1 to 3 when y and z change sign, from their polynomials: y, z, x; xy, yz, zz, xz,
# xx - yy; then y, xyz, y, z, x, z, x times even polynomials.
_HALF_TURN = np.array([-1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1], np.float32)
# For each position of the largest component, the positions of the other three, ascending.
_OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


def logits_of_opacities(opacities: Floats) -> Floats:
    """Return logits of opacities in 0 to 1; those of exactly 0 and 1 are infinite."""
    with np.errstate(divide="ignore"):
        return np.log(opacities) - np.log1p(-opacities)


def opacities_of_logits(logits: Floats) -> Floats:
    """Return opacities in 0 to 1."""
    # The hyperbolic tangent does not overflow for large logits.
    return 0.5 + 0.5 * np.tanh(0.5 * logits)


def constants_of_colors(colors: Floats) -> Floats:
    """Return SH coefficients of degree 0 for base colors, of which 0 to 1 can be displayed."""
    return (colors - 0.5) / _C0


def colors_of_constants(constants: Floats) -> Floats:
    """Return base colors for SH coefficients of degree 0."""
    return 0.5 + _C0 * constants


def to_bytes(values: Floats) -> Bytes:
    """Round values to 0 to 255; values outside are clamped."""
    return np.rint(values).clip(0, 255).astype(np.uint8)


def unit(quaternions: Floats) -> Floats:
    """Return quaternions of length 1."""
    return quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)


def without_largest(quaternions: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Split unit quaternions into the position of the largest component and the other three, in order.

    The quaternion and its negative are the same rotation, so the sign is chosen with a positive largest component.
    """
    largest = np.abs(quaternions).argmax(1)
    signs = np.where(np.take_along_axis(quaternions, largest[:, None], 1) < 0, -1, 1).astype(np.float32)
    return largest, np.take_along_axis(quaternions, _OTHERS[largest], 1) * signs


def with_largest(largest: NDArray[np.integer], others: Floats) -> Floats:
    """Return the unit quaternions that `without_largest` splits."""
    quaternions = np.empty((len(others), 4), np.float32)
    np.put_along_axis(quaternions, _OTHERS[largest], others, 1)
    rest = np.sqrt((1 - np.square(others).sum(1, keepdims=True)).clip(0))
    np.put_along_axis(quaternions, largest.astype(np.intp)[:, None], rest, 1)
    return quaternions


def unpack_2_10_10_10(packed: NDArray[np.uint32]) -> Floats:
    """Unpack quaternions (2 bits: position of the largest; 10 bits each: the others, scaled to 0 to 1023)."""
    fields = np.stack([packed >> shift & 1023 for shift in (20, 10, 0)], 1).astype(np.float32)
    return with_largest(packed >> 30, (fields / 1023 * 2 - 1) * _SQRT_HALF)


def pack_2_10_10_10(quaternions: Floats) -> NDArray[np.uint32]:
    """Pack unit quaternions as `unpack_2_10_10_10` expects them."""
    largest, others = without_largest(quaternions)
    fields = np.rint((others / _SQRT_HALF + 1) / 2 * 1023).clip(0, 1023).astype(np.uint32)
    return _joined(largest, fields)


def unpack_signed_2_10_10_10(packed: NDArray[np.uint32]) -> Floats:
    """Unpack quaternions (2 bits: position of the largest; the others as a sign bit and 9 bits of magnitude each)."""
    fields = np.stack([packed >> shift & 1023 for shift in (20, 10, 0)], 1)
    magnitudes = (fields & 511).astype(np.float32) / 511 * _SQRT_HALF
    return with_largest(packed >> 30, np.where(fields & 512, -magnitudes, magnitudes).astype(np.float32))


def pack_signed_2_10_10_10(quaternions: Floats) -> NDArray[np.uint32]:
    """Pack unit quaternions as `unpack_signed_2_10_10_10` expects them."""
    largest, others = without_largest(quaternions)
    magnitudes = np.rint(np.abs(others) / _SQRT_HALF * 511).clip(0, 511).astype(np.uint32)
    fields = magnitudes | (others < 0).astype(np.uint32) << 9
    return _joined(largest, fields)


def _joined(largest: NDArray[np.intp], fields: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """Return 2 bits of the position of the largest component and 10 bits of each other as one word."""
    words = largest << 30 | fields[:, 0] << 20 | fields[:, 1] << 10 | fields[:, 2]
    return words.astype(np.uint32)


def half_turn_about_x(means: Floats, quaternions: Floats, rest: Floats) -> tuple[Floats, Floats, Floats]:
    """Turn Gaussians by 180 degrees about x: from right-down-forward to right-up-back axes, or the other way.

    Args:
        means: centers of shape (n, 3).
        quaternions: rotations as (w, x, y, z), of shape (n, 4).
        rest: SH coefficients above degree 0, of shape (n, functions, 3).
    """
    return (
        means * np.array([1, -1, -1], np.float32),
        quaternions * np.array([1, 1, -1, -1], np.float32),
        rest * _HALF_TURN[: rest.shape[1], None],
    )
