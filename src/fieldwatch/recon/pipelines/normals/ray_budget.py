"""How many rays a step looks along, and how many samples a batch may take at most."""

from collections.abc import Mapping
from typing import Any

from fieldwatch.recon.pipelines.normals.config import RayOptions
from fieldwatch.recon.render import SampleBudget

BUDGET = 1 << 16
"""Samples in a step that the bound is made for where none are asked for."""
OVER = 8
"""Samples of a batch at most, in budgets: before hidden ones are left out, a sound grid gives several times as many."""
LEAST_BOUND = 1 << 14
"""Samples that a batch may always take: one ray alone needs 2 / step."""
LEAST_RAYS = 64
"""Rays at least, whatever they need."""


class RayBudget:
    """Chooses the rays of each step, and bounds the samples of each batch.

    With `sample_budget` the rays follow the samples that rays needed (`SampleBudget`), up to `rays`; without, their
    number is constant. The bound of samples holds either way: with a grid that is full all of a sudden, a step looks
    along fewer rays instead of running out of memory or taking minutes.

    Args:
        options: which rays.
    """

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._budget: SampleBudget | None = None
        if options.sample_budget is not None:
            lowest = min(LEAST_RAYS, options.rays)
            self._budget = SampleBudget(options.sample_budget, lowest=lowest, highest=options.rays)

    @property
    def rays(self) -> int:
        """Rays for the next step, over all its batches."""
        return self._options.rays if self._budget is None else self._budget.rays

    @property
    def max_samples(self) -> int:
        """Samples of a batch at most; rays whose samples would exceed it are left out."""
        return max(OVER * (self._options.sample_budget or BUDGET), LEAST_BOUND)

    def max_samples_of(self, micro_batches: int) -> int:
        """Samples of a micro-batch at most, where each batch is cut into several: less memory with a full grid, too."""
        return max(self.max_samples // micro_batches, LEAST_BOUND)

    def observe(self, rays: int, samples: int) -> None:
        """Take in what a step had, over all its batches: rays that were drawn, and samples that were blended."""
        if self._budget is not None and rays:
            self._budget.observe(rays, samples)

    def state_dict(self) -> dict[str, Any]:
        """Return the running mean, for a checkpoint."""
        return {"budget": None if self._budget is None else self._budget.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the running mean of a checkpoint."""
        if self._budget is not None and state["budget"] is not None:
            self._budget.load_state_dict(state["budget"])
