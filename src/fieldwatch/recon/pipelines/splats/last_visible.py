"""Record of the step at which each Gaussian was last visible."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.render.splats import VisibleRows, fill_visible


class LastVisible:
    """Record of the step at which each Gaussian was last visible.

    Densification and pruning change the row numbers, so the record restarts. Nothing is reported until the rows have
    been unchanged for two epochs less one step: in that time, every photo is rendered at least once for any shuffling.

    Args:
        photos: number of training photos.
        device: device of the Gaussians, to which a restored state is moved.

    Raises:
        ValueError: There are no photos.
    """

    def __init__(self, photos: int, device: torch.device | str = "cpu") -> None:
        if photos < 1:
            raise ValueError(f"LastVisible requires the number of training photos, at least 1, got {photos}")
        # A photo that comes first in one epoch and last in the next is not rendered for 2 n - 2 steps.
        self.window = 2 * photos - 1
        self._steps = torch.empty(0, dtype=torch.int32, device=device)
        self._since = self._now = -1

    def add(self, visible: VisibleRows, count: int, step: int) -> None:
        """Record the visible Gaussians of one step.

        Args:
            visible: the visible Gaussians (`RenderOutput.visible_rows`).
            count: number of Gaussians.
            step: current step, 0-based, ascending.
        """
        # Also after a resume on another device.
        if len(self._steps) != count or self._steps.device != visible.device:
            # The rows are new: no Gaussian has been visible yet.
            self._steps = torch.full((count,), -1, dtype=torch.int32, device=visible.device)
            self._since = step
        fill_visible(self._steps, visible, step)
        self._now = step

    def restart(self) -> None:
        """Restart the record; call it after densification, prunes and relocations, which change the row numbers."""
        self._steps = self._steps.new_empty(0)

    def invisible_share(self) -> Float[Tensor, ""] | None:
        """Return the fraction of Gaussians not visible in the last two epochs; None before two epochs have passed."""
        if not len(self._steps) or self._now - self._since + 1 < self.window:
            return None
        return torch.count_nonzero(self._steps <= self._now - self.window) / len(self._steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the record, for a checkpoint."""
        return {"steps": self._steps, "since": self._since, "now": self._now}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the record of a checkpoint, for any number of Gaussians."""
        self._steps = state["steps"]
        self._since = int(state["since"])
        self._now = int(state["now"])
