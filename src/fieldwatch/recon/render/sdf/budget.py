"""Number of rays per step for a given budget of samples."""

from collections.abc import Mapping
from typing import Any

from fieldwatch import InputError


class SampleBudget:
    """Adapts the number of rays so that the number of samples per step stays about constant.

    rays = target / running mean of samples per ray, within bounds. A step has few rays while the occupancy grid is
    full, and many once the grid has found the surface. Memory and time per step stay constant without a separate
    warm-up.

    Args:
        target: number of samples per step.
        lowest: minimum number of rays.
        highest: maximum number of rays, also if rays need no samples.
        momentum: momentum of the running mean; 0 uses the last step alone.
        multiple: size of a group of rays, such as 9 for patches of 3 x 3.

    Attributes:
        rays: number of rays for the next step; initially `lowest`, rounded to groups.
        per_ray: running mean of samples per ray; None before the first step.

    Raises:
        ValueError: the target, bounds, group size or momentum are invalid.
    """

    def __init__(
        self, target: int, *, lowest: int = 64, highest: int = 8192, momentum: float = 0.9, multiple: int = 1
    ) -> None:
        if not (target > 0 and 0 < lowest <= highest and 0 <= momentum < 1 and 0 < multiple <= highest):
            raise InputError(
                "a sample budget needs target > 0, 0 < lowest <= highest, 0 < multiple <= highest and a momentum in "
                f"[0, 1), got target {target}, {lowest} to {highest} rays, multiple {multiple}, momentum {momentum}"
            )
        self.target = target
        self.lowest = lowest
        self.highest = highest
        self.momentum = momentum
        self.multiple = multiple
        self.per_ray: float | None = None

    @property
    def rays(self) -> int:
        """Number of rays for the next step."""
        # The inner maximum limits the rays to `highest` even if rays need no samples (per_ray 0).
        count = self.lowest if self.per_ray is None else self.target / max(self.per_ray, self.target / self.highest)
        # Round down to whole groups: a step must not exceed its budget.
        groups = int(max(count, self.lowest)) // self.multiple
        least = -(-self.lowest // self.multiple)
        most = self.highest // self.multiple
        return min(max(groups, least), most) * self.multiple

    def observe(self, rays: int, samples: int) -> None:
        """Update the running mean with the rays and samples of a step.

        Raises:
            ValueError: `rays` is below 1, or `samples` is negative.
        """
        if rays < 1 or samples < 0:
            raise ValueError(f"a step must have at least 1 ray and 0 samples, got {rays} rays and {samples} samples")
        new = samples / rays
        # The first observation replaces the mean, which has no history yet.
        self.per_ray = new if self.per_ray is None else self.momentum * self.per_ray + (1 - self.momentum) * new

    def state_dict(self) -> dict[str, Any]:
        """Return the running mean for a checkpoint."""
        return {"per_ray": self.per_ray}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the running mean from a checkpoint."""
        self.per_ray = None if state["per_ray"] is None else float(state["per_ray"])
