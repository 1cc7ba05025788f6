"""`FrozenNorms`: batch norms of frozen parts that still learn their statistics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from weakref import ref

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.run.loop_checks.modes import is_norm
from fieldwatch.run.loop_checks.trainable import NAMED, submodules_of

_MOST = 1 << 20
"""Number of channels above which the statistics are not copied."""
_SMALL = 1e-5
"""Least variance, as in torch's norms."""


@dataclass(frozen=True, kw_only=True)
class _Norm:
    """A batch norm, and its statistics at the first update."""

    item: str
    path: str
    module: ref[nn.Module]
    scale: Float[Tensor, " channels"]
    mean: Float[Tensor, " channels"]
    variance: Float[Tensor, " channels"]


class FrozenNorms:
    """Compares the running statistics of frozen batch norms at the end with those at the first update."""

    def __init__(self) -> None:
        self._norms: list[_Norm] = []

    def begin(self, modules: Mapping[str, nn.Module]) -> None:
        """Copy the statistics of the norms that are frozen and in train mode."""
        found = [(item, path, norm) for item, root in modules.items() for path, norm in _frozen(root, item)]
        if sum(cast("Tensor", norm.running_mean).numel() for _, _, norm in found) > _MOST:
            return
        self._norms = [
            _Norm(
                item=item,
                path=path,
                module=ref(norm),
                scale=cast("Tensor", norm.weight).detach().clone(),
                mean=cast("Tensor", norm.running_mean).clone(),
                variance=cast("Tensor", norm.running_var).clone(),
            )
            for item, path, norm in found
        ]

    def drifts(self) -> Iterator[dict[str, Any]]:
        """Yield, by module, how far the statistics have moved, in standard deviations; call it once, at the end."""
        by_item: dict[str, list[tuple[str, float]]] = {}
        for known in self._norms:
            norm = cast("Any", known.module())
            if norm is None or norm.running_mean is None or norm.running_mean.device != known.mean.device:
                continue
            # An average of weights is not trained either, but follows a model, with its statistics.
            if not torch.equal(norm.weight.detach(), known.scale):
                continue
            spread = known.variance.clamp_min(_SMALL).sqrt()
            moved = cast("Tensor", norm.running_mean) - known.mean
            by_item.setdefault(known.item, []).append((known.path, float((moved.abs() / spread).mean())))
        for item, found in by_item.items():
            drift = max(each for _, each in found)
            yield {"item": item, "names": [path for path, _ in found[:NAMED]], "count": len(found), "drift": drift}


def _frozen(root: nn.Module, item: str) -> Iterator[tuple[str, Any]]:
    """Yield path and module of the norms whose scale is frozen and whose statistics are not."""
    for path, module in submodules_of(root, item):
        norm = cast("Any", module)
        if not is_norm(module) or not module.training or not norm.track_running_stats or not norm.affine:
            continue
        if norm.running_mean is not None and norm.momentum != 0.0 and not norm.weight.requires_grad:
            yield path, norm
