"""Marks of samples: numbers that are the same for equal rows only, so that few bytes tell whether a row is known."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_SAME = 1e-9
"""Relative difference of the marks of equal rows."""


def marks_of(rows: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows"]:
    """Return the product of each row with fixed weights, in float64, which MPS has not."""
    weights = torch.arange(1, rows.shape[-1] + 1, device=rows.device, dtype=torch.float64).square().sin()
    return rows.double() @ weights


def are_equal(first: Float[Tensor, "*marks"], second: Float[Tensor, "*marks"]) -> Bool[Tensor, "*marks"]:
    """Return whether marks are those of equal rows, relative to the second ones."""
    return (first - second).abs() <= _SAME * second.abs()


def are_known(marks: Float[Tensor, " marks"], known: Float[Tensor, " known"]) -> Bool[Tensor, " marks"]:
    """Return whether each mark is among the known ones, which may be in any order and on another device."""
    ordered = known.to(marks.device, non_blocking=True).sort().values
    above = torch.searchsorted(ordered, marks).clamp(max=len(ordered) - 1)
    below = (above - 1).clamp(min=0)
    return are_equal(ordered[above], marks) | are_equal(ordered[below], marks)
