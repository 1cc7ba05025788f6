"""Directions and items that are spread evenly."""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Float64
from torch import Tensor

Item = TypeVar("Item")


def spread_directions(count: int, *, phase: float = 0.0) -> Float64[Tensor, "count 3"]:
    """Return unit vectors that are spread evenly over the sphere, on a spiral of golden angles (Vogel 1979).

    Args:
        count: number of directions.
        phase: part of a golden angle by which the spiral is turned about the z axis.
    """
    order = torch.arange(count, dtype=torch.float64)
    # Equal steps in height cover equal areas of the sphere (Archimedes).
    height = 1 - (2 * order + 1) / count
    around = (order + phase) * math.pi * (3 - math.sqrt(5))
    flat = (1 - height.square()).sqrt()
    return torch.stack([flat * around.cos(), flat * around.sin(), height], -1)


def evenly_spaced(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most ``most`` items at equal distances, in order: the first one, and all if there are no more."""
    count = min(len(items), most)
    return [items[number * len(items) // count] for number in range(count)]
