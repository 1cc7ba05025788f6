"""Random state that is restored when the loop begins, not when the checkpoint is read."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from fieldwatch.checkpoint import RandomState


class StoredRandomState:
    """Holds the stored state of all generators until :meth:`apply`.

    Whatever is built between reading the checkpoint and the first step may draw random numbers: it cannot use up the
    stored state.
    """

    def __init__(self) -> None:
        self._live = RandomState()
        self._stored: Mapping[str, Any] | None = None

    def state_dict(self) -> Mapping[str, Any]:
        """The state of all generators now."""
        return self._live.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a stored state for later."""
        self._stored = state

    def apply(self) -> None:
        """Set all generators to the stored state, if there is one; each rank's GPU to that of the first one's."""
        if self._stored is None:
            return
        self._live.load_state_dict(dict(self._stored))
        # The stored state is that of the first rank's GPU; this rank trains on another one.
        if self._stored["cuda"] and int(os.environ.get("LOCAL_RANK", "0")):
            torch.cuda.set_rng_state(self._stored["cuda"][0])
