"""Finiteness of the state that persists between steps: parameters, moments, buffers and learning rates."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.record import tags

MOMENTS = "Guard/moments"
BUFFERS = "Guard/buffers"
_foreach_norm: Any = torch._foreach_norm  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  torch's clipping uses it
"""Fused norm of a list of tensors, which :func:`torch.nn.utils.clip_grad_norm_` uses too."""
MAX_NAMED = 4
"""Maximum number of tensors named in a message; the rest are only counted."""


def state_norms(owners: Iterable[object], optimizers: Iterable[Optimizer]) -> dict[str, Tensor]:
    """Return the largest L1 norm of any moment and of any buffer as device scalars, without synchronizing.

    An L1 norm is non-finite exactly if an entry is (or if the sum itself overflows float32).

    Args:
        owners: owners of the watched groups; only modules have buffers.
        optimizers: optimizers of this step.

    Returns:
        ``Guard/moments`` and ``Guard/buffers``; a key is absent if there are no such tensors.
    """
    tensors_by_tag = {
        MOMENTS: [moment for _, moment in _moments(optimizers)],
        BUFFERS: [b for _, b in _buffers(owners)],
    }
    with torch.no_grad():
        return {name: _largest(tensors) for name, tensors in tensors_by_tag.items() if tensors}


def moment_norms(groups: Mapping[str, Iterable[Tensor]], optimizers: Iterable[Optimizer]) -> dict[str, Tensor]:
    """Return the largest L1 norm of any moment of each group as device scalars, without synchronizing.

    Args:
        groups: parameters by group name.
        optimizers: optimizers of this step.

    Returns:
        ``Guard/moments_<group>``; groups for which no optimizer keeps a moment are absent.
    """
    states = [optimizer.state for optimizer in optimizers]
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameters in groups.items():
            moments = [
                value
                for parameter in parameters
                for state in states
                for key, value in state.get(parameter, {}).items()
                if _is_moment(key, value)
            ]
            if moments:
                found[tags.GROUP_MOMENTS.tag(name)] = _largest(moments)
    return found


def settings_finite(optimizers: Iterable[Optimizer]) -> bool:
    """Return whether all Python numbers in the optimizers' settings (lr, weight decay, betas) are finite."""
    # Runs at every step: the types are compared first, since most settings are no floats.
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for value in group.values():
                kind = value.__class__
                if kind in _ALWAYS_FINITE:
                    continue
                if kind is not float:
                    if not _is_finite(value):
                        return False
                elif not math.isfinite(value):
                    return False
    return True


_ALWAYS_FINITE = frozenset((bool, int, str, list, type(None)))


def _is_finite(setting: Any) -> bool:
    # Adam's betas are a tuple. `map`, since a generator takes twice as long, and this runs at every step.
    if isinstance(setting, tuple):
        return all(map(_is_finite, cast("tuple[Any, ...]", setting)))
    return not isinstance(setting, float) or math.isfinite(setting)


def rate_tensors(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return the learning rates that are tensors (of optimizers with ``capturable=True``)."""
    rates: list[Tensor] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if rate.__class__ is not float and isinstance(rate, Tensor):
                rates.append(rate)
    return rates


def describe_non_finite(groups: Mapping[str, object], optimizers: Sequence[Optimizer]) -> list[str]:
    """Describe every parameter, moment and buffer that is not finite.

    It reads all tensors from the device: call it only after a failure.

    Args:
        groups: watched objects by name.
        optimizers: optimizers of the run.

    Returns:
        One phrase per tensor with its number of non-finite entries; after the first few, the number of the others.
    """
    phrases = [
        phrase for name, tensor in _named_tensors(groups, optimizers) if (phrase := _count_non_finite(name, tensor))
    ]
    # After a divergence, usually every tensor is non-finite.
    more = len(phrases) - MAX_NAMED
    return phrases if more <= 0 else [*phrases[:MAX_NAMED], f"{more} more"]


def _named_tensors(groups: Mapping[str, object], optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, Tensor]]:
    registered: set[int] = set()
    for group, owner in groups.items():
        for name, tensor in _parameters(owner):
            registered.add(id(tensor))
            yield f"parameter {name} of group '{group}'", tensor
    for number, optimizer in enumerate(optimizers):
        # Parameters outside of the watched groups are trained too, and may be the cause.
        others = [
            tensor for group in optimizer.param_groups for tensor in group["params"] if id(tensor) not in registered
        ]
        yield from ((f"unwatched parameter {i} of optimizer {number}", tensor) for i, tensor in enumerate(others))
    yield from _moments(optimizers)
    yield from _buffers(groups.values())


def _parameters(owner: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(owner, nn.Module):
        yield from owner.named_parameters()
    elif isinstance(owner, Mapping):
        yield from ((str(name), tensor) for name, tensor in owner.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  an Owner's mapping
    elif isinstance(owner, Sequence):
        yield from ((str(index), tensor) for index, tensor in enumerate(owner))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  an Owner's list


def _moments(optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, Tensor]]:
    for number, optimizer in enumerate(optimizers):
        index = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if _is_moment(key, value):
                        yield f"{key} of parameter {index} of optimizer {number}", value
                index += 1


def _is_moment(key: object, value: object) -> bool:
    # Step counters are always finite, and empty tensors have no norm.
    return key != "step" and isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0


def _buffers(owners: Iterable[object]) -> Iterator[tuple[str, Tensor]]:
    for owner in owners:
        if isinstance(owner, nn.Module):
            for name, buffer in owner.named_buffers():
                if buffer.is_floating_point() and buffer.numel():
                    yield f"buffer {name}", buffer


def _largest(tensors: list[Tensor]) -> Tensor:
    device = tensors[0].device
    # Tensors on other devices are left out: copying their values would synchronize the devices.
    # The L1 norm needs no squares, so it overflows later than the L2 norm.
    sums = _foreach_norm([tensor for tensor in tensors if tensor.device == device], 1.0)
    return torch.stack([total.float() for total in sums]).max()


def _count_non_finite(name: str, tensor: Tensor) -> str:
    bad = int((~torch.isfinite(tensor.detach())).sum()) if tensor.is_floating_point() else 0
    return f"{name} ({bad} of {tensor.numel()} entries)" if bad else ""
