"""Facts of a loop that are recorded when it begins or ends: its lines, a loop without steps, tensors that are kept."""

import gc
import sys
from collections.abc import Iterator, Sequence
from types import CellType, FunctionType
from typing import cast

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.measure import Heading
from fieldwatch.record import Manifest, tags
from fieldwatch.run.kept_weights import kept_weights
from fieldwatch.run.log import RunLog
from fieldwatch.run.loop_checks import LoopChecks
from fieldwatch.run.loop_source import LoopSource, read_loop_source, user_frame
from fieldwatch.run.machine import device_name, machine_facts
from fieldwatch.run.plan import RunPlan
from fieldwatch.run.run_record import RunRecord
from fieldwatch.run.step_context import StepContext
from fieldwatch.run.tracked_objects import TrackedObjects

_ALLOCATED = "Memory/allocated_MB"
_GROWN = 8.0
"""MiB by which memory has to grow before tensors are looked for, which takes up to a tenth of a second."""
_MANY = 256
"""Number of tensors with a graph; a loop keeps those of a step."""
_HELD_BY = 3
"""Number of tensors whose holder is looked for."""


def record_loop_source(plan: RunPlan, record: RunRecord, log: RunLog, items: Sequence[str]) -> None:
    """Record the lines of the loop that findings name, unless they are known from an earlier segment.

    Args:
        plan: plan of the run.
        record: record of the run.
        log: its event log.
        items: names of the tracked objects.
    """
    if _may_quote(plan):
        _record(read_loop_source(items), record, log)


def _may_quote(plan: RunPlan) -> bool:
    """Return whether lines of the loop may be recorded: code that is not to be kept is not quoted either."""
    return plan.outputs.keep_code and not plan.observer.active


def _record(source: LoopSource | None, record: RunRecord, log: RunLog) -> None:
    if source is None:
        return
    known = record.history.events(tags.LOOP_SOURCE)
    facts = source.facts()
    if not known or any(known[-1].get(key) != value for key, value in facts.items()):
        log.event(tags.LOOP_SOURCE, **facts)


def record_early_end(log: RunLog, start: int) -> None:
    """Record that the loop is over although planned steps are left, or none were planned.

    Without it, rules that judge the result could not tell a loop that stopped early from one that goes on.

    Args:
        log: event log of the run.
        start: first step of this segment.
    """
    if log.step_index >= start:
        log.event("ended", steps=log.step_index + 1)


def describe_without_steps(plan: RunPlan, record: RunRecord, log: RunLog, tracked: TrackedObjects) -> Manifest | None:
    """Say that a training was prepared and made no step, and describe its run, which no first step has described.

    Args:
        plan: plan of the run, which was about to begin its loop.
        record: record of the run.
        log: its event log.
        tracked: tracked objects.

    Returns:
        The content of run.json; None if nothing shows that the loop was reached, so that nothing is written: the run
        may have been opened to be looked at.
    """
    trained = any(isinstance(item, Optimizer) for item in tracked.items.values())
    # A finished run that is opened again has no step to make.
    if not trained or plan.resuming or plan.observer.active:
        return None
    source = read_loop_source(tuple(tracked.items))
    empty = [] if source is None else [each for each in source.loaders if each["batches"] == 0]
    record.flush()
    if not empty and not record.history.names():
        return None
    why = f"the data loader '{empty[0]['name']}' has no batch" if empty else "its loop had nothing to iterate over"
    sys.stderr.write(f"fieldwatch: the run in {plan.folder} has ended without a single step: {why}\n")
    machine = machine_facts(device_name(tracked.parameters()))
    manifest = plan.description.begin(plan.folder, record, 0, None, machine)
    if _may_quote(plan):
        _record(source, record, log)
    log.event(tags.NO_STEPS, loaders=empty)
    return manifest


def record_evaluation(checks: LoopChecks, record: RunRecord, log: RunLog) -> None:
    """Record what the checks of the loop saw of an evaluation between two steps.

    Args:
        checks: checks of the loop.
        record: record of the run.
        log: its event log.
    """
    step = log.step_index
    found = checks.between_steps(step)
    if found:
        record.write(Heading("step", step, step, log.seconds), found, {})


def record_at_end(plan: RunPlan, context: StepContext) -> None:
    """Record what the end of a loop shows: tensors and weights that are kept, statistics that have moved.

    Args:
        plan: plan of the run.
        context: parts of the run.
    """
    context.loop_checks.finish()
    record_kept_tensors(plan, context.record, context.log)
    frame = None if plan.observer.active else user_frame()
    if frame is not None:
        modules = {name: item for name, item in context.tracked.items.items() if isinstance(item, nn.Module)}
        for facts in kept_weights(frame, modules):
            context.log.event(tags.KEPT_WEIGHTS, **facts)


def record_kept_tensors(plan: RunPlan, record: RunRecord, log: RunLog) -> None:
    """At the end of a run whose memory has grown, record how many tensors are still alive with their graphs."""
    if plan.observer.active:
        return
    record.flush()
    history = record.history
    if _ALLOCATED not in history:
        return
    values = history[_ALLOCATED].values
    quarter = len(values) // 4
    if quarter < 1 or float(np.median(values[-quarter:]) - np.median(values[:quarter])) < _GROWN:
        return
    kept = [each for each in gc.get_objects() if type(each) is Tensor and each.grad_fn is not None]
    if len(kept) < _MANY:
        return
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in kept}
    holder = _holder(kept)
    log.event(tags.KEPT_TENSORS, count=len(kept), nbytes=sum(storages.values()), holder=holder)


def _holder(kept: list[Tensor]) -> str:
    """Return the name of a variable whose list or mapping holds one of the tensors; empty if it is unknown."""
    # Each question looks at all objects of the process.
    for tensor in kept[:: max(len(kept) // _HELD_BY, 1)]:
        for holder in gc.get_referrers(tensor):
            if isinstance(holder, list | dict | tuple | set) and holder is not kept:
                name = next(_names_of(cast("object", holder)), None)
                if name is not None:
                    return name
    return ""


def _names_of(holder: object) -> Iterator[str]:
    """Yield the names of an object: of variables, of attributes, of variables of an outer function."""
    for owner in gc.get_referrers(holder):
        if isinstance(owner, dict):
            for name, value in cast("dict[object, object]", owner).items():
                if value is holder and isinstance(name, str):
                    yield name
        elif isinstance(owner, CellType):
            yield from _names_of_cell(owner)


def _names_of_cell(cell: CellType) -> Iterator[str]:
    """Yield the names that functions have for a variable of an outer function."""
    for closure in gc.get_referrers(cell):
        if not isinstance(closure, tuple):
            continue
        cells = cast("tuple[object, ...]", closure)
        for function in gc.get_referrers(cells):
            if isinstance(function, FunctionType) and function.__closure__ is cells:
                names = zip(function.__code__.co_freevars, cells, strict=True)
                yield from (name for name, each in names if each is cell)
