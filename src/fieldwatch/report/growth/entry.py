"""What the ledger holds: one line per event, and their sums."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["growth", "prune", "reset"]
FALL = 1.0
"""dB by which PSNR has to fall for an event to be worth a mark; less is the noise between photos."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One event, and the means of 20 steps before and after it; NaN where nothing was recorded.

    Attributes:
        step: 0-based, the step after whose update it happened.
        kind: "growth", "prune" or "reset".
        before: primitives before; 0 where neither the event nor the record says it.
        after: primitives after.
        cloned: primitives that got a twin.
        split: primitives that were replaced by smaller ones.
        children: primitives that came of those.
        pruned: primitives that went without children.
        too_large: of these, the ones that went for their size and not for their opacity.
        relocated: dead primitives that were moved onto living ones (MCMC).
        drawn: primitives that were added on living ones (MCMC).
        held_back: candidates that the cap left no room for.
        removed: rows that went: pruned, or replaced by their children.
        lowered: primitives whose opacity a reset lowered.
        loss_before: mean of Loss/total.
        loss_after: the same, of the steps after.
        psnr_before: mean of Train/PSNR, dB.
        psnr_after: the same, of the steps after.
        psnr_change: dB; each photo against its own last visit where photos are named, else the means' difference.
        memory_before: MiB of Memory/allocated_MB.
        memory_after: MiB of the steps after.
        parameters_before: MiB of Memory/parameters_MB.
        parameters_after: MiB of the steps after.
        recovered_after: steps until 20 in a row were, in the mean, within 1 dB again; None where PSNR did not fall by
            more, or that was not seen.
        watched: steps on record after the event, at most 200: how long it was looked for a recovery.
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
        """Whether PSNR was more than 1 dB lower right after it."""
        return self.psnr_change < -FALL

    @property
    def lasting(self) -> bool:
        """Whether PSNR fell, and did not come back to within 1 dB in 200 steps."""
        return self.fell and self.recovered_after is None and self.watched >= 200


@dataclass(frozen=True, kw_only=True)
class GrowthTotals:
    """Sums over a ledger.

    Attributes:
        growths: events of that kind.
        prunes: the same.
        resets: the same.
        cloned: primitives over all events, as in `LedgerEntry`.
        split: the same.
        children: the same.
        pruned: the same.
        too_large: the same.
        relocated: the same.
        drawn: the same.
        held_back: the same.
        first: primitives before the first event.
        last: primitives after the last one.
        most: primitives after any event, at most.
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
