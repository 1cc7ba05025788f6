"""Derivation of an architecture from a size: strides that reach the patch exactly, widths that meet a budget."""

import math
from itertools import combinations_with_replacement

from fieldwatch import InputError

from .options import ModelOptions


def strides_and_start(
    height: int, width: int, options: ModelOptions, *, start: int
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return strides and the first feature map (height, width), whose product is exactly height x width.

    What `dec_strds` and `fc_hw` leave open is derived; if both are open, the shorter side starts near ``start``.

    Raises:
        InputError: nothing fits; the message names the option to change.
    """
    size = None if options.fc_hw is None else parse_size(options.fc_hw)
    strides = options.dec_strds
    if strides is None:
        strides = derive_strides(height, width, start=start) if size is None else _exact_strides(height, width, size)
    factor = math.prod(strides)
    first_map = size or (height // factor, width // factor)
    if (first_map[0] * factor, first_map[1] * factor) != (height, width) or 0 in first_map:
        setting = f"fc_hw {first_map[0]}_{first_map[1]} with dec_strds {' '.join(map(str, strides))}"
        msg = (
            f"{setting} renders {first_map[0] * factor} x {first_map[1] * factor} pixels, expected {height} x {width}: "
            "leave fc_hw and dec_strds open, choose strides that divide both sides, crop the video, "
            "or use the dual model with literal=True, which resamples"
        )
        raise InputError(msg)
    return strides, first_map


def parse_size(text: str) -> tuple[int, int]:
    """Parse "<height>_<width>"."""
    height, width = text.split("_")
    return int(height), int(width)


def derive_strides(height: int, width: int, *, start: int) -> tuple[int, ...]:
    """Return strides of 2 to 7 that divide both sides and bring the shorter one closest to ``start``."""
    common = math.gcd(height, width)
    # `split_factor` is empty for products with a prime factor above 7.
    divisors = [d for d in range(2, common + 1) if common % d == 0 and split_factor(d)]
    if not divisors:
        msg = (
            f"{height} x {width} pixels have no common stride (greatest common divisor {common}): "
            "crop the video to multiples of 16, use the dual model with literal=True, or use the grid model"
        )
        raise InputError(msg)
    # Closest in logarithm: half and double the start size are equally far.
    return split_factor(min(divisors, key=lambda d: abs(math.log(min(height, width) / d / start))))


def _exact_strides(height: int, width: int, size: tuple[int, int]) -> tuple[int, ...]:
    # Both sides must have the same factor, which is checked below.
    factor = height // size[0]
    strides = split_factor(factor)
    if (size[0] * factor, size[1] * factor) != (height, width) or not strides:
        msg = (
            f"no strides of 2 to 7 take fc_hw {size[0]}_{size[1]} to {height} x {width} pixels: "
            "choose an fc_hw of the same shape that divides it, or leave fc_hw open"
        )
        raise InputError(msg)
    return strides


def split_factor(factor: int) -> tuple[int, ...]:
    """Return the fewest strides of at most 5 (7 if needed), largest first, with this product; () if there are none."""
    for limit in (5, 7):
        for count in range(1, factor.bit_length() + 1):
            fits = [c for c in combinations_with_replacement(range(limit, 1, -1), count) if math.prod(c) == factor]
            if fits:
                # Of equally many strides the most uniform ones, so that all stages upsample alike.
                return min(fits, key=lambda c: (max(c) - min(c), c))
    return ()


def solve_width(budget: float, stem: int, strides: tuple[int, ...], options: ModelOptions) -> int:
    """Return the width f at which stem and stages have ``budget`` parameters.

    a f^2 + b f = budget (HNeRV, Chen et al. 2023, released code), with b = stem, r = 1 / reduce and
    a = r sum_i r^(2 i) s_i^2 k_i^2. Heads, biases and the minimum width are not counted.

    Args:
        budget: number of parameters without embeddings.
        stem: weights of the stem per channel of the first feature map.
        strides: upsampling factor per stage.
        options: kernels and width reduction.
    """
    first, largest = options.kernels
    shrink = 1.0
    a = 0.0
    for i, stride in enumerate(strides):
        ratio = 1 / (math.sqrt(stride) if options.reduce == -1 else options.reduce)
        a += shrink**2 * ratio * (stride * min(first + 2 * i, largest)) ** 2
        shrink *= ratio
    # Positive root of a f^2 + b f - budget = 0.
    width = int((-stem + math.sqrt(stem * stem + 4 * a * max(budget, 0.0))) / (2 * a))
    if width < 1:
        msg = (
            f"a budget of {budget:.0f} parameters is too small for the decoder, one channel needs "
            f"{a + stem:.0f}: raise modelsize"
        )
        raise InputError(msg)
    return width
