"""Gradient norms by parameter group, without synchronization and without a Python loop over parameters."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.measure.norms import largest_entries, norm, norms, norms_of_equal_shapes
from fieldwatch.measure.parameter_groups import ParameterGroups
from fieldwatch.record import tags

_set_grad_enabled: Any = torch._C._set_grad_enabled  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the switch behind torch.no_grad
_SAMPLED = 4096
"""About the number of entries of each gradient that are read."""


class GradientNorms(NamedTuple):
    """L2 norms of the gradients of one step, as device scalars.

    Attributes:
        total: norm of all gradients, concatenated.
        groups: norm of each group that has gradients.
        gradients: all gradients, group by group.
        counts: number of gradients per group, in the order of ``groups``.
    """

    total: Float[Tensor, ""]
    groups: dict[str, Tensor]
    gradients: list[Tensor]
    counts: list[int]

    def by_group(self) -> dict[str, list[Tensor]]:
        """Return the gradients of each group by name."""
        # `gradients` is ordered by group, so consume it group by group.
        rest = iter(self.gradients)
        return {name: [next(rest) for _ in range(n)] for name, n in zip(self.groups, self.counts, strict=True)}


def gradient_norms(watched: ParameterGroups, without: Collection[int] = ()) -> GradientNorms | None:
    """Compute the gradient norm of every watched group and of all gradients; None if there are no gradients.

    Two fused calls suffice: one over all gradients, and one over its result and its slices per group. Nothing is summed
    across groups, so a NaN affects only the norm of its own group and the total. Squares overflow float32 for norms
    above about 1.8e19; such a norm is infinite, and its step is refused.

    Args:
        watched: parameter groups.
        without: ids of parameters to leave out.
    """
    names, counts, gradients = watched.gradients(without)
    if not gradients:
        return None
    # As torch.no_grad() does, in a tenth of its time: this runs at every step.
    enabled = torch.is_grad_enabled()
    _set_grad_enabled(False)
    try:
        total, by_group = _total_and_groups(gradients, counts)
    finally:
        _set_grad_enabled(enabled)
    return GradientNorms(total, dict(zip(names, by_group, strict=True)), gradients, counts)


def largest_gradient(gradients: list[Tensor]) -> Float[Tensor, ""]:
    """Return the largest absolute entry of all gradients, as a device scalar."""
    with torch.no_grad():
        return torch.stack(largest_entries(gradients)).max()


def gradient_statistics(
    gradients: list[Tensor], *, largest: bool = True, precision: bool = True, most: int | None = None
) -> dict[str, Tensor]:
    """Return ``Gradients/max`` and how much of the gradients was lost in float16, as device scalars.

    Args:
        gradients: gradients of the step.
        largest: whether to return the former.
        precision: whether to return the latter.
        most: number of gradients to sample for the latter; None for all.
    """
    found = {tags.LARGEST_GRADIENT: largest_gradient(gradients)} if largest else {}
    sampled = gradients if most is None else gradients[:: -(-len(gradients) // most)]
    return found | (precision_statistics(sampled) if precision else {})


def precision_statistics(gradients: list[Tensor]) -> dict[str, Tensor]:
    """Measure how much of the gradients was lost in float16.

    Numbers of float16 below 2**-14 are multiples of 2**-24, and 0 below 2**-25. Counted are multiples below 2**-19,
    which have at most five bits left. Other types have entries in between, so that few of their entries are multiples.

    Returns:
        ``Guard/zero_gradient`` and ``Guard/half_gradient``, as device scalars; empty if nothing can be sampled.
    """
    with torch.no_grad():
        flat = [each.view(-1) for each in gradients if each.is_contiguous() and not each.is_complex()]
        sampled = [each[:: max(len(each) // _SAMPLED, 1)].float() for each in flat]
        if not sampled:
            return {}
        entries = torch.cat([each.to(sampled[0].device) for each in sampled]).abs()
        nonzero = (entries > 0).sum()
        small = (entries > 0) & (entries < 2.0**-19)
        steps = entries * 2.0**24
        lost = (small & (steps == steps.round())).sum()
        share = torch.where(2 * lost > small.sum(), lost / nonzero.clamp_min(1), 0.0)
        return {tags.ZERO_GRADIENT: (entries == 0).float().mean(), tags.HALF_GRADIENT: share}


def _total_and_groups(gradients: list[Tensor], counts: list[int]) -> tuple[Float[Tensor, ""], Sequence[Tensor]]:
    """Return the norm of all gradients, and those of the groups."""
    parts: Sequence[Tensor] = ()
    stacked = norms_of_equal_shapes(gradients)
    if stacked is None:
        parts = norms(gradients)
        stacked = torch.stack([*parts])
    # The norm of the norms equals the norm of all entries, which saves a second pass over the gradients.
    # Shortcuts: the norm of a single group is the total; for groups of one gradient each, the norms are known.
    if len(counts) == 1:
        total = norm(stacked)
        return total, [total]
    if len(counts) == len(gradients):
        return norm(stacked), parts or stacked.unbind()
    total, *groups = norms([stacked, *torch.split(stacked, counts)])
    return total, groups
