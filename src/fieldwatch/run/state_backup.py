"""State that temporary work must leave as it was: random states, modes, buffers, gradients, named objects."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fieldwatch.checkpoint import Stateful


class TorchGenerators:
    """The states of torch's global generators: of the CPU, and of the current CUDA device.

    Copying them takes microseconds, unlike those of Python and numpy, so that it can be done at every step.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the states."""
        # Asking for the CUDA state would initialize CUDA in a process that trains on the CPU.
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        return {"torch": torch.get_rng_state(), "cuda": cuda}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Set the states."""
        torch.set_rng_state(state["torch"])
        if state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"])


class StateBackup:
    """A copy of state, taken when it is made, that :meth:`restore` puts back, as often as it is called.

    Gradients are put away, not copied: they are None until they are put back.

    Args:
        generators: which random states.
        undo: further objects whose whole state is copied.
        modules: modules whose modes (train, eval) and buffers are copied.
        parameters: parameters, beyond those of the modules, whose gradients are put away.
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
        # Only leaves accumulate gradients; reading `.grad` of another tensor warns.
        leaves = {id(parameter): parameter for parameter in (*of_modules, *parameters) if parameter.is_leaf}
        self._gradients = [(parameter, parameter.grad) for parameter in leaves.values()]
        for parameter, _ in self._gradients:
            parameter.grad = None

    @torch.no_grad()
    def restore(self) -> None:
        """Restore everything."""
        self._generators.load_state_dict(self._random)
        for item, state in self._items:
            # A copy: the item may keep what it loads, and `restore` may be called again.
            item.load_state_dict(deepcopy(state))
        for submodule, training in self._modes:
            submodule.training = training
        for buffer, copy in self._buffers:
            buffer.copy_(copy)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


def _copy_buffer(buffer: Tensor) -> Tensor:
    """Copy a buffer on its device, or into the host's memory where the device has no room."""
    try:
        return buffer.detach().clone()
    except torch.OutOfMemoryError:
        room = torch.empty(buffer.shape, dtype=buffer.dtype)
    return room.copy_(buffer.detach())
