"""When Gaussians are densified and when their opacities are reset."""

from dataclasses import dataclass, replace
from typing import Self

from fieldwatch import InputError


@dataclass(frozen=True, kw_only=True)
class DensificationSchedule:
    """When to densify, counted in finished updates: after step `s` (0-based) `s + 1` of them are done.

    The defaults are those of 3DGS (Kerbl 2023): densification at updates 600, 700 .. 14900, resets at 3000 .. 12000.

    Attributes:
        first: the first update after which Gaussians may be densified.
        last: the last one.
        every: updates between densifications.
        reset_every: updates between resets of the opacities, up to `last`; 0 never resets.
        pause: updates after a reset during which nothing is densified.

    Raises:
        InputError: a schedule that is empty or counts backwards.
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
                f"densification from update {self.first} to {self.last} every {self.every}, reset every "
                f"{self.reset_every}, pause {self.pause}: wanted 0 < first <= last, every above 0, reset_every and "
                "pause 0 or more"
            )

    def densifies_after(self, step: int) -> bool:
        """Whether Gaussians are densified after this step (0-based)."""
        done = step + 1
        # Before the first reset no pause holds.
        since_reset = done % self.reset_every if self.reset_every and done >= self.reset_every else self.pause
        return self.first <= done <= self.last and done % self.every == 0 and since_reset >= self.pause

    def resets_after(self, step: int) -> bool:
        """Whether opacities are reset after this step (0-based); densification, where both are due, comes first."""
        done = step + 1
        return self.reset_every > 0 and done <= self.last and done % self.reset_every == 0

    def collects_statistics(self, step: int) -> bool:
        """Whether the statistics of this step (0-based) may still count for a densification."""
        return step < self.last

    @property
    def last_step(self) -> int:
        """The last step (0-based) after which anything is densified."""
        return self.last - 1

    def scaled(self, factor: float) -> Self:
        """Shorten (or lengthen) everything alike, to whole updates, at least 1; what is 0 stays 0."""
        return replace(self, **{name: value and max(round(value * factor), 1) for name, value in vars(self).items()})
