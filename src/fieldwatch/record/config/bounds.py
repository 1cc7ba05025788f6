"""Bounds of settings: what is wanted of a number, and the one message where it is something else."""

import math
from collections.abc import Callable

from fieldwatch.base import InputError

Bounds = tuple[str, Callable[[float], bool], tuple[str, ...]]
"""What is wanted, whether a value is that, and of which settings."""

AT_LEAST_ONE: tuple[str, Callable[[float], bool]] = ("at least 1", lambda value: value >= 1)
"""Bounds of a count. Names of settings complete these and the other bounds: `(*AT_LEAST_ONE, ("steps", "views"))`."""
NOT_NEGATIVE: tuple[str, Callable[[float], bool]] = ("0 or more", lambda value: value >= 0)
"""Bounds of a number that may be 0."""
FINITE_WEIGHT: tuple[str, Callable[[float], bool]] = ("a finite weight, 0 or more", lambda value: 0 <= value < math.inf)
"""Bounds of a loss term's weight."""
POSITIVE: tuple[str, Callable[[float], bool]] = ("a finite number above 0", lambda value: 0 < value < math.inf)
"""Bounds of a rate or a size."""
FRACTION: tuple[str, Callable[[float], bool]] = ("a share from 0 to 1", lambda value: 0 <= value <= 1)
"""Bounds of a share."""


def refuse_out_of_bounds(options: object, *bounds: Bounds) -> None:
    """Refuse the first setting that is out of its bounds; None is in bounds.

    Args:
        options: a config, or a part of one.
        bounds: what each setting has to be. A setting's flag is its name with dashes.

    Raises:
        InputError: names the flag, the value and the bounds.
    """
    for description, holds, settings in bounds:
        for name in settings:
            value = getattr(options, name)
            if value is not None and not holds(value):
                raise InputError(f"--{name.replace('_', '-')} is {value}: wanted {description}")
