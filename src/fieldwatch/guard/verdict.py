"""`Verdict`: whether the loss and gradients of a step are finite, evaluated on the device."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_ALLOWED = torch.zeros((), dtype=torch.float32, device="cpu")
"""The usual answer on a CPU. Nothing writes to it."""


def reading_is_free(flag: Float[Tensor, ""]) -> bool:
    """Return whether the host can read the flag without synchronizing with a device."""
    return flag.is_cpu


class Diverged(RuntimeError):  # noqa: N818  reads well in a loop's `except Diverged`
    """Raised if training cannot continue, such as after too many refused updates in a row.

    Attributes:
        step: first bad step, such as the first of the consecutive refusals.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class Verdict:
    """Finiteness of one step. It stays on the device until ``finite`` is read, which synchronizes once.

    Args:
        probe: scalar that is NaN or infinite exactly if the step is bad.
    """

    __slots__ = ("_probe",)

    def __init__(self, probe: Float[Tensor, ""]) -> None:
        # The verdict may outlive the step, and must not keep its graph alive.
        self._probe = probe.detach() if probe.requires_grad else probe

    @property
    def finite(self) -> bool:
        """Whether everything is finite. Synchronizes with the device: use it only if the loop has to branch."""
        return bool(torch.isfinite(self._probe))

    def refused(self, norm: Float[Tensor, ""] | None = None) -> Float[Tensor, ""]:
        """Return 1.0 on the device if the step must be refused, else 0.0; does not synchronize.

        ``x - x`` and ``0 * x`` are 0 for every finite x and NaN otherwise, and only NaN differs from itself.

        Args:
            norm: total gradient norm to check as well; None checks only the probe.
        """
        # On a CPU, reading both values takes less time than one operation. item() would give the interpreter's lock to
        # the writer thread in between.
        if reading_is_free(self._probe) and (norm is None or reading_is_free(norm)):
            probe: Any = self._probe
            length: Any = norm
            finite = math.isfinite(probe.tolist()) and (norm is None or math.isfinite(length.tolist()))
            return _ALLOWED if finite else torch.ones_like(_ALLOWED)
        if norm is not None and norm.is_cuda and (norm.device, norm.dtype) == (self._probe.device, self._probe.dtype):
            # norm + 0 * (probe - norm), in one launch.
            gap = torch.lerp(norm, self._probe, 0.0)
            return gap.ne_(gap).float()
        # A sum with a non-finite summand is non-finite: a single test covers loss and gradients.
        probe = self._probe if norm is None else self._probe + norm
        gap = probe - probe
        return gap.ne_(gap).float()
