"""Copies of values of the host to a GPU, for which the host does not wait.

A blocking copy waits until the device has finished everything that was launched before. `torch.tensor(..., device=...)`
and `Tensor.new_tensor` are blocking copies, and so is a copy from pageable memory, even with `non_blocking=True`.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

_KEPT = 4096  # constants; a view has about five


def constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Return a vector of numbers with the type and device of a tensor, copied to the device the first time only.

    The vector is shared: do not write to it.
    """
    return _constant(values, like.dtype, like.device)


@functools.lru_cache(maxsize=_KEPT)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # A tensor made in inference mode could never take part in a training.
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def upload(values: Tensor | Sequence[int] | Sequence[float], device: torch.device) -> Tensor:
    """Return values of the host on a device; a copy to a GPU goes through pinned memory, and nothing waits for it."""
    tensor = torch.as_tensor(values)
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
