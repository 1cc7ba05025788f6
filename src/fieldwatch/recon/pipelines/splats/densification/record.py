"""The counts of one densification."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DensificationRecord:
    """Counts of one densification. The names are keys of the `growth` event on disk.

    Attributes:
        before: Gaussians before.
        after: Gaussians after.
        cloned: Gaussians that got a clone.
        split: Gaussians that were replaced by `children` smaller ones.
        children: Gaussians that came of those.
        pruned: Gaussians that were removed and have no children.
        too_large: of these, the ones that were removed for their size and not for their opacity.
        relocated: dead Gaussians that were moved onto living ones (MCMC).
        drawn: copies of living Gaussians that were added (MCMC).
        held_back: candidates that the cap left no room for.

    Raises:
        ValueError: the counts do not add up.
    """

    before: int
    after: int
    cloned: int = 0
    split: int = 0
    children: int = 0
    pruned: int = 0
    too_large: int = 0
    relocated: int = 0
    drawn: int = 0
    held_back: int = 0

    def __post_init__(self) -> None:
        """Check the balance."""
        if self.before + self.added - self.removed != self.after:
            raise ValueError(
                f"densification from {self.before} by {self.added} added and {self.removed} removed Gaussians does not "
                f"give {self.after}: the step lost count, which is a bug"
            )

    @property
    def added(self) -> int:
        """New rows."""
        return self.cloned + self.children + self.drawn

    @property
    def removed(self) -> int:
        """Rows that went: pruned, or replaced by their children."""
        return self.pruned + self.split

    def facts(self, last_step: int) -> dict[str, int]:
        """The facts of a `growth` event: `run.event("growth", **record.facts(schedule.last_step))`.

        Args:
            last_step: the last step (0-based) after which Gaussians are densified; the forecast of memory reads it.
        """
        return {**vars(self), "added": self.added, "removed": self.removed, "growth_until": last_step}
