"""Fused L2 norms, with type annotations that torch lacks."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

_foreach_norm: Any = torch._foreach_norm  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  torch's clipping uses it
"""Fused norm, which torch's gradient clipping also uses."""
# Typed as Any, since torch's stubs do not annotate `vector_norm`.
_linalg: Any = torch.linalg
_vector_norm: Any = _linalg.vector_norm

_shape_and_dtype: Callable[[Tensor], tuple[torch.Size, torch.dtype]] = attrgetter("shape", "dtype")
_is_cpu: Callable[[Tensor], bool] = attrgetter("is_cpu")
_MANY = 64
"""Number of tensors from which the operations themselves take most of the time."""
_SMALL = 2048
"""Number of entries up to which an operation costs more than its work."""
_STACKED = 1 << 16
"""Number of entries of a stack."""
_ALIKE = 16
"""Number of tensors of one shape from which a stack of them pays off."""


def norm(values: Tensor) -> Float[Tensor, ""]:
    """Return the L2 norm of all entries."""
    return cast("Tensor", _vector_norm(values))


def norms(tensors: list[Tensor]) -> Sequence[Tensor]:
    """Return the L2 norm of each tensor, computed in one call per device and dtype."""
    if len(tensors) >= _MANY and tensors[0].is_cpu:
        return _norms_by_shape(tensors)
    return _foreach_norm(tensors, 2.0)


def norms_of_equal_shapes(tensors: list[Tensor]) -> Float[Tensor, " tensors"] | None:
    """Return the L2 norms of many small tensors on a CPU in one vector; None if their shapes or types differ.

    On a CPU the fused call is a loop with one operation per tensor, whose overhead is ten times the work on a small
    tensor. A stack of them takes one operation, and the norm of its row is that of the tensor, to the bit.
    """
    if len(tensors) < _MANY or not tensors[0].is_cpu:
        return None
    kinds = set(map(_shape_and_dtype, tensors))
    if len(kinds) > 1 or not _is_small(*kinds.pop()) or not _can_be_stacked(tensors):
        return None
    return _norms_of_stack(tensors)


def _norms_by_shape(tensors: list[Tensor]) -> list[Tensor]:
    """Return the L2 norm of each tensor; small ones that share a shape are stacked, see above."""
    places_by_kind: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
    for place, kind in enumerate(map(_shape_and_dtype, tensors)):
        places_by_kind.setdefault(kind, []).append(place)
    found: list[Tensor | None] = [None] * len(tensors)
    for kind, places in places_by_kind.items():
        alike = [tensors[place] for place in places]
        if len(places) < _ALIKE or not _is_small(*kind) or not _can_be_stacked(alike):
            continue
        for place, length in zip(places, _norms_of_stack(alike).unbind(), strict=True):
            found[place] = length
    rest = [tensor for tensor, length in zip(tensors, found, strict=True) if length is None]
    others = iter(_foreach_norm(rest, 2.0) if rest else ())
    return [next(others) if length is None else length for length in found]


def _is_small(shape: torch.Size, dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and 0 < shape.numel() <= _SMALL


def _can_be_stacked(tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors of one shape are on a CPU, and contiguous: a sum depends on the order in memory."""
    return all(map(Tensor.is_contiguous, tensors)) and all(map(_is_cpu, tensors))


def _norms_of_stack(tensors: list[Tensor]) -> Float[Tensor, " tensors"]:
    # In parts, since memory of several MB would be taken from the system and given back at every step.
    rows = max(_STACKED // tensors[0].numel(), 1)
    lengths: list[Tensor] = []
    for first in range(0, len(tensors), rows):
        stacked = torch.stack(tensors[first : first + rows])
        lengths.append(_vector_norm(stacked.view(len(stacked), -1), dim=1))
    return torch.cat(lengths)


def largest_entries(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the largest absolute entry of each tensor; NaN if it contains NaN."""
    # On a CPU the fused call takes twenty times as long as computing minimum and maximum, except for small tensors.
    # `aminmax` supports neither complex nor empty tensors.
    if any(tensor.device.type != "cpu" or tensor.is_complex() or not tensor.numel() for tensor in tensors):
        return list(_foreach_norm(list(tensors), float("inf")))
    if len(tensors) >= _MANY and sum(tensor.numel() for tensor in tensors) <= _SMALL * len(tensors):
        return list(_foreach_norm(list(tensors), float("inf")))
    # Take the larger absolute value of minimum and maximum; both propagate NaN.
    return [torch.stack(torch.aminmax(tensor)).abs_().amax() for tensor in tensors]
