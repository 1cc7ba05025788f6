"""Fused L2 norms, with type annotations that torch lacks."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

_foreach_norm: Any = torch._foreach_norm  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  torch's clipping uses it
"""Fused norm, which torch's gradient clipping also uses."""
# Typed as Any, since torch's stubs do not annotate `vector_norm`.
_linalg: Any = torch.linalg


_MANY = 64
"""Number of tensors from which the operations themselves take most of the time."""
_SMALL = 2048
"""Mean number of entries up to which a fused norm takes less time than four operations."""


def norm(values: Tensor) -> Float[Tensor, ""]:
    """Return the L2 norm of all entries."""
    return cast("Tensor", _linalg.vector_norm(values))


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the L2 norm of each tensor, computed in one call per device and dtype."""
    return list(_foreach_norm(list(tensors), 2.0))


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
