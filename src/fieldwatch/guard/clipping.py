"""Gradient clipping on the device, by total norm or per watched group, from norms that are already computed."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fieldwatch.record import tags

Clip: TypeAlias = float | Mapping[str, float]
"""Limit for the norm of all gradients together, or one limit per watched group."""


_foreach_mul_: Any = torch._foreach_mul_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  as torch clips
"""Fused in-place multiplication, which :func:`torch.nn.utils.clip_grad_norm_` uses too."""


def clip_gradients(
    clip: Clip, gradients: Mapping[str, list[Tensor]], norms: Mapping[str, Tensor], total: Tensor
) -> dict[str, Tensor]:
    """Scale gradients in place so that no norm exceeds its limit; smaller gradients are multiplied by exactly 1.

    Nothing is read from the device.

    Args:
        clip: limit for the total norm, or limits by group.
        gradients: gradients of each group.
        norms: gradient norm of each group before clipping.
        total: norm of all gradients before clipping.

    Returns:
        The factors as device scalars, by the tag under which they are recorded; NaN or 0 for a non-finite norm.

    Raises:
        ValueError: a limit is not positive, or names a group that is not watched.
    """
    if isinstance(clip, Mapping):
        _refuse_unknown(clip, norms)
        return {
            tags.GROUP_CLIP_SCALE.tag(group): _scale(gradients[group], _positive(limit), norms[group])
            for group, limit in clip.items()
            if group in gradients
        }
    # All gradients are scaled by one factor, which keeps the direction of the update.
    return {tags.CLIP_SCALE: _scale([g for group in gradients.values() for g in group], _positive(clip), total)}


def _scale(gradients: list[Tensor], limit: float, norm: Tensor) -> Tensor:
    with torch.no_grad():
        # The lower bound avoids 0 / 0. A non-finite norm may corrupt the gradients, but their update is refused anyway.
        factor = (limit / norm.clamp_min(1e-12)).clamp_max(1.0)
        _foreach_mul_(gradients, factor)
        return factor


def _positive(limit: float) -> float:
    # `not >` also rejects NaN.
    if not limit > 0:
        raise ValueError(f"clip limit must be a positive norm, got {limit}: use clip=None to disable clipping")
    return limit


def _refuse_unknown(clip: Mapping[str, float], norms: Mapping[str, Tensor]) -> None:
    unknown = sorted(clip.keys() - norms.keys())
    if unknown:
        raise ValueError(
            f"clip names group {unknown[0]!r}, but the watched groups are {sorted(norms)}: run.track(...) it first"
        )
