"""Whether a run that has diverged returns to a checkpoint, to which, and which updates it skips then."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fieldwatch.guard import Diverged, Rollback, TrainingDivergence
from fieldwatch.run.decision import GoBack

EVENT = "rolled_back"


@dataclass(frozen=True, kw_only=True)
class RollbackState:
    """What was decided so far. Every checkpoint holds it, so that a killed and resumed run skips the same updates.

    Attributes:
        skips: stretches of steps whose updates are skipped, first and last.
        tries: how often the run has gone back for the current divergence.
        span: first and last suspected step of that divergence, over all tries; None before the first.
        events: the events of all times that the run went back.
    """

    skips: tuple[tuple[int, int], ...] = ()
    tries: int = 0
    span: tuple[int, int] | None = None
    events: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, stored: Mapping[str, Any], options: Rollback | None) -> Self:
        """Read the state that a checkpoint holds; without any, a run begins with the skips that its options name."""
        if not stored:
            return cls(skips=() if options is None else options.skip)
        span = stored["span"]
        return cls(
            skips=tuple((first, last) for first, last in stored["skips"]),
            tries=stored["tries"],
            span=None if span is None else (span[0], span[1]),
            events=tuple(stored["told"]),
        )

    def plain(self) -> dict[str, Any]:
        """Return it as a checkpoint stores it."""
        return {
            "skips": [list(pair) for pair in self.skips],
            "tries": self.tries,
            "span": None if self.span is None else list(self.span),
            "told": [dict(event) for event in self.events],
        }

    def skipped(self, step: int) -> bool:
        """Whether the update of a step is skipped."""
        return any(first <= step <= last for first, last in self.skips)

    def merge(self, divergence: TrainingDivergence, options: Rollback) -> Self:
        """Merge a divergence into the one before, unless the run got well past that."""
        first = divergence.first
        last = divergence.last
        # Of an empty span the last step comes before the first: hence the larger of the two.
        if self.span is None or first > max(self.span) + options.settled:
            return replace(self, tries=0, span=(first, last))
        if last < first:  # no batch is suspected
            return self
        return replace(self, span=(min(self.span[0], first), max(self.span[1], last)))

    def after_rollback(
        self, divergence: TrainingDivergence, back: GoBack, step: int, non_finite: Sequence[str]
    ) -> Self:
        """Return the state after the run went back.

        Args:
            divergence: why.
            back: what was decided.
            step: the checkpoint that was restored.
            non_finite: parameters, moments and buffers that were not finite before.
        """
        # Steps before the checkpoint do not come again.
        skip = (max(back.skip[0], step), back.skip[1])
        skips = (skip,) if skip[0] <= skip[1] else ()
        event = {"number": len(self.events) + 1, "try": self.tries + 1, "from": divergence.noticed_at + 1, "to": step}
        event |= {"skipped": [*skip] if skips else [], "cause": divergence.cause, "not_finite": list(non_finite)}
        return replace(self, tries=self.tries + 1, skips=(*self.skips, *skips), events=(*self.events, event))

    def describe_attempts(self) -> str:
        """Say in one sentence what was tried for the current divergence."""
        tried = self.events[len(self.events) - self.tries :]
        if not tried:
            return "The run has not gone back before"
        attempts = [f"from {e['from']} steps to {e['to']}, skipping {_describe_skip(e['skipped'])}" for e in tried]
        return f"Went back {len(tried)} times before, without getting past it: {'; '.join(attempts)}"


def decide_rollback(
    divergence: TrainingDivergence,
    state: RollbackState,
    options: Rollback,
    checkpoints: Sequence[int],
    *,
    total: int | None,
) -> GoBack | Diverged:
    """Decide what to do about a divergence.

    Args:
        divergence: what was seen.
        state: what was decided before, with this divergence counted in (:meth:`RollbackState.joined`).
        options: how often the run may go back, and how much it skips.
        checkpoints: the steps of those on the disk, in rising order.
        total: planned steps; None where that is not known.

    Returns:
        Where to go back to, or the error that ends the run; its text begins with the reason.
    """
    span = state.span or (divergence.first, divergence.last)
    first, last = options.skipped(span, state.tries)
    # A second try that skips all remaining updates trains nothing: the run stops instead.
    past_the_end = total is not None and bool(state.tries) and last >= total - 1
    if state.tries >= options.at_most or past_the_end:
        return Diverged(f"It may not go back again. {state.describe_attempts()}", divergence.first)
    before = min(first, divergence.first)
    # Best is the newest checkpoint before all suspected steps; then those between them and the first bad one.
    wanted = [step for step in reversed(checkpoints) if step <= before]
    wanted += [step for step in checkpoints if before < step <= divergence.first]
    if not wanted:
        return Diverged(no_way_back(checkpoints, state), divergence.first)
    return GoBack(to=tuple(wanted), skip=(first, last))


def no_way_back(checkpoints: Sequence[int], state: RollbackState, reasons: Sequence[str] = ()) -> str:
    """Say why a run cannot go back.

    Args:
        checkpoints: the steps of those on the disk.
        state: what was tried before.
        reasons: why checkpoints that were tried could not be restored.
    """
    reason = f"There is nothing to go back to: checkpoints are at steps {list(checkpoints)}"
    return f"It cannot go back. {'; '.join([reason, *reasons])}. {state.describe_attempts()}"


def _describe_skip(skipped: Sequence[int]) -> str:
    return f"the updates of steps {skipped[0]} to {skipped[1]}" if skipped else "no update"
