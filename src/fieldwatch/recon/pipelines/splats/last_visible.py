"""At which step each Gaussian was last visible."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


class LastSeen:
    """At which step each Gaussian was last visible.

    Numbers of rows change when Gaussians grow, and rows move: the count then begins anew. So nothing is said until the
    number has stood still for two rounds of the photos, less one step: every photo is drawn at least once in that
    time, however the rounds are shuffled.

    Args:
        photos: number of training photos.
        device: of the Gaussians; a restored state comes back there.

    Raises:
        ValueError: there are no photos.
    """

    def __init__(self, photos: int, device: torch.device | str = "cpu") -> None:
        if photos < 1:
            raise ValueError(f"LastSeen(photos={photos}): wanted the number of training photos, at least 1")
        self.window = 2 * photos - 1
        self._steps = torch.empty(0, dtype=torch.int32, device=device)
        self._since = self._now = -1

    def add(self, visible: Int[Tensor, " visible"], count: int, step: int) -> None:
        """Take in what one step showed.

        Args:
            visible: numbers of the visible Gaussians (`drawn.ids`).
            count: Gaussians there are.
            step: 0-based, ascending.
        """
        if len(self._steps) != count or self._steps.device != visible.device:
            self._steps = torch.full((count,), -1, dtype=torch.int32, device=visible.device)
            self._since = step
        self._steps.index_fill_(0, visible.long(), step)
        self._now = step

    def restart(self) -> None:
        """Forget all: rows have changed places; call it after growth, prunes and relocations."""
        self._steps = self._steps.new_empty(0)

    def unseen_share(self) -> Float[Tensor, ""] | None:
        """Share of the Gaussians that no step of the last two rounds showed; None before there were two."""
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
