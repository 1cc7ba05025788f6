"""Rules for disk problems: failed or damaged checkpoints, a damaged record, a full disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.record import DAMAGED, History
from fieldwatch.record.disk import DISK_FREED, DISK_FULL


@dataclass(frozen=True, kw_only=True)
class CheckpointsFail(HealthRule):
    """Checkpoints cannot be written. The run continues, but a crash would lose all work since the last good one.

    Attributes:
        kind: kind of the events of failed saves.
        good: kind of the events of successful saves.
        mirror: kind of the events of failed copies to the mirror.
    """

    kind: str = "checkpoint_failed"
    good: str = "checkpoint"
    mirror: str = "mirror_failed"
    remedy: ClassVar[str] = (
        "Free space on the disk (older runs, Retention.last), or check why it cannot be written (quota, read-only). "
        "The next checkpoint is attempted automatically, and reported when it succeeds."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first failure after each successful save, and the first failed copy to the mirror."""
        good = [int(event["step"]) for event in history.events(self.good)]
        findings = list[Finding]()
        since = -1
        for event in history.events(self.kind):
            step = int(event["step"])
            # Consecutive failures are reported once.
            if since < 0 or any(since <= at < step for at in good):
                text = f"step {step} was not saved: {event.get('reason')} {_last(good, step)}"
                findings.append(self.finding(step, text, subject=self.kind))
            since = step
        return (*findings, *self._copies(history))

    def _copies(self, history: History) -> tuple[Finding, ...]:
        failed = history.events(self.mirror)
        if not failed:
            return ()
        text = f"the checkpoint of step {failed[0]['step']} was not copied to the mirror: {failed[0].get('reason')}"
        return (self.finding(int(failed[0]["step"]), text, subject=self.mirror),)


@dataclass(frozen=True, kw_only=True)
class DiskFull(HealthRule):
    """The disk is or was full: rows wait in memory while the run continues. A note once everything was written.

    Attributes:
        full: kind of the events of a disk that became full.
        freed: kind of the events of a disk that has space again.
        dropped: kind of the events of sinks that were dropped because of it.
    """

    full: str = DISK_FULL
    freed: str = DISK_FREED
    dropped: str = "sink_dropped"
    remedy: ClassVar[str] = (
        "Free space on the disk (older runs, Retention.last). Waiting rows are then written automatically, and a sink "
        "that was dropped continues with the next resume. The journal has all rows."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per period with a full disk, including the current one, and one per dropped sink."""
        freed = history.events(self.freed)
        findings = [self._space_freed(event) for event in freed]
        # One more "full" than "freed": the disk is still full.
        begun = history.events(self.full)
        if len(begun) > len(freed):
            step = int(begun[-1]["step"])
            text = f"the disk has been full since step {step}: the run continues, and its rows wait in memory."
            findings.append(self.finding(step, text, subject=f"full at step {step}"))
        for event in history.events(self.dropped):
            text = f"{event.get('message')}."
            findings.append(self.finding(int(event["step"]), text, subject=str(event.get("sink"))))
        return tuple(findings)

    def _space_freed(self, event: Mapping[str, Any]) -> Finding:
        step = int(event["step"])
        dropped = int(event.get("dropped", 0))
        text = f"{event.get('message')}."
        return self.finding(step, text, subject=f"to step {step}", severity="warning" if dropped else "note")


def _last(good: list[int], step: int) -> str:
    """Return a sentence about the last good checkpoint before a step."""
    before = [at for at in good if at < step]
    return f"The last good checkpoint is step {max(before)}." if before else "There is no good checkpoint yet."


@dataclass(frozen=True, kw_only=True)
class FellBack(HealthRule):
    """A checkpoint was damaged, so the run resumed from an older one or from the mirror and repeated steps.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "incident"
    remedy: ClassVar[str] = (
        "Check the disk (dmesg, SMART, quota), because the next checkpoint may be damaged in the same way. The damaged "
        "folder is kept next to the others as damaged-step_...; delete it after inspection."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per damaged or lost checkpoint."""
        findings = list[Finding]()
        for event in history.events(self.kind):
            if event.get("what") in ("damaged", "lost"):
                text = str(event.get("message") or f"a checkpoint was damaged: {event.get('reason')}")
                findings.append(
                    self.finding(int(event["step"]), f"{text}.", subject=f"step {event.get('damaged', '?')}")
                )
        return tuple(findings)


@dataclass(frozen=True, kw_only=True)
class DamagedRecord(HealthRule):
    """Lines of the run's record, or its run.json, are damaged; they are skipped.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = DAMAGED
    remedy: ClassVar[str] = (
        "Restore the file from a copy if you have one; otherwise continue, only the named lines are missing. Check the "
        "disk (dmesg, SMART), and whether another program writes into the run folder."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per damaged file, from its latest event."""
        last = {str(event.get("file")): event for event in history.events(self.kind)}
        return tuple(
            self.finding(int(event["step"]), f"{event.get('message')}.", subject=file) for file, event in last.items()
        )
