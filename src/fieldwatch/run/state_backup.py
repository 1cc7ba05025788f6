"""Backup of state that temporary work may change: random states, modes, buffers, gradients, given objects."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fieldwatch.checkpoint import Stateful


class TorchGenerators:
    """States of torch's global generators for the CPU and the current CUDA device.

    Copying them takes microseconds, unlike those of Python and NumPy, so it can be done at every step.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the current states."""
        # Reading the CUDA state would initialize CUDA in a process that trains on the CPU.
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        return {"torch": torch.get_rng_state(), "cuda": cuda}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Set the states."""
        torch.set_rng_state(state["torch"])
        if state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"])


class StateBackup:
    """Copy of state, taken by the constructor and restored by :meth:`restore`, any number of times.

    Gradients are moved, not copied: they are None until they are restored.

    Args:
        generators: random states to copy.
        undo: further objects whose whole state is copied.
        modules: modules whose modes (train, eval) and buffers are copied.
        parameters: parameters, besides those of the modules, whose gradients are moved.
    """

    def __init__(
        self,
        generators: Stateful,
        undo: Sequence[Stateful] = (),
        modules: Sequence[nn.Module] = (),
        parameters: Sequence[Tensor] = (),
    ) -> None:
        self._generators = generators
        self._random = generators.state_dict()
        self._items = [(item, deepcopy(item.state_dict())) for item in undo]
        self._modes = [(submodule, submodule.training) for module in modules for submodule in module.modules()]
        self._buffers = [(buffer, _copy_buffer(buffer)) for module in modules for buffer in module.buffers()]
        of_modules = (parameter for module in modules for parameter in module.parameters())
        # Only leaves accumulate gradients; torch warns when `.grad` of another tensor is read.
        leaves = {id(parameter): parameter for parameter in (*of_modules, *parameters) if parameter.is_leaf}
        self._gradients = [(parameter, parameter.grad) for parameter in leaves.values()]
        for parameter, _ in self._gradients:
            # The temporary work must not accumulate into the gradients of the open step.
            parameter.grad = None

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the saved state."""
        self._generators.load_state_dict(self._random)
        for item, state in self._items:
            # Pass a copy: the item may keep a reference to it, and `restore` may be called again.
            item.load_state_dict(deepcopy(state))
        for submodule, training in self._modes:
            submodule.training = training
        for buffer, copy in self._buffers:
            buffer.copy_(copy)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


def _copy_buffer(buffer: Tensor) -> Tensor:
    """Copy a buffer on its device, or to host memory if the device has no space."""
    try:
        return buffer.detach().clone()
    except torch.OutOfMemoryError:
        host_copy = torch.empty(buffer.shape, dtype=buffer.dtype)
    return host_copy.copy_(buffer.detach())
