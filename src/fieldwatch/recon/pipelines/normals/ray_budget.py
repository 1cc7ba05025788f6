"""Adapts the number of rays per step, and bounds the number of samples per batch."""

import math
from collections.abc import Mapping
from typing import Any

from fieldwatch.recon.pipelines.normals.config import RayOptions
from fieldwatch.recon.pipelines.normals.delayed_counts import DelayedCounts
from fieldwatch.recon.render import SampleBudget

BUDGET = 1 << 16
"""Samples of a graph of up to `VIEWS` views for which the bound is set if there is no sample budget."""
VIEWS = 4
"""Views whose rays need a budget at the step length of PMNI's settings."""
OVER = 8
"""Maximum samples of a batch in budgets: before occluded samples are dropped, a sound grid yields several budgets."""
MOST_BOUND = 1 << 23
"""Maximum of the sample bound: what the GPU kernels of a field take in a pass, with the ends of sections."""
LEAST_BOUND = 1 << 14
"""Minimum of the sample bound: a single ray can need 2 / step samples."""
LEAST_RAYS = 64
"""Minimum number of rays, whatever samples they need."""


class RayBudget:
    """Chooses the number of rays of each step, and bounds the number of samples of each batch.

    With `sample_budget` the number of rays follows the samples that rays needed (`SampleBudget`), up to `rays`;
    otherwise it is constant. The sample bound applies in both cases: if the grid becomes saturated, a step renders
    fewer rays instead of running out of memory or taking minutes.

    Args:
        options: ray sampling options.

    Attributes:
        counts: counts of steps on a GPU, from which the budget learns a step later.
    """

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self.counts = DelayedCounts()
        self._budget: SampleBudget | None = None
        if options.sample_budget is not None:
            # `rays` may be set below the usual minimum.
            lowest = min(LEAST_RAYS, options.rays)
            self._budget = SampleBudget(options.sample_budget, lowest=lowest, highest=options.rays)

    @property
    def rays(self) -> int:
        """Number of rays in the next step, over all its batches."""
        return self._options.rays if self._budget is None else self._budget.rays

    @property
    def max_samples(self) -> int:
        """Maximum number of samples in a batch; rays that would exceed it are dropped."""
        if self._options.sample_budget is not None:
            return max(OVER * self._options.sample_budget, LEAST_BOUND)
        return min(OVER * BUDGET * math.ceil(self._options.views_per_graph / VIEWS), MOST_BOUND)

    def max_samples_of(self, micro_batches: int) -> int:
        """Return the maximum number of samples in a micro-batch, which shrinks with their number to save memory."""
        # Not below the bound of a single ray, or no ray could be rendered.
        return max(self.max_samples // micro_batches, LEAST_BOUND)

    def observe(self, rays: int, samples: int) -> None:
        """Update the budget with the rays and blended samples of a step, over all its batches."""
        # A step without rays says nothing about the samples that rays need.
        if self._budget is not None and rays:
            self._budget.observe(rays, samples)

    def state_dict(self) -> dict[str, Any]:
        """Return the running mean, and the counts that it has not seen."""
        mean = {"budget": None if self._budget is None else self._budget.state_dict()}
        return mean | self.counts.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the running mean and the counts."""
        self.counts.load_state_dict(state)
        if self._budget is not None and state["budget"] is not None:
            self._budget.load_state_dict(state["budget"])
