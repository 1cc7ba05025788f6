"""What a disk does to a run: checkpoints that fail or were damaged, damage of the record, a record that waits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.record import DAMAGED, History
from fieldwatch.record.disk import DISK_FREED, DISK_FULL


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
        findings = list[Finding]()
        since = -1
        for event in history.events(self.kind):
            step = int(event["step"])
            if since < 0 or any(since <= at < step for at in good):
                text = f"step {step} was not saved: {event.get('reason')} The last good one is {_last(good, step)}."
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
    """The disk was full: the run went on, and its rows waited; a note once there is room again and all is written.

    Attributes:
        full: events of a disk that became full.
        freed: events of a disk that has room again.
        dropped: events of sinks that were dropped for it.
    """

    full: str = DISK_FULL
    freed: str = DISK_FREED
    dropped: str = "sink_dropped"
    remedy: ClassVar[str] = (
        "Free space on the disk (older runs, Retention.last); nothing else is to be done: what waited is written by "
        "itself, and a sink that was dropped goes on with the next resume. The journal has all rows."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return what every stretch cost, the one that still goes on, and the sinks that were dropped."""
        freed = history.events(self.freed)
        findings = [self._space_freed(event) for event in freed]
        begun = history.events(self.full)
        if len(begun) > len(freed):
            step = int(begun[-1]["step"])
            text = f"the disk is full since step {step}: the run goes on, and rows wait in memory."
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
    before = [at for at in good if at < step]
    return f"of step {max(before)}" if before else "none"


@dataclass(frozen=True, kw_only=True)
class FellBack(HealthRule):
    """A checkpoint was damaged, and the run went on from an older one or from the mirror's: steps were repeated."""

    kind: str = "incident"
    remedy: ClassVar[str] = (
        "Look at the disk (dmesg, SMART, a full quota): what damaged this checkpoint may damage the next one. The "
        "damaged folder lies beside the others as damaged-step_...; delete it once you have looked at it."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return each time."""
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
    """Lines of the run's record are damaged and left out, or run.json is: what is shown lacks them."""

    kind: str = DAMAGED
    remedy: ClassVar[str] = (
        "Restore the file from a copy if you have one; else go on: only what is named is missing. Look at the disk "
        "(dmesg, SMART) and at whatever else writes into the run folder."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return what is known of each file last."""
        last = {str(event.get("file")): event for event in history.events(self.kind)}
        return tuple(
            self.finding(int(event["step"]), f"{event.get('message')}.", subject=file) for file, event in last.items()
        )
