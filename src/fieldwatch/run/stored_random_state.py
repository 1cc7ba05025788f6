"""Random state that is applied when the loop begins, not when the checkpoint is read."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from fieldwatch.checkpoint import RandomState


class StoredRandomState:
    """Keeps the stored state of all generators until :meth:`apply`.

    Objects constructed between reading the checkpoint and the first step may draw random numbers; this does not
    advance the stored state.
    """

    def __init__(self) -> None:
        self._live = RandomState()
        self._stored: Mapping[str, Any] | None = None

    def state_dict(self) -> Mapping[str, Any]:
        """Return the current state of all generators."""
        return self._live.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a stored state until :meth:`apply`."""
        self._stored = state

    def apply(self) -> None:
        """Set all generators to the stored state, if any; the GPU of each rank gets the state of the first rank's."""
        if self._stored is None:
            return
        self._live.load_state_dict(dict(self._stored))
        # The checkpoint contains the state of the first rank's GPU, but this rank uses another one.
        if self._stored["cuda"] and int(os.environ.get("LOCAL_RANK", "0")):
            torch.cuda.set_rng_state(self._stored["cuda"][0])
