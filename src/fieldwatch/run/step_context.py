"""`StepContext`: the parts of a run that its steps use."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from fieldwatch.measure import Clock, DetailSchedule
from fieldwatch.run.checkpoint_coverage import CheckpointCoverage
from fieldwatch.run.log import RunLog
from fieldwatch.run.loop_checks import LoopChecks
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.observer import Observer
from fieldwatch.run.ranks import Ranks
from fieldwatch.run.retry import Retry
from fieldwatch.run.run_record import RunRecord
from fieldwatch.run.tracked_objects import TrackedObjects
from fieldwatch.run.watchdog import Watchdog


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """Parts of a run that its steps use.

    Attributes:
        tracked: objects that are trained or saved.
        ranks: group of processes that train together.
        clock: timer for spans.
        watchdog: watchdog that receives heartbeats.
        memory: memory measurement of the run.
        record: writer of rows, images and histograms.
        log: event log and training time.
        coverage: detector of training state that no checkpoint contains.
        loop_checks: checks of modules, optimizers and terms for faults of the loop.
        retry: retry of work that ran out of memory.
        detail_every: number of steps between two records of the more expensive values.
        details: when each of these is measured.
        skips: predicate for step indices whose update is skipped after a rollback.
        observer: hooks of a replay; they do nothing in a training.
    """

    tracked: TrackedObjects
    ranks: Ranks
    clock: Clock
    watchdog: Watchdog
    memory: RunMemory
    record: RunRecord
    log: RunLog
    coverage: CheckpointCoverage
    loop_checks: LoopChecks
    retry: Retry
    detail_every: int
    details: DetailSchedule
    skips: Callable[[int], bool]
    observer: Observer

    def span(self, name: str) -> AbstractContextManager[None]:
        """Record the time of a block in ms as ``Time/<name>``, and send a heartbeat to the watchdog."""
        # The span's name becomes the phase in the black box, and has its own timeout.
        self.watchdog.alive(name)
        return self.clock.span(name)
