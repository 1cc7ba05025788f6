"""Bounds of settings: what is wanted of a number, and the one message where it is something else."""

from collections.abc import Callable

Bounds = tuple[str, Callable[[float], bool], tuple[str, ...]]
"""What is wanted, whether a value is that, and of which settings."""


def refuse_out_of_bounds(options: object, *wanted: Bounds) -> None:
    """Refuse the first setting that is out of its bounds; None is in bounds.

    Args:
        options: a config, or a part of one.
        wanted: what each setting has to be. A setting's flag is its name with dashes.

    Raises:
        ValueError: names the flag, the value and the bounds.
    """
    for words, fits, names in wanted:
        for name in names:
            value = getattr(options, name)
            if value is not None and not fits(value):
                raise ValueError(f"--{name.replace('_', '-')} is {value}: wanted {words}")
