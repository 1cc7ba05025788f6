"""From a size to an architecture: strides that land on the patch exactly, widths that land on a parameter budget."""

import math
from itertools import combinations_with_replacement

from fieldwatch import InputError

from .options import ModelOptions


def strides_and_start(
    height: int, width: int, options: ModelOptions, *, start: int
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Strides and first feature map (height, width) whose product is height x width exactly.

    What `dec_strds` and `fc_hw` leave open is chosen; with both open, the shorter side starts near `start`.

    Raises:
        InputError: nothing fits; the message names the option to change.
    """
    size = None if options.fc_hw is None else parse_size(options.fc_hw)
    strides = options.dec_strds
    if strides is None:
        strides = derive_strides(height, width, start=start) if size is None else _exact_strides(height, width, size)
    factor = math.prod(strides)
    wanted = size or (height // factor, width // factor)
    if (wanted[0] * factor, wanted[1] * factor) != (height, width) or 0 in wanted:
        shown = f"fc_hw {wanted[0]}_{wanted[1]} with dec_strds {' '.join(map(str, strides))}"
        msg = (
            f"{shown} draws {wanted[0] * factor} x {wanted[1] * factor} pixels where {height} x {width} are wanted: "
            "leave fc_hw and dec_strds open, choose strides that divide both sides, crop the video, "
            "or ask the dual model for literal=True (it resamples)"
        )
        raise InputError(msg)
    return strides, wanted


def parse_size(text: str) -> tuple[int, int]:
    """(height, width) of "<height>_<width>"."""
    height, width = text.split("_")
    return int(height), int(width)


def derive_strides(height: int, width: int, *, start: int) -> tuple[int, ...]:
    """Strides of 2 to 7 that divide both sides and leave the shorter one closest to `start`."""
    common = math.gcd(height, width)
    divisors = [d for d in range(2, common + 1) if common % d == 0 and split_factor(d)]
    if not divisors:
        msg = (
            f"{height} x {width} pixels have no common stride (greatest common divisor {common}): "
            "crop the video to multiples of 16, or ask the dual model for literal=True, or take the grid model"
        )
        raise InputError(msg)
    return split_factor(min(divisors, key=lambda d: abs(math.log(min(height, width) / d / start))))


def _exact_strides(height: int, width: int, size: tuple[int, int]) -> tuple[int, ...]:
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
    """Fewest strides of at most 5 (7 where needed), largest first, with this product; () if there are none."""
    for limit in (5, 7):
        for count in range(1, factor.bit_length() + 1):
            fits = [c for c in combinations_with_replacement(range(limit, 1, -1), count) if math.prod(c) == factor]
            if fits:
                # Of as few strides the most even ones: no stage enlarges much more than another.
                return min(fits, key=lambda c: (max(c) - min(c), c))
    return ()


def solve_width(budget: float, stem: int, strides: tuple[int, ...], options: ModelOptions) -> int:
    """First width f whose stem and stages take `budget` parameters.

    a f^2 + b f = budget (HNeRV, Chen et al. 2023, released code), with b = stem, r = 1 / reduce and
    a = r sum_i r^(2 i) s_i^2 k_i^2. Heads, biases and the floor on the width are not counted.

    Args:
        budget: parameters, embeddings already subtracted.
        stem: weights of the stem per channel of the first feature map.
        strides: enlargement per stage.
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
            f"a budget of {budget:.0f} parameters leaves no channel for the decoder, one channel takes "
            f"{a + stem:.0f}: raise modelsize"
        )
        raise InputError(msg)
    return width
