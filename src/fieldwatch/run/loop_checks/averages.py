"""`AverageCheck`: averages of the weights that hardly follow the trained module."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.measure import norm
from fieldwatch.record import tags

_SAMPLED = 1024
"""About the number of entries of each parameter that are compared."""


class AverageCheck:
    """Compares tracked copies of a trained module with it: how far has each moved from the common start?

    A copy has the same shapes as the trained module, and no optimizer updates it.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[str, nn.Module, nn.Module, Tensor]] = []
        self._trained: dict[str, nn.Module] = {}

    def begin(self, modules: Mapping[str, nn.Module], held: Collection[int]) -> None:
        """Find the copies and note where they start."""
        trained = {name: each for name, each in modules.items() if any(id(p) in held for p in each.parameters())}
        self._trained = trained
        for name, module in modules.items():
            if name in trained:
                continue
            shapes = _shapes(module)
            original = next((each for each in trained.values() if shapes and _shapes(each) == shapes), None)
            if original is not None:
                self._pairs.append((name, module, original, _entries(original)))

    def measure(self) -> dict[str, Tensor]:
        """Return the way of each copy divided by that of its original, and the spread of units, as device scalars."""
        found: dict[str, Tensor] = {}
        for name, module in self._trained.items():
            spread = unit_spread(module)
            if spread is not None:
                found[tags.UNIT_SPREAD.tag(name)] = spread
        for name, module, original, start in self._pairs:
            now = _entries(original)
            # Pruned, grown or moved to another device: there is nothing to compare.
            if now.shape != start.shape or now.device != start.device:
                continue
            way = norm(now - start)
            copied = norm(_entries(module).to(start.device) - start)
            found[tags.AVERAGE.tag(name)] = copied / way.clamp_min(1e-30)
        return found


def _shapes(module: nn.Module) -> list[Any]:
    return [tuple(each.shape) for each in module.parameters()]


def _entries(module: nn.Module) -> Float[Tensor, " entries"]:
    with torch.no_grad():
        flat = [each.reshape(-1) for each in module.parameters()]
        return torch.cat([each[:: max(len(each) // _SAMPLED, 1)].float() for each in flat])


_ROWS_READ = 64
_MOST_WEIGHTS = 64


def unit_spread(module: nn.Module) -> Float[Tensor, ""] | None:
    """Return how far the units of a weight differ, for the weight whose units differ least.

    Units that start equal get equal gradients and stay equal, so a layer of them is worth a single one. A weight of
    zeros counts as fine: many layers start so on purpose.
    """
    found: list[Tensor] = []
    with torch.no_grad():
        for each in module.modules():
            weight = getattr(each, "weight", None)
            plain = isinstance(each, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) and isinstance(weight, nn.Parameter)
            # A layer at the output may have two classes only.
            if not plain or not isinstance(weight, Tensor) or not weight.requires_grad or len(weight) < _LEAST_UNITS:
                continue
            rows = weight[:_ROWS_READ].reshape(min(len(weight), _ROWS_READ), -1)[:, :_ROWS_READ].float()
            size = rows.abs().amax()
            found.append(torch.where(size > 0, (rows - rows[:1]).abs().amax() / size.clamp_min(1e-30), 1.0))
            if len(found) == _MOST_WEIGHTS:
                break
    return torch.stack(found).min() if found else None


_LEAST_UNITS = 4
