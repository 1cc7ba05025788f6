"""L2 norms as fused calls, with the types that torch does not state."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

_foreach_norm: Any = torch._foreach_norm  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  torch's clipping uses it
"""The fused call that torch's own gradient clipping uses."""
_linalg: Any = torch.linalg


def norm(values: Tensor) -> Float[Tensor, ""]:
    """Norm of all entries."""
    return cast("Tensor", _linalg.vector_norm(values))


def norms(tensors: Sequence[Tensor], order: float = 2.0) -> list[Tensor]:
    """Norm of each tensor, in one call per device and dtype; ``order`` infinity is the largest absolute entry."""
    return list(_foreach_norm(list(tensors), order))
