"""Schedule of densification and opacity resets."""

from dataclasses import dataclass, replace
from typing import Self

from fieldwatch import InputError


@dataclass(frozen=True, kw_only=True)
class DensificationSchedule:
    """Schedule of densification, counted in finished updates: `s + 1` updates are finished after step `s` (0-based).

    The defaults are those of 3DGS (Kerbl 2023): densification at updates 600, 700 .. 14900, resets at 3000 .. 12000.

    Attributes:
        first: first update after which Gaussians may be densified.
        last: last update after which Gaussians may be densified or reset.
        every: interval between densifications, in updates.
        reset_every: interval between opacity resets, in updates; 0 disables resets.
        pause: number of updates after a reset without densification.

    Raises:
        InputError: The schedule is empty or a count is negative.
    """

    first: int = 600
    last: int = 14_900
    every: int = 100
    reset_every: int = 3000
    pause: int = 0

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not (0 < self.first <= self.last and self.every > 0 and self.reset_every >= 0 and self.pause >= 0):
            raise InputError(
                "densification schedule must have 0 < first <= last, every > 0, reset_every >= 0 and pause >= 0, got "
                f"first {self.first}, last {self.last}, every {self.every}, reset_every {self.reset_every}, "
                f"pause {self.pause}"
            )

    def densifies_after(self, step: int) -> bool:
        """Return whether Gaussians are densified after this step (0-based)."""
        done = step + 1
        # No pause applies before the first reset.
        since_reset = done % self.reset_every if self.reset_every and done >= self.reset_every else self.pause
        return self.first <= done <= self.last and done % self.every == 0 and since_reset >= self.pause

    def resets_after(self, step: int) -> bool:
        """Return whether opacities are reset after this step (0-based); if both are due, densification comes first."""
        done = step + 1
        # No reset after the last densification: training has to recover from it.
        return self.reset_every > 0 and done <= self.last and done % self.reset_every == 0

    def sweeps_after(self, step: int) -> bool:
        """Return whether floaters are removed after this step (0-based): after the middle and last densification."""
        first = -(-self.first // self.every) * self.every
        intervals = (self.last - first) // self.every
        return step + 1 in {first + self.every * (intervals // 2), first + self.every * intervals}

    def collects_statistics(self, step: int) -> bool:
        """Return whether the statistics of this step (0-based) can still contribute to a densification."""
        return step < self.last

    @property
    def last_step(self) -> int:
        """Last step (0-based) after which Gaussians are densified."""
        return self.last - 1

    def scaled(self, factor: float) -> Self:
        """Return the schedule with all counts multiplied by `factor`, rounded, at least 1; zeros stay 0."""
        return replace(self, **{name: value and max(round(value * factor), 1) for name, value in vars(self).items()})
