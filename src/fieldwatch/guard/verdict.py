"""Whether a step's loss and gradients are finite, as a value on the device."""

import torch
from jaxtyping import Float
from torch import Tensor


class Diverged(RuntimeError):  # noqa: N818  a diverged run is what it says, as in the loop's `except Diverged`
    """Too many updates in a row were refused: training cannot go on by itself.

    Attributes:
        step: the first step of the unbroken streak of refusals.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class Verdict:
    """The finiteness of one step. It stays on the device; asking for ``finite`` reads it (one host read).

    Args:
        probe: any scalar that is NaN or infinite exactly when the step is bad.
    """

    __slots__ = ("_probe",)

    def __init__(self, probe: Float[Tensor, ""]) -> None:
        self._probe = probe.detach()

    @property
    def finite(self) -> bool:
        """Whether everything is finite. Reads the device: only for loops that must branch."""
        return bool(torch.isfinite(self._probe))

    def refused(self, norm: Float[Tensor, ""] | None = None) -> Float[Tensor, ""]:
        """1.0 on the device when the step must be refused, else 0.0; no host read.

        ``x - x`` is 0 for every finite x and NaN otherwise, and only NaN differs from itself.
        """
        # One non-finite term makes the sum non-finite: a single test covers loss and gradients.
        probe = self._probe if norm is None else self._probe + norm
        gap = probe - probe
        return gap.ne_(gap).float()
