"""Counts of one densification."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DensificationRecord:
    """Counts of one densification. The attribute names are the keys of the `growth` event on disk.

    Attributes:
        before: number of Gaussians before.
        after: number of Gaussians after.
        cloned: number of Gaussians that were cloned.
        split: number of Gaussians that were split, that is, replaced by smaller ones.
        children: total number of Gaussians that replace the split ones.
        pruned: number of Gaussians that were removed without children.
        too_large: number of pruned Gaussians that were removed for their size, not for their opacity.
        relocated: number of dead Gaussians that were moved onto living ones (MCMC).
        drawn: number of sampled copies of living Gaussians that were added (MCMC).
        held_back: number of candidates that the cap excluded.

    Raises:
        ValueError: The counts are inconsistent.
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
        """Check that the counts add up."""
        if self.before + self.added - self.removed != self.after:
            raise ValueError(
                f"inconsistent densification counts: {self.before} Gaussians + {self.added} added - {self.removed} "
                f"removed is not {self.after}; please report this as a bug"
            )

    @property
    def added(self) -> int:
        """Number of new rows."""
        return self.cloned + self.children + self.drawn

    @property
    def removed(self) -> int:
        """Number of removed rows: pruned, or replaced by their children."""
        return self.pruned + self.split

    def facts(self, last_step: int) -> dict[str, int]:
        """Return the fields of a `growth` event: `run.event("growth", **record.facts(schedule.last_step))`.

        Args:
            last_step: last step (0-based) after which Gaussians are densified; used by the memory forecast.
        """
        return {**vars(self), "added": self.added, "removed": self.removed, "growth_until": last_step}
