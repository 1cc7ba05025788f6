"""Learning rate schedules in the notation of the original scripts, as a factor of the peak learning rate."""

import math
from dataclasses import dataclass
from typing import Literal

from fieldwatch import InputError

_FORMS = "cosine_<up>_<pow>_<min> or hybrid_<up>_<uppow>_<downpow>_<min>_<final>"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Warm-up, then decay. The factor depends on the progress only, so a schedule has no state to checkpoint.

    For progress p < up the factor is start + (1 - start) * (p / up)^up_power. Then, with q = (p - up) / (1 - up),
    "cosine" is (1 + cos(pi q)) / 2, which ends at 0, and "hybrid" is 1 - (1 - final) * q^down_power.

    Attributes:
        shape: shape of the decay.
        up: fraction of the training used for the warm-up, 0 <= up < 1.
        up_power: exponent of the warm-up; 1 is linear.
        start: factor at the first step. The original calls it min, although the cosine ends at 0.
        down_power: exponent of the hybrid decay.
        final: factor at the end of the hybrid decay.

    Raises:
        ValueError: a value is out of bounds.
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
            msg = f"the schedule's warm-up fraction must be at least 0 and less than 1, got {self.up}"
            raise InputError(msg)
        for name in ("up_power", "down_power"):
            if not 0 < getattr(self, name) < math.inf:
                msg = f"the schedule's {name} must be finite and greater than 0, got {getattr(self, name)}"
                raise InputError(msg)
        for name in ("start", "final"):
            if not 0 <= getattr(self, name) <= 1:
                msg = f"the schedule's {name} scales the peak and must be in [0, 1], got {getattr(self, name)}"
                raise InputError(msg)

    def factor(self, progress: float) -> float:
        """Return the factor of the peak learning rate at ``progress`` = (epoch + step / steps per epoch) / epochs.

        Raises:
            ValueError: the progress is not in [0, 1].
        """
        # Written so that NaN is refused as well.
        if not 0 <= progress <= 1:
            msg = f"progress must be in [0, 1], got {progress}; check the number of epochs of a resumed run"
            raise ValueError(msg)
        if progress < self.up:
            return self.start + (1 - self.start) * (progress / self.up) ** self.up_power
        # Fraction of the decay that has passed.
        down = (progress - self.up) / (1 - self.up)
        if self.shape == "cosine":
            return 0.5 * (1 + math.cos(math.pi * down))
        return 1 - (1 - self.final) * down**self.down_power


def parse_schedule(text: str) -> Schedule:
    """Parse ``cosine_<up>_<pow>_<min>`` or ``hybrid_<up>_<uppow>_<downpow>_<min>_<final>``.

    Raises:
        InputError: the text has another form, or values are out of bounds.
    """
    # The names of the numbers follow the original scripts, where the start factor is called min.
    shape, *parts = text.split("_")
    try:
        numbers = [float(part) for part in parts]
    # An empty list matches neither form, so it ends in the error below.
    except ValueError:
        numbers = []
    if shape == "cosine" and len(numbers) == 3:
        up, power, start = numbers
        return Schedule(shape="cosine", up=up, up_power=power, start=start)
    if shape == "hybrid" and len(numbers) == 5:
        up, power, down_power, start, final = numbers
        return Schedule(shape="hybrid", up=up, up_power=power, down_power=down_power, start=start, final=final)
    msg = f"--lr-type must be {_FORMS}, e.g. cosine_0.1_1_0.1, got {text!r}"
    raise InputError(msg)
