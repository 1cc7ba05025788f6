"""What ties a run to earlier ones: the source that it stores, and the comparison at its end."""

from fieldwatch.health import finished
from fieldwatch.health.earlier_runs import EARLIER_RUN, better_earlier_run
from fieldwatch.record.source_code import SourceCode
from fieldwatch.run.log import RunLog
from fieldwatch.run.plan import RunPlan
from fieldwatch.run.run_record import RunRecord


def keep_source_code(plan: RunPlan, step: int) -> None:
    """Store the script of this process, and its modules, in the run folder; ``step`` is the first one that it trains.

    Raises:
        OSError: the disk is full or read-only.
    """
    # A replay does not change the run's folder.
    if not plan.outputs.keep_code or plan.observer.active:
        return
    source = SourceCode.of_this_process()
    if source is not None:
        source.keep(plan.folder, step)


def compare_with_earlier_runs(plan: RunPlan, record: RunRecord, log: RunLog) -> None:
    """At the end of a run, record which earlier run beside it was better, for the rules that judge the result."""
    if not plan.outputs.compare_earlier or plan.observer.active:
        return
    # Both the history and the files have to hold all rows.
    record.flush()
    better = better_earlier_run(plan.folder) if finished(record.history) else None
    if better is not None:
        log.event(EARLIER_RUN, **better)
