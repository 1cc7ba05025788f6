"""Bounds of numeric settings, and the error message for values outside of them."""

import math
from collections.abc import Callable

from fieldwatch.base import InputError

Bounds = tuple[str, Callable[[float], bool], tuple[str, ...]]
"""Description of the valid values, a predicate that tests a value, and the names of the settings."""

AT_LEAST_ONE: tuple[str, Callable[[float], bool]] = ("at least 1", lambda value: value >= 1)
"""Bounds of a count. Complete these and the other bounds with the setting names: `(*AT_LEAST_ONE, ("steps", "views"))`.
"""
NOT_NEGATIVE: tuple[str, Callable[[float], bool]] = ("0 or more", lambda value: value >= 0)
"""Bounds of a number that may be 0."""
FINITE_WEIGHT: tuple[str, Callable[[float], bool]] = ("a finite weight, 0 or more", lambda value: 0 <= value < math.inf)
"""Bounds of a loss term's weight."""
POSITIVE: tuple[str, Callable[[float], bool]] = ("a finite number above 0", lambda value: 0 < value < math.inf)
"""Bounds of a learning rate or a size."""
FRACTION: tuple[str, Callable[[float], bool]] = ("a fraction from 0 to 1", lambda value: 0 <= value <= 1)
"""Bounds of a fraction."""


def refuse_out_of_bounds(options: object, *bounds: Bounds) -> None:
    """Check settings against their bounds. None is always valid.

    Args:
        options: config dataclass, or a nested part of one.
        bounds: valid values of each setting. A setting's flag is its name with dashes.

    Raises:
        InputError: for the first invalid setting; the message names the flag, the value and the bounds.
    """
    for description, holds, settings in bounds:
        for name in settings:
            value = getattr(options, name)
            # Comparisons with NaN are false, so NaN is rejected by every predicate.
            if value is not None and not holds(value):
                raise InputError(f"--{name.replace('_', '-')} must be {description}, got {value}")
