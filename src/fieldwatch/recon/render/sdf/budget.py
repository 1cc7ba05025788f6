"""How many rays a step can afford."""

from collections.abc import Mapping
from typing import Any

from fieldwatch import InputError


class SampleBudget:
    """Chooses the number of rays so that a step has about the same number of samples, whatever rays need.

    rays = target / running mean of samples per ray, within bounds. While the grid is full a step has few rays, when it
    has found the surface many: memory and time of a step stay, without a warm-up of its own.

    Args:
        target: samples in a step.
        lowest: rays at least, whatever they need.
        highest: rays at most, also where rays need no samples at all.
        momentum: of the running mean; 0 believes the last step alone.
        multiple: rays come in groups of so many: 9 for patches of 3 x 3.

    Attributes:
        rays: for the next step; `lowest` at the start, rounded to groups.
        per_ray: running mean of samples per ray; None before the first step.

    Raises:
        ValueError: a target, bounds or a momentum that cannot be met.
    """

    def __init__(
        self, target: int, *, lowest: int = 64, highest: int = 8192, momentum: float = 0.9, multiple: int = 1
    ) -> None:
        if not (target > 0 and 0 < lowest <= highest and 0 <= momentum < 1 and 0 < multiple <= highest):
            raise InputError(
                f"a budget of {target} samples in {lowest} to {highest} rays by groups of {multiple}, momentum "
                f"{momentum}: wanted a target above 0, 0 < lowest <= highest, a group within that, a momentum in [0, 1)"
            )
        self.target = target
        self.lowest = lowest
        self.highest = highest
        self.momentum = momentum
        self.multiple = multiple
        self.per_ray: float | None = None

    @property
    def rays(self) -> int:
        """Rays for the next step."""
        # The inner maximum bounds the rays by `highest` also where rays need no samples (per_ray 0).
        wanted = self.lowest if self.per_ray is None else self.target / max(self.per_ray, self.target / self.highest)
        groups = int(max(wanted, self.lowest)) // self.multiple
        least = -(-self.lowest // self.multiple)
        most = self.highest // self.multiple
        return min(max(groups, least), most) * self.multiple

    def observe(self, rays: int, samples: int) -> None:
        """Take in what a step had.

        Raises:
            ValueError: no rays, or fewer than no samples.
        """
        if rays < 1 or samples < 0:
            raise ValueError(f"a step had {rays} rays and {samples} samples: wanted 1 or more rays, 0 or more samples")
        new = samples / rays
        self.per_ray = new if self.per_ray is None else self.momentum * self.per_ray + (1 - self.momentum) * new

    def state_dict(self) -> dict[str, Any]:
        """Return the running mean, for a checkpoint."""
        return {"per_ray": self.per_ray}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the running mean of a checkpoint."""
        self.per_ray = None if state["per_ray"] is None else float(state["per_ray"])
