"""Entries of the growth ledger, one per event, and their totals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["growth", "prune", "reset"]
FALL = 1.0
"""Drop of PSNR in dB from which an event is marked; smaller drops are noise between photos."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One event, with means over the 20 steps before and after it; NaN for values that were not recorded.

    Attributes:
        step: 0-based step after whose update the event happened.
        kind: "growth", "prune" or "reset".
        before: number of primitives before the event; 0 if unknown.
        after: number of primitives after the event.
        cloned: number of cloned primitives.
        split: number of primitives that were replaced by smaller ones.
        children: number of primitives that replaced the split ones.
        pruned: number of primitives that were removed without replacement.
        too_large: number of primitives among the pruned ones that were removed for their size, not for their opacity.
        relocated: number of dead primitives that were moved onto living ones (MCMC).
        drawn: number of primitives that were added on living ones (MCMC).
        held_back: number of candidates that were skipped because of the cap.
        removed: number of removed rows: pruned ones, and split ones that were replaced.
        lowered: number of primitives whose opacity was lowered by a reset.
        loss_before: mean of Loss/total before the event.
        loss_after: mean of Loss/total after the event.
        psnr_before: mean of Train/PSNR before the event, in dB.
        psnr_after: mean of Train/PSNR after the event, in dB.
        psnr_change: change of PSNR in dB, relative to each photo's previous visit if photos are named, else between the
            means.
        memory_before: mean of Memory/allocated_MB before the event, in MiB.
        memory_after: mean of Memory/allocated_MB after the event, in MiB.
        parameters_before: mean of Memory/parameters_MB before the event, in MiB.
        parameters_after: mean of Memory/parameters_MB after the event, in MiB.
        recovered_after: number of steps until the mean over 20 steps was within 1 dB again; None if PSNR did not fall
            further, or if no recovery was recorded.
        watched: number of recorded steps after the event, at most 200, in which a recovery can be observed.
    """

    step: int
    kind: Kind
    before: int = 0
    after: int = 0
    cloned: int = 0
    split: int = 0
    children: int = 0
    pruned: int = 0
    too_large: int = 0
    relocated: int = 0
    drawn: int = 0
    held_back: int = 0
    removed: int = 0
    lowered: int = 0
    loss_before: float = math.nan
    loss_after: float = math.nan
    psnr_before: float = math.nan
    psnr_after: float = math.nan
    psnr_change: float = math.nan
    memory_before: float = math.nan
    memory_after: float = math.nan
    parameters_before: float = math.nan
    parameters_after: float = math.nan
    recovered_after: int | None = None
    watched: int = 0

    @property
    def fell(self) -> bool:
        """Whether PSNR was more than 1 dB lower right after the event."""
        # False for NaN: without PSNR, no event is marked.
        return self.psnr_change < -FALL

    @property
    def lasting(self) -> bool:
        """Whether PSNR fell and did not return to within 1 dB in 200 steps."""
        # A run that ended sooner might still have recovered.
        return self.fell and self.recovered_after is None and self.watched >= 200


@dataclass(frozen=True, kw_only=True)
class GrowthTotals:
    """Totals of a ledger; counts have the same names as in `LedgerEntry`.

    Attributes:
        growths: number of densifications.
        prunes: number of prunes.
        resets: number of resets.
        cloned: total of cloned primitives.
        split: total of split primitives.
        children: total of replacements of split primitives.
        pruned: total of pruned primitives.
        too_large: total of primitives pruned for their size.
        relocated: total of relocated primitives.
        drawn: total of added primitives (MCMC).
        held_back: total of candidates skipped because of the cap.
        first: number of primitives before the first event.
        last: number of primitives after the last event.
        most: maximum number of primitives.
        lasting: steps of the events after which PSNR fell and did not recover.
    """

    growths: int
    prunes: int
    resets: int
    cloned: int
    split: int
    children: int
    pruned: int
    too_large: int
    relocated: int
    drawn: int
    held_back: int
    first: int
    last: int
    most: int
    lasting: tuple[int, ...]


def totals_of(entries: Sequence[LedgerEntry]) -> GrowthTotals:
    """Add up a ledger."""
    counted = ("cloned", "split", "children", "pruned", "too_large", "relocated", "drawn", "held_back")
    kinds = [entry.kind for entry in entries]
    return GrowthTotals(
        growths=kinds.count("growth"),
        prunes=kinds.count("prune"),
        resets=kinds.count("reset"),
        **{name: sum(getattr(entry, name) for entry in entries) for name in counted},
        first=entries[0].before if entries else 0,
        last=entries[-1].after if entries else 0,
        most=max((max(entry.before, entry.after) for entry in entries), default=0),
        lasting=tuple(entry.step for entry in entries if entry.lasting),
    )
