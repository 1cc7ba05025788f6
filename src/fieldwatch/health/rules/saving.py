"""Checkpoints that cannot be written, here or at the mirror."""

from dataclasses import dataclass
from typing import ClassVar

from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.record import History


@dataclass(frozen=True, kw_only=True)
class CheckpointsFail(HealthRule):
    """Checkpoints cannot be written: the run goes on, and a kill costs all work since the last good one.

    Attributes:
        kind: events of saves that failed.
        good: events of saves that did not.
        mirror: events of copies that failed.
    """

    kind: str = "checkpoint_failed"
    good: str = "checkpoint"
    mirror: str = "mirror_failed"
    remedy: ClassVar[str] = (
        "Free space on the disk (older runs, Retention.last), or look why it takes no writes (a quota, read-only); "
        "the next save is tried by itself, and says so when it succeeds."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first failure of each stretch without a good save, and the first of the mirror."""
        good = [int(event["step"]) for event in history.events(self.good)]
        found, since = list[Finding](), -1
        for event in history.events(self.kind):
            step = int(event["step"])
            if since < 0 or any(since <= at < step for at in good):
                text = f"step {step} was not saved: {event.get('reason')} The last good one is {_last(good, step)}."
                found.append(self.finding(step, text, subject=self.kind))
            since = step
        return (*found, *self._copies(history))

    def _copies(self, history: History) -> tuple[Finding, ...]:
        failed = history.events(self.mirror)
        if not failed:
            return ()
        text = f"the checkpoint of step {failed[0]['step']} was not copied to the mirror: {failed[0].get('reason')}"
        return (self.finding(int(failed[0]["step"]), text, subject=self.mirror),)


def _last(good: list[int], step: int) -> str:
    before = [at for at in good if at < step]
    return f"of step {max(before)}" if before else "none"
