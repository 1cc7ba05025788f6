"""Visible Gaussians: row indices, or a mask of all Gaussians where the host does not know their number."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

VisibleRows = Int[Tensor, " visible"] | Bool[Tensor, " n"]
"""Rows of the visible Gaussians, ascending; or a mask of all Gaussians."""


def count_visible(visible: VisibleRows) -> int | Int[Tensor, ""]:
    """Return how many Gaussians are visible; for a mask as a scalar on its device, without waiting for it."""
    return visible.sum() if visible.dtype == torch.bool else len(visible)


def fill_visible(values: Tensor, visible: VisibleRows, value: float) -> Tensor:
    """Set the rows of the visible Gaussians to a number, in place, and return the tensor."""
    if visible.dtype == torch.bool:
        return values.masked_fill_(visible, value)
    return values.index_fill_(0, visible.long(), value)


def any_visible(several: list[VisibleRows]) -> Int[Tensor, " in_any"] | Bool[Tensor, " n"]:
    """Return the Gaussians that are visible in at least one of several views."""
    if len(several) == 1:
        return several[0]
    if several[0].dtype == torch.bool:
        return torch.stack(several).any(0)
    # `unique` also sorts: ascending rows, whatever the order of the views.
    return torch.cat(several).unique()
