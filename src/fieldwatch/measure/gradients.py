"""Gradient norms by group, without a host read and without a loop over parameters."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.measure.norms import largest_entries, norm, norms
from fieldwatch.measure.parameter_groups import ParameterGroups


class GradientNorms(NamedTuple):
    """L2 norms of the gradients of one step, as device scalars; groups without any gradient are absent."""

    total: Float[Tensor, ""]
    groups: dict[str, Tensor]
    gradients: list[Tensor]
    counts: list[int]

    def by_group(self) -> dict[str, list[Tensor]]:
        """The gradients of each group."""
        rest = iter(self.gradients)
        return {name: [next(rest) for _ in range(n)] for name, n in zip(self.groups, self.counts, strict=True)}


def gradient_norms(watched: ParameterGroups) -> GradientNorms | None:
    """Norm of every watched group and of all gradients together; None when there is no gradient at all.

    Two fused calls do the work: one over all gradients, one over the per-group slices of the result, where a group has
    several gradients. Nothing is summed over a group border, so a NaN stays in the group that made it. Squares overflow
    float32 above about 1.8e19: such a norm reads as infinite, and its step is refused.
    """
    names, counts, gradients = watched.gradients()
    if not gradients:
        return None
    with torch.no_grad():
        parts = norms(gradients)
        each = torch.stack(parts)
        # The norm of the norms is the norm of all entries: no second pass over the gradients.
        total = norm(each)
        groups = dict(zip(names, _by_group(parts, each, counts, total), strict=True))
        return GradientNorms(total, groups, gradients, counts)


def largest_gradient(gradients: list[Tensor]) -> Float[Tensor, ""]:
    """Largest absolute entry of all gradients."""
    with torch.no_grad():
        return torch.stack(largest_entries(gradients)).max()


def _by_group(parts: list[Tensor], each: Float[Tensor, " gradients"], counts: list[int], total: Tensor) -> list[Tensor]:
    # The norm of the only group is the total; groups of one gradient each have their norms already.
    if len(counts) == 1:
        return [total]
    return parts if len(counts) == len(parts) else norms(torch.split(each, counts))
