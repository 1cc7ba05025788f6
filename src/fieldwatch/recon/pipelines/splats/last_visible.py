"""At which step each Gaussian was last visible."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


class LastVisible:
    """At which step each Gaussian was last visible.

    When Gaussians are densified or pruned, their row numbers change, and the count begins anew. So nothing is reported
    until the rows were the same for two epochs of the photos, less one step: every photo is rendered at least once in
    that time, however the epochs are shuffled.

    Args:
        photos: number of training photos.
        device: of the Gaussians; a restored state comes back there.

    Raises:
        ValueError: there are no photos.
    """

    def __init__(self, photos: int, device: torch.device | str = "cpu") -> None:
        if photos < 1:
            raise ValueError(f"LastVisible(photos={photos}): wanted the number of training photos, at least 1")
        self.window = 2 * photos - 1
        self._steps = torch.empty(0, dtype=torch.int32, device=device)
        self._since = self._now = -1

    def add(self, visible: Int[Tensor, " visible"], count: int, step: int) -> None:
        """Record the visible Gaussians of one step.

        Args:
            visible: numbers of the visible Gaussians (`RenderOutput.ids`).
            count: Gaussians there are.
            step: 0-based, ascending.
        """
        if len(self._steps) != count or self._steps.device != visible.device:
            self._steps = torch.full((count,), -1, dtype=torch.int32, device=visible.device)
            self._since = step
        self._steps.index_fill_(0, visible.long(), step)
        self._now = step

    def restart(self) -> None:
        """Begin anew, as row numbers have changed; call it after densification, prunes and relocations."""
        self._steps = self._steps.new_empty(0)

    def invisible_share(self) -> Float[Tensor, ""] | None:
        """Share of the Gaussians that were visible in no step of the last two epochs; None before there were two."""
        if not len(self._steps) or self._now - self._since + 1 < self.window:
            return None
        return torch.count_nonzero(self._steps <= self._now - self.window) / len(self._steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the steps, for a checkpoint."""
        return {"steps": self._steps, "since": self._since, "now": self._now}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the steps of a checkpoint, whatever their number."""
        self._steps = state["steps"]
        self._since = int(state["since"])
        self._now = int(state["now"])
