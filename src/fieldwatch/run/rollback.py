"""Decide whether a diverged run is rolled back, to which checkpoint, and which updates it then skips."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fieldwatch.guard import Diverged, Rollback, TrainingDivergence
from fieldwatch.run.decision import GoBack

EVENT = "rolled_back"


@dataclass(frozen=True, kw_only=True)
class RollbackState:
    """Rollbacks so far. Every checkpoint contains this state, so a killed and resumed run skips the same updates.

    Attributes:
        skips: ranges (first, last) of steps whose updates are skipped.
        tries: number of rollbacks for the current divergence.
        span: first and last suspected step of that divergence, over all rollbacks; None before the first.
        events: one event per rollback.
    """

    skips: tuple[tuple[int, int], ...] = ()
    tries: int = 0
    span: tuple[int, int] | None = None
    events: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, stored: Mapping[str, Any], options: Rollback | None) -> Self:
        """Parse the state stored in a checkpoint; an empty one gives the initial state with the options' skips."""
        if not stored:
            return cls(skips=() if options is None else options.skip)
        # The stored skips already include those of the options when the run began.
        span = stored["span"]
        return cls(
            skips=tuple((first, last) for first, last in stored["skips"]),
            tries=stored["tries"],
            span=None if span is None else (span[0], span[1]),
            events=tuple(stored["told"]),
        )

    def plain(self) -> dict[str, Any]:
        """Return the state as plain values, for a checkpoint."""
        return {
            "skips": [list(pair) for pair in self.skips],
            "tries": self.tries,
            "span": None if self.span is None else list(self.span),
            "told": [dict(event) for event in self.events],
        }

    def skipped(self, step: int) -> bool:
        """Return whether the update of a step is skipped."""
        return any(first <= step <= last for first, last in self.skips)

    def merge(self, divergence: TrainingDivergence, options: Rollback) -> Self:
        """Merge a divergence into the current one, or begin a new one if the run had recovered in between."""
        first = divergence.first
        last = divergence.last
        # In an empty span the last step precedes the first, so take the larger of the two.
        if self.span is None or first > max(self.span) + options.settled:
            return replace(self, tries=0, span=(first, last))
        # The span is empty: no batch is suspected, so there is nothing to add.
        if last < first:
            return self
        return replace(self, span=(min(self.span[0], first), max(self.span[1], last)))

    def after_rollback(
        self, divergence: TrainingDivergence, back: GoBack, step: int, non_finite: Sequence[str]
    ) -> Self:
        """Return the state after a rollback.

        Args:
            divergence: divergence that caused the rollback.
            back: decision that was carried out.
            step: step of the restored checkpoint.
            non_finite: descriptions of parameters, moments and buffers that were not finite before the rollback.
        """
        # Steps before the restored checkpoint are not repeated, so they need no skip.
        skip = (max(back.skip[0], step), back.skip[1])
        skips = (skip,) if skip[0] <= skip[1] else ()
        event = {"number": len(self.events) + 1, "try": self.tries + 1, "from": divergence.noticed_at + 1, "to": step}
        event |= {"skipped": [*skip] if skips else [], "cause": divergence.cause, "not_finite": list(non_finite)}
        return replace(self, tries=self.tries + 1, skips=(*self.skips, *skips), events=(*self.events, event))

    def describe_attempts(self) -> str:
        """Return a sentence that describes the rollbacks for the current divergence."""
        # The latest `tries` events belong to the current divergence.
        tried = self.events[len(self.events) - self.tries :]
        if not tried:
            return "There was no earlier rollback"
        attempts = [f"from {e['from']} steps to {e['to']}, skipping {_describe_skip(e['skipped'])}" for e in tried]
        return f"Rolled back {len(tried)} times before, without success: {'; '.join(attempts)}"


def decide_rollback(
    divergence: TrainingDivergence,
    state: RollbackState,
    options: Rollback,
    checkpoints: Sequence[int],
    *,
    total: int | None,
) -> GoBack | Diverged:
    """Decide between rolling back and stopping after a divergence.

    Args:
        divergence: detected divergence.
        state: earlier rollbacks, already merged with this divergence (:meth:`RollbackState.merge`).
        options: limits for the number of rollbacks and the skipped steps.
        checkpoints: steps of the checkpoints on disk, in ascending order.
        total: planned number of steps; None if unknown.

    Returns:
        The rollback to carry out, or the error that ends the run; its message begins with the reason.
    """
    span = state.span or (divergence.first, divergence.last)
    first, last = options.skipped(span, state.tries)
    # A further rollback that skips all remaining updates would train nothing: stop instead.
    past_the_end = total is not None and bool(state.tries) and last >= total - 1
    if state.tries >= options.at_most or past_the_end:
        return Diverged(f"The limit of rollbacks is reached. {state.describe_attempts()}", divergence.first)
    before = min(first, divergence.first)
    # Prefer the newest checkpoint before all suspected steps, then those between them and the first bad step.
    candidates = [step for step in reversed(checkpoints) if step <= before]
    candidates += [step for step in checkpoints if before < step <= divergence.first]
    if not candidates:
        return Diverged(no_way_back(checkpoints, state), divergence.first)
    return GoBack(to=tuple(candidates), skip=(first, last))


def no_way_back(checkpoints: Sequence[int], state: RollbackState, reasons: Sequence[str] = ()) -> str:
    """Return the message for a run that cannot be rolled back.

    Args:
        checkpoints: steps of the checkpoints on disk.
        state: earlier rollbacks.
        reasons: errors of the checkpoints that could not be restored.
    """
    reason = f"no usable checkpoint among those at steps {list(checkpoints)}"
    return f"Rollback is impossible: {'; '.join([reason, *reasons])}. {state.describe_attempts()}"


def _describe_skip(skipped: Sequence[int]) -> str:
    return f"the updates of steps {skipped[0]} to {skipped[1]}" if skipped else "no update"
