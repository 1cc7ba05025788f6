"""Numbers of a step on a GPU, which the host reads a step later.

A GPU works on a step while the host prepares the next one. Reading a step's numbers at its end would make the host
wait; a step later they have arrived. The delay is always one step, so that a run repeats.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fieldwatch.recon.pipelines.normals.step_output import RayStatistics


class DelayedNumbers:
    """A tensor of a GPU on its way to the host. What has not been taken is part of the checkpoint."""

    def __init__(self) -> None:
        self._arrived: Any = None
        self._copy: tuple[Tensor, torch.cuda.Event] | None = None

    def put(self, numbers: Tensor) -> None:
        """Begin to copy numbers; earlier ones that were not taken are lost."""
        copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        copy.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._arrived = None
        self._copy = copy, event

    def take(self) -> Any:
        """Return the numbers that were put last, as lists; None if there are none."""
        self._receive()
        arrived, self._arrived = self._arrived, None
        return arrived

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that were not taken; nothing if there are none, as on a CPU."""
        self._receive()
        return {} if self._arrived is None else {"pending": self._arrived}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the numbers."""
        self._copy = None
        self._arrived = state.get("pending")

    def _receive(self) -> None:
        if self._copy is None:
            return
        (copy, event), self._copy = self._copy, None
        # Only a host that is more than a step ahead of the device waits here.
        if not event.query():
            event.synchronize()
        self._arrived = copy.tolist()


class DelayedCounts(DelayedNumbers):
    """Ray statistics of the step before, once there is one; on a CPU, those of the step."""

    def exchange(self, statistics: RayStatistics) -> RayStatistics | None:
        """Return the statistics of the step before, and begin to copy those of this step.

        Raises:
            ValueError: rays were not finite, or samples outside the box of the field.
        """
        before = self.take()
        if statistics.counts is None:
            return statistics
        self.put(statistics.counts)
        return None if before is None else RayStatistics.of_counts([[int(n) for n in row] for row in before])
