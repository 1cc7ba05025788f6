"""The `Run` context manager: wraps a user-written training loop and keeps its record in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.base import InputError
from fieldwatch.lazy import lazy_names
from fieldwatch.record import Axis
from fieldwatch.record.config import plain_values
from fieldwatch.run.description import RunDescription
from fieldwatch.run.observer import current_observer, options_of_replay
from fieldwatch.run.options import FAILURES, Declared, Guard, Outputs, Saving
from fieldwatch.run.plan import RunPlan
from fieldwatch.run.profile import Profile
from fieldwatch.run.ranks import Ranks
from fieldwatch.run.sinks import add_log_interval
from fieldwatch.run.start import check_folder, refuse_missing_checkpoint

if TYPE_CHECKING:
    from fieldwatch.checkpoint import Checkpoints, CheckpointSelector, Stateful
    from fieldwatch.health import Finding
    from fieldwatch.measure import Owner
    from fieldwatch.run.evaluation import EvaluationBlock
    from fieldwatch.run.micro_batches import MicroBatches
    from fieldwatch.run.session import Session
    from fieldwatch.run.step import Step
    from fieldwatch.run.stopping import StopPoint

__getattr__, _ = lazy_names(__name__)  # resolves the quoted annotations at run time

Item = TypeVar("Item")
Result = TypeVar("Result")


class Run:
    """A training run in a folder: recorded, guarded, checkpointed and resumable.

    Use it as a context manager around any training loop.

    Args:
        folder: run folder; created if missing. If it already holds a run, that run can be resumed.
        config: resolved configuration (dataclass or mapping); it must be unchanged when a run is resumed.
        saving: when checkpoints are written, and which are kept.
        guard: when the run stops, rolls back, or is reported as hung.
        declared: description of the run for reports, rules and dashboards.
        outputs: health rules and sinks.
        profile: when to attribute every byte of tensor memory; None records only the allocated total.

    Attributes:
        folder: folder that this process writes to: the run folder, or this rank's subfolder.
        config: configuration as plain values.
        ranks: group of processes that train together, see :class:`Ranks`; a single one without torchrun.

    Raises:
        ConfigMismatch: the folder holds a run with a different config (the message lists the differences).
        FileExistsError, FileNotFoundError: ``saving.resume`` does not match the contents of the folder.
        CheckpointError: the folder has no checkpoint ``saving.resume_from``; the message lists those that it has.
        NotARun: the folder's run.json is damaged, and no checkpoint can replace it.

    Example:
        >>> with Run("runs/bear") as run:  # doctest: +SKIP
        ...     run.track(model=model, optimizer=optimizer, order=order)
        ...     run.resume()
        ...     for step in run.steps(30_000):
        ...         step.backward(objective, next(order))
        ...         step.update(optimizer)
    """

    def __init__(  # noqa: PLR0913  the folder, the config, and one record for each kind of decision
        self,
        folder: str | Path,
        *,
        config: Any = None,
        saving: Saving | None = None,
        guard: Guard | None = None,
        declared: Declared | None = None,
        outputs: Outputs | None = None,
        profile: Profile | None = None,
    ) -> None:
        from fieldwatch.run.external_targets import resolve_targets  # noqa: PLC0415  at first use

        saving = saving or Saving()
        declared = declared or Declared()
        outputs = outputs or Outputs()
        guard = guard or Guard()
        observer = current_observer()
        root = observer.folder_of(Path(folder))
        if observer.active:
            saving, guard, outputs = options_of_replay(root, saving, guard, outputs)
            profile = None
        # torchrun's environment variables decide, so a script needs no change to run on several ranks.
        self.ranks = Ranks.of_process()
        self.folder = self.ranks.folder(root)
        # Plain values can be stored in run.json, and compared when the run is resumed.
        self.config: Mapping[str, Any] = plain_values(config)
        # Reject an unusable folder here, before it is locked or written to.
        resuming = check_folder(root, config, saving.resume)
        refuse_missing_checkpoint(root, saving.resume_from, saving.keep)
        targets = resolve_targets(root, saving.mirror, outputs.sink_names, warn=self.ranks.is_first)
        about = self.ranks.about(add_log_interval(targets.add_to_about(declared.about), outputs.log_every))
        self._plan = RunPlan(
            folder=self.folder,
            root=root,
            config=self.config,
            resuming=resuming,
            ranks=self.ranks,
            saving=saving,
            mirror=targets.mirror,
            guard=guard,
            description=RunDescription.of(self.config, declared, about),
            outputs=outputs,
            profile=profile,
            observer=observer,
        )
        # The constructor changes nothing on disk; the session is created when the run is entered.
        self._opened: Session | None = None

    # Enter and leave

    def __enter__(self) -> Self:
        """Lock the folder for this process, start the record, and install signal handlers.

        If any of these fails, everything acquired so far is released and the reason is written to the black box.
        """
        from fieldwatch.run.session import Session  # noqa: PLC0415  at first use

        self._opened = Session.open(self._plan)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Save and finish, or write a crash folder if an exception occurred; the exception propagates."""
        self._session.close(error)

    def start(self) -> Self:
        """Enter the run without a ``with`` block, for a loop that cannot be indented; leave it with :meth:`finish`."""
        return self.__enter__()

    def finish(self, error: BaseException | None = None) -> None:
        """Leave a run that was entered with :meth:`start`.

        Args:
            error: exception that ended the training; None if it finished normally.
        """
        self._session.close(error)

    # Tracked objects and resuming

    def track(
        self, *, groups: Mapping[str, Owner] | None = None, data: Mapping[str, Any] | None = None, **items: Any
    ) -> None:
        """Register the objects that are trained or saved. May be called several times before :meth:`resume`.

        Every item becomes part of each checkpoint; nothing is restored yet. A module is also watched: its parameters
        form a group of that name, under which gradient norms, sizes and memory are recorded, unless ``groups``
        already contains some of its parameters.

        Args:
            groups: parameter groups that are not modules, or are only parts of one: name to a module, a mapping or a
                sequence of tensors. Groups must not overlap; they are watched, not saved. Frozen parameters are
                measured once they require a gradient.
            data: other large objects (images, caches) by name, for the owner column of the memory profile; not saved.
            **items: objects with ``state_dict`` and ``load_state_dict`` (modules, optimizers, schedulers, orders),
                tensors, or mappings of tensors. A :class:`MicroBatches` named ``micro_batches`` replaces the run's
                default.

        Raises:
            InputError: a name is already used, items are added after :meth:`resume` or the first step, a group has no
                parameters, or two groups share one.
        """
        self._session.track(items, groups, data)

    def resume(self, *, step: CheckpointSelector | None = None, renamed: Mapping[str, str] | None = None) -> int | None:
        """Restore the last good checkpoint of the folder, or of its mirror, into the tracked objects.

        Random states are restored when the loop begins, so that objects constructed in between do not advance them.

        With ``step``, the run continues from an earlier checkpoint. The checkpoints of later steps are renamed to
        ``abandoned-...``, and the record's later rows are replaced by those of the steps that follow. Nothing is
        deleted. Every call with a step goes back to it: leave it out when the run is to continue from its last
        checkpoint again.

        Args:
            step: checkpoint to restore, which must be in the folder: a step, "best" or "last"; None for that of
                ``Saving.resume_from``, by default the last.
            renamed: old item name to new item name, for checkpoints written by an earlier version of a program.

        Returns:
            The step that the run resumes from; None if there is no checkpoint.

        Raises:
            CheckpointError: checkpoints exist, but none could be restored; or there is none of ``step``: the message
                lists the steps that have one.
            InputError: :meth:`resume` was already called, or the loop has begun.
        """
        return self._session.resume(renamed or {}, step)

    # The loop

    def steps(self, total: int, *, first: int = 0) -> Iterator[Step]:
        """Yield the steps from ``first`` (or the resumed step) to ``total - 1``.

        A step ends when the loop requests the next one, so a ``continue`` cannot skip the end-of-step work.

        Raises:
            NoWayBackError: the folder holds checkpoints, but :meth:`resume` was not called.
            Diverged: too many updates in a row were refused.
            Interrupted: a signal arrived; the step was finished and saved (or abandoned, at a stop point).
            WriterFailed: the record could not be written.
        """
        session = self._session
        session.begin(total, first=first)
        while not session.ended:
            # The generator resumes only when the loop requests its next step, so the loop body is over by then.
            yield session.begin_step()
            session.end_step()
        session.end_loop()

    def begin_step(self, total: int | None = None) -> Step:
        """Begin the next step, in a loop that does not iterate over :meth:`steps`; end it with :meth:`end_step`.

        Args:
            total: planned number of steps, for progress and forecasts; None if unknown. Only the first call uses it.

        Raises:
            NoWayBackError: the folder holds checkpoints, but :meth:`resume` was not called.
            RuntimeError: the previous step has not been ended.
        """
        session = self._session
        if session.open_step is not None:
            raise RuntimeError(f"step {session.open_step.index} has not ended: call run.end_step() first")
        if not session.began:
            session.begin(total)
        return session.begin_step()

    def end_step(self) -> None:
        """End the step that :meth:`begin_step` returned: record it, check it, and save a checkpoint if one is due.

        After a rollback, the next :meth:`begin_step` returns an earlier step, so count with ``step.index``.

        Raises:
            Diverged: too many updates in a row were refused.
            Interrupted: a signal arrived; the step was finished and saved.
            RuntimeError: no step has begun.
        """
        if self._session.open_step is None:
            raise RuntimeError("no step has begun: call run.begin_step() before run.end_step()")
        self._session.end_step()

    def batches(self, source: Iterable[Item]) -> Iterator[Item]:
        """Iterate over ``source`` repeatedly, recording the wait for each batch as ``Time/data``.

        It does not end by itself: put the steps first, as in ``zip(run.steps(n), run.batches(loader))``. A loop over
        epochs iterates over the loader itself.
        """
        return self._session.batches(source)

    # Evaluation, and work that may run out of memory

    def evaluation(
        self, name: str, *, failures: tuple[type[Exception], ...] = FAILURES, undo: Sequence[Stateful] = ()
    ) -> EvaluationBlock:
        """Return a context manager for an evaluation that cannot disturb or end the training.

        Autograd is disabled inside the block. Afterwards all global random states, the modes (train, eval) and
        buffers of every tracked module, and all gradients are restored bit for bit. If the block fails, its traceback
        is written to ``validation_failures/``, the event ``validation_failed`` is recorded (a warning of the rule
        ``ValidationFailed``), the block's ``failed`` attribute is set, and training continues.

        Parameters are not backed up, since that would need the model's memory a second time. An evaluation that
        writes to them (such as swapping in averaged weights) must pass their module in ``undo``.

        Args:
            name: name of the evaluation in the event and the finding.
            failures: exceptions that training survives, in addition to out-of-memory errors. Signals, a record that
                cannot be written, and all other exceptions propagate.
            undo: further state to restore: the evaluation's generators, modules that it writes to.

        Raises:
            InputError: this is not the first rank. The others cannot skip the body of a ``with`` block: call
                :meth:`evaluate` on all ranks instead.
        """
        # Another rank would have to skip the body of its `with` block, which Python does not allow.
        if not self.ranks.is_first:
            raise InputError(
                f"run.evaluation({name!r}) may only run on the first of {self.ranks.world} ranks, got rank "
                f"{self.ranks.rank}: move the block into a function, and call run.evaluate({name!r}, function) on "
                "all ranks"
            )
        return self._session.evaluation(name, failures, undo)

    def evaluate(
        self,
        name: str,
        function: Callable[[], Result],
        *,
        micro_batches: MicroBatches | None = None,
        failures: tuple[type[Exception], ...] = FAILURES,
        undo: Sequence[Stateful] = (),
    ) -> Result | None:
        """Call a function inside an :meth:`evaluation` block, on the first rank only; retry it if memory runs out.

        Args:
            name: name of the evaluation in the event and the finding.
            function: the whole evaluation; it must not call collective operations.
            micro_batches: doubled before each retry after an out-of-memory error; ``function`` has to read its
                ``count``. None disables the retry.
            failures: as for :meth:`evaluation`.
            undo: as for :meth:`evaluation`.

        Returns:
            The function's result; None if it failed, on the other ranks, and in a replay, which leaves it out.
        """
        # An evaluation leaves the training as it was, so a replay can do without it.
        if self._plan.observer.active:
            return None
        # The other ranks wait with the longer timeout for announced work.
        return self.ranks.only_first(
            partial(self._evaluated, name, function, micro_batches, failures, undo), f"the evaluation {name!r}"
        )

    def retry(
        self, work: Callable[[], Result], micro_batches: MicroBatches, *, undo: Sequence[Stateful] = ()
    ) -> Result:
        """Call ``work`` and return its result, retrying with more micro-batches if memory runs out.

        ``step.backward`` and :meth:`evaluate` already do this. After an out-of-memory error, the exception and its
        frames are dropped, cached memory is released, torch's global random states and the values recorded in the
        open step are restored, ``micro_batches`` is doubled, and the event ``out_of_memory`` is recorded.

        Args:
            work: the complete computation, including ``zero_grad``. It reads ``micro_batches.count``. Call
                ``step.update`` after it, since an update cannot be repeated. Tensors in the caller's frame are not
                freed between attempts.
            micro_batches: micro-batch count of ``work``; pass it to :meth:`track` to save it in checkpoints.
            undo: other state that ``work`` changes: its generators, running estimates; ``RandomState()`` for the
                global generators of Python and NumPy, whose states are slow to copy. Copied at every call, so keep
                it small.

        Raises:
            torch.OutOfMemoryError, MemoryError, RuntimeError: the last error, with advice attached as a note, once
                ``micro_batches.most`` is reached or ``step.update`` had begun.
        """
        return self._session.retry(work, micro_batches, undo)

    @property
    def micro_batches(self) -> MicroBatches:
        """Number of micro-batches that ``step.backward`` uses; part of every checkpoint."""
        return self._session.tracked.micro_batches

    @property
    def stop_point(self) -> StopPoint:
        """Callable that handles pending signals; call it between the parts of long work, see :class:`StopPoint`."""
        return self._session.stop_point

    @property
    def stop_signal(self) -> int | None:
        """Signal that asked this run to stop after its step, such as SIGTERM; None if there is none."""
        return self._session.stop_point.signal or None

    # Checkpoints

    def save_after_step(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save a checkpoint at the end of this step, ranked by ``metrics``."""
        self._session.checkpoints.after_step(metrics)

    def save(self) -> None:
        """Save a checkpoint now; wait for free space if the disk is full. In a step, use :meth:`save_after_step`."""
        self._session.save()

    @property
    def checkpoints(self) -> Checkpoints:
        """The run's checkpoints on disk."""
        return self._session.checkpoints.checkpoints

    # The record

    @property
    def step_index(self) -> int:
        """Index of the latest step; -1 before the first."""
        return self._session.log.step_index

    def seconds(self) -> float:
        """Return the training time so far in seconds, over all segments."""
        return self._session.log.seconds

    @property
    def findings(self) -> Sequence[Finding]:
        """Findings that the rules have reported so far."""
        return self._session.record.findings

    @property
    def exit_code(self) -> int:
        """Process exit code: 1 if a rule reported an error, otherwise 0. Warnings do not count, see ``findings``."""
        return self._session.exit_code

    @property
    def growth_cap(self) -> float | None:
        """Upper limit for the size of the model, set by a memory rule; None while no rule has set one."""
        return self._session.growth_cap

    def record(self, values: Mapping[str, float], *, axis: Axis = "step", position: int | None = None) -> None:
        """Record values outside of a step, e.g. the results of an evaluation after the loop.

        Args:
            values: metric name to number.
            axis: axis that ``position`` refers to.
            position: coordinate of the values on that axis; defaults to the latest step.
        """
        self._session.note_evaluation()
        self._session.log.record(values, axis=axis, position=position)

    def event(self, kind: str, **facts: Any) -> None:
        """Record an event at the current step."""
        self._session.log.event(kind, **facts)

    def span(self, name: str) -> AbstractContextManager[None]:
        """Record the time of a block in ms as ``Time/<name>``; for code that has no :class:`Step` at hand."""
        return self._session.span(name)

    def image(self, name: str, pixels: NDArray[np.uint8], position: int) -> None:
        """Send an image (``[height, width, 3]`` uint8) to every sink that supports images."""
        self._session.record.image(name, pixels, position)

    def histogram(
        self,
        name: str,
        values: Float[Tensor, "..."] | NDArray[Any],  # noqa: UP037  a shape, not the name of a type
        position: int,
    ) -> None:
        """Send a histogram of values to every sink that supports it. Synchronizes with the device: use it sparingly."""
        self._session.record.histogram(name, values, position)

    def flush(self) -> None:
        """Wait until the journal, rules and sinks have processed every row recorded so far."""
        self._session.record.flush()

    def __repr__(self) -> str:
        """Return the folder, and the latest step of a run that is open."""
        opened = self._opened
        at = "not entered" if opened is None else f"step {opened.log.step_index}"
        return f"<Run {str(self.folder)!r}: {at}>"

    def _repr_html_(self) -> str:
        """Return the run as the output of a notebook's cell: state, losses and findings, as recorded in its folder."""
        from fieldwatch.monitor.notebook import run_card  # noqa: PLC0415  at first use
        from fieldwatch.monitor.watch import Watcher  # noqa: PLC0415  at first use

        with Watcher(self.folder) as watcher:
            return run_card(watcher.refresh())

    @property
    def _session(self) -> Session:
        if self._opened is None:
            raise RuntimeError("the run has not been entered: write `with Run(...) as run:`, or call run.start()")
        return self._opened

    def _evaluated(
        self,
        name: str,
        function: Callable[[], Result],
        micro_batches: MicroBatches | None,
        failures: tuple[type[Exception], ...],
        undo: Sequence[Stateful],
    ) -> Result | None:
        with self._session.evaluation(name, failures, undo):
            return function() if micro_batches is None else self.retry(function, micro_batches)
        # Reached only if the block suppressed a failure.
        return None
