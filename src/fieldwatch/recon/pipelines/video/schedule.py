"""Learning-rate schedules in the notation of the original: a factor of the peak rate, from the progress alone."""

import math
from dataclasses import dataclass
from typing import Literal

from fieldwatch import InputError

_FORMS = "cosine_<up>_<pow>_<min> or hybrid_<up>_<uppow>_<downpow>_<min>_<final>"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Warm-up, then decay. Stateless: it depends on the progress and on nothing else, so a resume needs no memory.

    For progress p < up the factor is start + (1 - start) * (p / up)^up_power. Then, with q = (p - up) / (1 - up),
    "cosine" is (1 + cos(pi q)) / 2, which ends at 0, and "hybrid" is 1 - (1 - final) * q^down_power.

    Attributes:
        shape: the decay.
        up: share of the training that warms up, 0 <= up < 1.
        up_power: exponent of the warm-up, 1 is linear.
        start: factor at the first step (the original calls it min; the cosine ends at 0 all the same).
        down_power: exponent of the hybrid decay.
        final: factor at the end of the hybrid decay.

    Raises:
        ValueError: for values out of bounds.
    """

    shape: Literal["cosine", "hybrid"]
    up: float = 0.1
    up_power: float = 1.0
    start: float = 0.1
    down_power: float = 1.0
    final: float = 0.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not 0 <= self.up < 1:
            msg = f"the warm-up's share is {self.up}, it must be at least 0 and below 1"
            raise InputError(msg)
        for name in ("up_power", "down_power"):
            if not 0 < getattr(self, name) < math.inf:
                msg = f"the schedule's {name} is {getattr(self, name)}, it must be a positive number"
                raise InputError(msg)
        for name in ("start", "final"):
            if not 0 <= getattr(self, name) <= 1:
                msg = f"the schedule's {name} is {getattr(self, name)}, it must lie in 0 .. 1, as it scales the peak"
                raise InputError(msg)

    def factor(self, progress: float) -> float:
        """Return the factor of the peak rate at `progress` = (epoch + step / steps per epoch) / epochs, 0 <= p <= 1.

        Raises:
            ValueError: for a progress outside 0 .. 1.
        """
        if not 0 <= progress <= 1:
            msg = f"progress is {progress}, it must lie in 0 .. 1: check the number of epochs of a continued run"
            raise ValueError(msg)
        if progress < self.up:
            return self.start + (1 - self.start) * (progress / self.up) ** self.up_power
        down = (progress - self.up) / (1 - self.up)
        if self.shape == "cosine":
            return 0.5 * (1 + math.cos(math.pi * down))
        return 1 - (1 - self.final) * down**self.down_power


def parse_schedule(text: str) -> Schedule:
    """Read `cosine_<up>_<pow>_<min>` or `hybrid_<up>_<uppow>_<downpow>_<min>_<final>`.

    Raises:
        InputError: for anything else, or values out of bounds.
    """
    shape, *parts = text.split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if shape == "cosine" and len(numbers) == 3:
        up, power, start = numbers
        return Schedule(shape="cosine", up=up, up_power=power, start=start)
    if shape == "hybrid" and len(numbers) == 5:
        up, power, down_power, start, final = numbers
        return Schedule(shape="hybrid", up=up, up_power=power, down_power=down_power, start=start, final=final)
    msg = f"--lr-type is {text!r}, it must be {_FORMS}, for example cosine_0.1_1_0.1"
    raise InputError(msg)
