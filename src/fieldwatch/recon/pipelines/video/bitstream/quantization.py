"""Affine quantization of a tensor: value = minimum + scale * symbol, per tensor or per slice of one axis."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

LARGEST_TABLE = 0.02
"""Maximum size of a per-slice table of minima and scales, as a fraction of the tensor."""
MOST_BITS = 12
"""Maximum bits per symbol."""
LOOSEST_STEP = 1.02
"""Half-precision minima and scales are used if they widen no step by more than this factor."""


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """Symbols of a tensor, and the table to dequantize them.

    Attributes:
        symbols: int64, 0 to 2^bits - 1, of the tensor's shape.
        minimum: value of symbol 0 per slice, float16 or float32; of length 1 along every axis but `axis`.
        scale: step per slice, of the same shape and type; 0 for a constant slice.
        bits: number of bits; symbols are below 2^bits.
        axis: axis whose slices have separate minima and scales; None for one pair per tensor.
    """

    symbols: np.ndarray
    minimum: np.ndarray
    scale: np.ndarray
    bits: int
    axis: int | None

    def dequantize(self) -> np.ndarray:
        """Return float32 values: a product and a sum, each rounded separately, so all machines get the same bits."""
        return self.minimum.astype(np.float32) + self.scale.astype(np.float32) * self.symbols.astype(np.float32)

    def zero_points(self) -> np.ndarray:
        """Return the symbol nearest to the value 0 per slice, int64; it may lie outside the alphabet."""
        return zero_points(self.minimum, self.scale)


def zero_points(minimum: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return round(-minimum / scale) in int64, 0 if the scale is 0; clipped to 2^30, far outside any alphabet."""
    steps = scale.astype(np.float64)
    ratio = np.divide(-minimum.astype(np.float64), steps, out=np.zeros_like(steps), where=steps > 0)
    return np.rint(np.clip(ratio, -(2.0**30), 2.0**30)).astype(np.int64)


def quantize(tensor: Tensor, bits: int) -> QuantizedTensor:
    """Quantize with the table of least mean absolute error (HNeRV, Chen et al. 2023, released code).

    Candidates are one pair for the whole tensor, and a pair per slice of every axis whose table is small enough. Minima
    and scales are rounded outward to half precision before the symbols are computed, so that no value is clipped.

    Args:
        tensor: values, of any shape with at least one element.
        bits: 1 to 12.
    """
    values = tensor.detach().to("cpu", torch.float32).numpy()
    # Only axes whose table of minima and scales is small compared with the tensor.
    axes = [axis for axis, size in enumerate(values.shape) if 1 < size < LARGEST_TABLE * values.size]
    candidates = [_quantize_along(values, bits, axis) for axis in (None, *axes)]
    errors = [float(np.abs(candidate.dequantize() - values).mean()) for candidate in candidates]
    return candidates[int(np.argmin(errors))]


def quantize_by_step(tensor: Tensor, step: float) -> QuantizedTensor:
    """Quantize to the nearest multiples of a step, with as few bits as they need.

    Args:
        tensor: values, of any shape with at least one element.
        step: distance of neighboring symbols, greater than 0.

    Raises:
        ValueError: the multiples need more than 12 bits.
    """
    values = tensor.detach().to("cpu", torch.float32).numpy()
    multiples = np.rint(values.astype(np.float64) / step).astype(np.int64)
    least = int(multiples.min())
    bits = max((int(multiples.max()) - least).bit_length(), 1)
    if bits > MOST_BITS:
        raise ValueError(f"multiples of {step} need {bits} bits, expected at most {MOST_BITS}: take a larger step")
    shape = (1,) * values.ndim
    return QuantizedTensor(
        symbols=multiples - least,
        minimum=np.full(shape, least * step, np.float32),
        scale=np.full(shape, step, np.float32),
        bits=bits,
        axis=None,
    )


def quantize_like(values: np.ndarray, pattern: QuantizedTensor) -> QuantizedTensor:
    """Quantize other values (float32, same shape) with the table of ``pattern``."""
    minimum = pattern.minimum.astype(np.float32)
    scale = pattern.scale.astype(np.float32)
    # A scale of 0 means a constant slice, whose symbols are all 0.
    steps = np.divide(values - minimum, scale, out=np.zeros_like(values), where=scale > 0)
    return replace(pattern, symbols=np.clip(np.rint(steps), 0, 2**pattern.bits - 1).astype(np.int64))


def _quantize_along(values: np.ndarray, bits: int, axis: int | None) -> QuantizedTensor:
    # Minimum and maximum over all axes but one; over all axes if that is None.
    others = tuple(i for i in range(values.ndim) if i != axis)
    least = values.min(axis=others, keepdims=True)
    largest = values.max(axis=others, keepdims=True)
    minimum, scale = _table(least, largest, 2**bits - 1)
    empty = np.zeros(values.shape, dtype=np.int64)
    return quantize_like(values, QuantizedTensor(symbols=empty, minimum=minimum, scale=scale, bits=bits, axis=axis))


def _table(least: np.ndarray, largest: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return minimum and scale in float16 if it is precise enough, else in float32; both cover least to largest."""
    ideal = (largest.astype(np.float64) - least) / steps
    with np.errstate(over="ignore"):
        # Infinite beyond the range of half precision, which the check below detects.
        minimum = _rounded(least, np.float16, -math.inf)
        # Computed from the rounded minimum, so that the last symbol still reaches the largest value.
        scale = _rounded((largest - minimum.astype(np.float64)) / steps, np.float16, math.inf)
    if np.isfinite(minimum).all() and np.isfinite(scale).all() and (scale <= LOOSEST_STEP * ideal).all():
        return minimum, scale
    return least.astype(np.float32), _rounded(ideal, np.float32, math.inf)


def _rounded(values: np.ndarray, dtype: type[np.floating], towards: float) -> np.ndarray:
    """Cast, then step to the next number in the direction ``towards`` if rounding went the other way."""
    cast = values.astype(dtype)
    # Casting rounds to nearest, which may be in the wrong direction.
    wrong = cast > values if towards < 0 else cast < values
    return np.where(wrong, np.nextafter(cast, dtype(towards)), cast)
