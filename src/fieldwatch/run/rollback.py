"""How a run that has diverged goes back to its last good state, and which updates it skips when they come again."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fieldwatch.checkpoint import CheckpointError, Restored
from fieldwatch.guard import Diverged, Rollback, Trouble, forget_steps, name_poisoned
from fieldwatch.run.saving import Saving

if TYPE_CHECKING:
    from fieldwatch.run.run import Run

EVENT = "rolled_back"


class Returning:
    """Answers divergence. What it decides is carried in every checkpoint: a killed and resumed run skips the same.

    Args:
        options: when and how often; None never goes back, and only says more about why. A run of several ranks does
            not go back either: it skips what was decided before, and stops.
        run: which one.
        saving: its checkpoints.
    """

    def __init__(self, options: Rollback | None, run: "Run", saving: Saving) -> None:
        self.options = options if run.ranks.alone else None
        self._given, self._run, self._saving = options, run, saving

    def skips(self, step: int) -> bool:
        """Whether the update of this step is left out."""
        return self._given is not None and any(first <= step <= last for first, last in self._decided["skips"])

    def after_step(self, end: Callable[[], None], begin: Callable[[], None], *, total: int) -> None:
        """End a step, and go back if it turns out that the run has diverged.

        Args:
            end: ends the step.
            begin: begins a segment at the run's start.
            total: planned steps. After the last one what was recorded is read at once, while there is a way back.

        Raises:
            Diverged: the run may not go back again, or has nowhere to go; the message says what was tried.
        """
        try:
            end()
            if self._run.step_index + 1 == total and self.options is not None:
                self._run.recording.flush()
                self._run.recording.raise_divergence(self._saving.how_to_resume)
        except Diverged as diverged:
            restored, event = self._go_back(diverged, total)
        else:
            return
        run = self._run
        run.memory.close()
        run.start, run.mark = restored.step, restored.note
        begin()
        self._tell(event)
        run.save()

    @property
    def _decided(self) -> dict[str, Any]:
        """Stretches to skip, tries for the trouble at hand, its steps, and the events of all times."""
        carried = self._run.recording.carried
        if not carried:
            skips = [list(pair) for pair in self._given.skip] if self._given is not None else []
            carried |= {"skips": skips, "tries": 0, "span": None, "told": []}
        return carried

    def _go_back(self, diverged: Diverged, total: int) -> tuple[Restored, dict[str, Any]]:
        """Put the last good checkpoint back into the kept items; the record has still to be rewound to it."""
        run = self._run
        there = self._saving.checkpoints.steps()  # the save in flight is among them
        self._saving.tell(run.recording)
        run.recording.flush()
        trouble = run.recording.trouble
        poisoned = name_poisoned(run.watched.owners(), run.watched.optimizers())
        words = f"{diverged}" + (f". Not finite: {'; '.join(poisoned)}" if poisoned else "")
        if self.options is None or trouble is None:
            raise Diverged(words, diverged.step) from None
        span = self._joined(trouble, self.options)
        tries = self._decided["tries"]
        if tries >= self.options.at_most or (tries and self.options.skipped(span, tries)[1] >= total - 1):
            raise Diverged(f"{words}. It may not go back again. {self._story()}", diverged.step) from None
        first, last = self.options.skipped(span, tries)
        restored = self._restored(there, min(first, trouble.first), trouble.first)
        if isinstance(restored, str):
            raise Diverged(f"{words}. It cannot go back. {restored}. {self._story()}", diverged.step) from None
        forget_steps()
        return restored, self._noted(trouble, poisoned, restored.step, [max(first, restored.step), last])

    def _joined(self, trouble: Trouble, options: Rollback) -> tuple[int, int]:
        """Count a trouble to the one before, unless the run got well past that; return the steps of both."""
        decided = self._decided
        span = decided["span"]
        if span is None or trouble.first > max(span) + options.settled:
            decided["tries"], span = 0, [trouble.first, trouble.last]
        elif trouble.last >= trouble.first:
            span = [min(span[0], trouble.first), max(span[1], trouble.last)]
        decided["span"] = span
        return span[0], span[1]

    def _noted(self, trouble: Trouble, poisoned: list[str], step: int, skip: list[int]) -> dict[str, Any]:
        decided = self._decided
        decided["tries"] += 1
        skipped = skip if skip[0] <= skip[1] else []
        decided["skips"] += [skipped] if skipped else []
        event = {"number": len(decided["told"]) + 1, "try": decided["tries"], "from": trouble.seen + 1, "to": step}
        event |= {"skipped": skipped, "cause": trouble.cause, "not_finite": poisoned}
        decided["told"].append(event)
        return event

    def _tell(self, event: Mapping[str, Any]) -> None:
        """Record this time, and every earlier one that the record has lost by going back further."""
        recording = self._run.recording
        kept = {one.get("number") for one in recording.history.events(EVENT)}
        for told in self._decided["told"]:
            if told["number"] not in kept:
                recording.event(EVENT, max(event["to"] - 1, 0), seconds=self._run.seconds(), **told)

    def _story(self) -> str:
        """What was tried, in one sentence."""
        everything: list[dict[str, Any]] = self._decided["told"]
        told = everything[len(everything) - self._decided["tries"] :]
        if not told:
            return "The run has not gone back before"
        parts = [f"from {one['from']} steps to {one['to']}, skipping {_stretch(one['skipped'])}" for one in told]
        return f"Went back {len(told)} times before, without getting past it: {'; '.join(parts)}"

    def _restored(self, there: Sequence[int], before: int, at_most: int) -> Restored | str:
        """Put back the last good checkpoint before all that is suspected, else the first after; or say why not."""
        wanted = [step for step in reversed(there) if step <= before]
        wanted += [step for step in there if before < step <= at_most]
        reasons = list[str]()
        for step in wanted:
            try:
                metrics = self._saving.checkpoints.find(step).metrics
                restored = self._saving.restore(self._run.recording, step=step)
            except CheckpointError as error:
                reasons.append(str(error))
                continue
            if restored is not None:
                self._saving.after_step(metrics)  # it is saved anew, with what was decided
                return restored
        return "; ".join([f"There is nothing to go back to: checkpoints are at steps {list(there)}", *reasons])


def _stretch(skipped: list[int]) -> str:
    return f"the updates of steps {skipped[0]} to {skipped[1]}" if skipped else "no update"
