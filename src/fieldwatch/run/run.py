"""Run: a training run in a folder, around somebody's own loop."""

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
from fieldwatch.run.external_targets import resolve_targets
from fieldwatch.run.options import FAILURES, Declared, Guard, Outputs, Saving
from fieldwatch.run.plan import RunPlan
from fieldwatch.run.profile import Profile
from fieldwatch.run.ranks import Ranks
from fieldwatch.run.start import check_folder

if TYPE_CHECKING:
    from fieldwatch.checkpoint import Checkpoints, Stateful
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
    """A training run in a folder: recorded, guarded, saved, resumed. Use it with ``with``, around any loop.

    Args:
        folder: where everything is written; created if missing. A folder that holds a run can be resumed.
        config: the resolved configuration (dataclass or mapping); a resumed run must have the same.
        saving: when checkpoints are written, and which stay.
        guard: when the run stops, goes back, or is reported as hung.
        declared: what the run says about itself.
        outputs: health rules and sinks.
        profile: when to account for every byte of tensor memory; None records the amount that is allocated only.

    Attributes:
        folder: where this process writes: the run folder, or this rank's folder in it.
        config: the configuration, as plain values.
        ranks: the processes that train together, see :class:`Ranks`; one without torchrun.

    Raises:
        ConfigMismatch: the folder holds a run with another config (the message lists the difference).
        FileExistsError, FileNotFoundError: ``saving.resume`` does not fit what the folder holds.
        NotARun: the folder's run.json is damaged, and no checkpoint says what it was.

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
        saving = saving or Saving()
        declared = declared or Declared()
        outputs = outputs or Outputs()
        root = Path(folder)
        self.ranks = Ranks.of_process()
        self.folder = self.ranks.folder(root)
        self.config: Mapping[str, Any] = plain_values(config)
        # A folder that cannot be used is refused here, before anything is taken or written.
        resuming = check_folder(root, self.config, saving.resume)
        targets = resolve_targets(root, saving.mirror, outputs.sink_names, warn=self.ranks.is_first)
        about = self.ranks.about(targets.add_to_about(declared.about))
        self._plan = RunPlan(
            folder=self.folder,
            root=root,
            config=self.config,
            resuming=resuming,
            ranks=self.ranks,
            saving=saving,
            mirror=targets.mirror,
            guard=guard or Guard(),
            description=RunDescription.of(self.config, declared, about),
            outputs=outputs,
            profile=profile,
        )
        self._opened: Session | None = None

    # Enter and leave

    def __enter__(self) -> Self:
        """Take the folder for this process, start the record, and listen for signals.

        If one of these fails, what was taken is given back, and the black box says why.
        """
        from fieldwatch.run.session import Session  # noqa: PLC0415  at first use

        self._opened = Session.open(self._plan)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Save and finish, or leave a crash folder behind; the exception goes on its way."""
        self._session.close(error)

    def start(self) -> Self:
        """Enter the run without a ``with`` block, for a loop that cannot be indented; :meth:`finish` leaves it."""
        return self.__enter__()

    def finish(self, error: BaseException | None = None) -> None:
        """Leave a run that was entered by :meth:`start`.

        Args:
            error: what ended the training; None if it is finished.
        """
        self._session.close(error)

    # What is trained, and where it continues

    def track(
        self, *, groups: Mapping[str, Owner] | None = None, data: Mapping[str, Any] | None = None, **items: Any
    ) -> None:
        """Name the objects of the training. It restores nothing. It may be called several times before ``resume``.

        Every item is part of each checkpoint. A module is also watched: its parameters are the group of that name, and
        gradient norms, sizes and memory are recorded under it, unless ``groups`` has some of its parameters already.

        Args:
            groups: parameter groups, where they are not modules or are only parts of them: a module, a mapping or a
                sequence of tensors by name. Groups do not overlap, and are not saved.
            data: what else occupies memory (images, caches), so that the memory profile knows its owner; not saved.
            **items: objects with ``state_dict`` and ``load_state_dict`` (modules, optimizers, schedulers, orders),
                tensors, or mappings of tensors. A :class:`MicroBatches` named ``micro_batches`` takes the place of the
                run's own.

        Raises:
            InputError: a name is taken, or items come after :meth:`resume` or the first step.
            ValueError: a group has no parameter, or two groups share one.
        """
        self._session.track(items, groups, data)

    def resume(self, *, renamed: Mapping[str, str] | None = None) -> int | None:
        """Restore the last good checkpoint of the folder, or of its mirror, into the tracked objects.

        Random states are restored when the loop begins, so that objects made in between cannot use them up.

        Args:
            renamed: for checkpoints of an earlier version of a program: names of items then, and their names now.

        Returns:
            The step that the run resumes from; None where there is no checkpoint.

        Raises:
            CheckpointError: there are checkpoints, and none could be restored.
            InputError: it was called before, or the loop has begun.
        """
        return self._session.resume(renamed or {})

    # The loop

    def steps(self, total: int, *, first: int = 0) -> Iterator[Step]:
        """Yield the steps from ``first`` (or the resumed one) to ``total - 1``.

        The end of a step is processed when the loop asks for the next one: a ``continue`` cannot skip it.

        Raises:
            NoWayBackError: the folder holds checkpoints, and ``resume`` was not called.
            Diverged: too many updates in a row were refused.
            Interrupted: a signal came; the step was finished and saved (or given up, at a stop point).
            WriterFailed: the record could not be written.
        """
        session = self._session
        session.begin(total, first=first)
        while not session.ended:
            # The generator resumes when the loop asks for its next step: only then is this one over.
            yield session.begin_step()
            session.end_step()
        session.end_loop()

    def begin_step(self, total: int | None = None) -> Step:
        """Begin the next step, in a loop that does not iterate over :meth:`steps`; :meth:`end_step` ends it.

        Args:
            total: planned steps, for progress and forecasts; read at the first call. None if it is not known.

        Raises:
            NoWayBackError: the folder holds checkpoints, and ``resume`` was not called.
            RuntimeError: the last step was not ended.
        """
        session = self._session
        if session.open_step is not None:
            raise RuntimeError(f"step {session.open_step.index} has not ended: call run.end_step() before")
        if not session.began:
            session.begin(total)
        return session.begin_step()

    def end_step(self) -> None:
        """End the step that :meth:`begin_step` gave out: it is recorded, saved if that is due, and judged.

        After a rollback, the next ``begin_step`` returns an earlier step: count by ``step.index``.

        Raises:
            Diverged: too many updates in a row were refused.
            Interrupted: a signal came; the step was finished and saved.
            RuntimeError: no step has begun.
        """
        if self._session.open_step is None:
            raise RuntimeError("no step has begun: call run.begin_step() before run.end_step()")
        self._session.end_step()

    def batches(self, source: Iterable[Item]) -> Iterator[Item]:
        """Iterate over ``source`` again and again, measuring the wait for each batch as ``Time/data``."""
        return self._session.batches(source)

    # Evaluation, and work that may run out of memory

    def evaluation(
        self, name: str, *, failures: tuple[type[Exception], ...] = FAILURES, undo: Sequence[Stateful] = ()
    ) -> EvaluationBlock:
        """Evaluate in a ``with`` block that leaves the training as it was, bit for bit, and cannot end it.

        Inside the block there is no autograd. After it, all global random states, the modes (train, eval) and buffers
        of every tracked module, and all gradients are what they were. If the block fails, its traceback is written to
        ``validation_failures/``, the event ``validation_failed`` is recorded (a warning of the rule
        ``ValidationFailed``), training goes on, and ``failed`` of the block's object is true.

        Parameters are not copied, that would take the model's memory again: an evaluation that writes to them (one
        that swaps in averaged weights) names their module in ``undo``.

        Args:
            name: for the event and the finding.
            failures: the errors that training survives; out of memory always is one. A signal, a record that cannot
                be written, and everything that is not named here go on their way.
            undo: what else is restored: own generators, modules that are written to.

        Raises:
            InputError: this is not the first rank. A ``with`` block cannot be left out on the others: call
                :meth:`evaluate` on all ranks instead.
        """
        # Another rank would have to skip the body of its `with` block, which Python does not allow.
        if not self.ranks.is_first:
            raise InputError(
                f"run.evaluation({name!r}) is for the first of {self.ranks.world} ranks, got rank {self.ranks.rank}: "
                f"write the block as a function and call run.evaluate({name!r}, function) on all of them"
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
        """Call a function as an :meth:`evaluation`, on the first rank only, and again if it runs out of memory.

        Args:
            name: for the event and the finding.
            function: the whole evaluation; it must not let ranks meet.
            micro_batches: doubled before the function is called again after an out-of-memory error; it has to read
                their ``count``. None does not call it again.
            failures: as for :meth:`evaluation`.
            undo: as for :meth:`evaluation`.

        Returns:
            What the function returned; None where it failed, and on the other ranks.
        """
        return self.ranks.only_first(
            partial(self._evaluated, name, function, micro_batches, failures, undo), f"the evaluation {name!r}"
        )

    def retry(
        self, work: Callable[[], Result], micro_batches: MicroBatches, *, undo: Sequence[Stateful] = ()
    ) -> Result:
        """Return what ``work`` returns, and repeat it in more micro-batches while it runs out of memory.

        ``step.backward`` and :meth:`evaluate` do this by themselves. After an out-of-memory error the error and its
        frames are dropped, cached memory is released, torch's global random states and what was recorded in the open
        step are restored, ``micro_batches`` doubles, and the event ``out_of_memory`` is recorded.

        Args:
            work: all of it, ``zero_grad`` included; ``step.update`` comes after it, since it cannot be repeated. It
                reads ``micro_batches.count``. Tensors of the caller's own frame are not freed between two attempts.
            micro_batches: of the work; track them.
            undo: what else the work changes: own generators, running estimates; ``RandomState()`` for the global
                generators of Python and numpy, whose states take long to copy. Copied at every call: small things.

        Raises:
            torch.OutOfMemoryError, MemoryError, RuntimeError: the last one, with advice as its note, when there are
                ``micro_batches.most`` already, or when ``step.update`` had begun.
        """
        return self._session.retry(work, micro_batches, undo)

    @property
    def micro_batches(self) -> MicroBatches:
        """The number of micro-batches of ``step.backward``; part of every checkpoint."""
        return self._session.tracked.micro_batches

    @property
    def stop_point(self) -> StopPoint:
        """Call it between the parts of long work, so that a signal is noticed there, see :class:`StopPoint`."""
        return self._session.stop_point

    # Checkpoints

    def save_after_step(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save a checkpoint at the end of this step, ranked by ``metrics``."""
        self._session.checkpoints.after_step(metrics)

    def save(self) -> None:
        """Save a checkpoint now, waiting for room on a full disk. Inside a step, use :meth:`save_after_step`."""
        self._session.save()

    @property
    def checkpoints(self) -> Checkpoints:
        """The run's checkpoints on disk."""
        return self._session.checkpoints.checkpoints

    # The record

    @property
    def step_index(self) -> int:
        """The step that was given out last; -1 before the first."""
        return self._session.log.step_index

    def seconds(self) -> float:
        """Return the training time so far, over all segments."""
        return self._session.log.seconds

    @property
    def findings(self) -> Sequence[Finding]:
        """The findings of the rules so far."""
        return self._session.record.findings

    @property
    def exit_code(self) -> int:
        """0 when no rule found an error, else 1. Warnings do not count; ``findings`` has them."""
        return self._session.exit_code

    @property
    def growth_cap(self) -> float | None:
        """The size that the model must not outgrow, as a memory rule asked; None while none has asked."""
        return self._session.growth_cap

    def record(self, values: Mapping[str, float], *, axis: Axis = "step", position: int | None = None) -> None:
        """Record values outside of a step, e.g. of an evaluation after the loop.

        Args:
            values: metric name to number.
            axis: what ``position`` counts.
            position: where they stand on that axis; the last step if left out.
        """
        self._session.log.record(values, axis=axis, position=position)

    def event(self, kind: str, **facts: Any) -> None:
        """Record an event at the current step."""
        self._session.log.event(kind, **facts)

    def span(self, name: str) -> AbstractContextManager[None]:
        """Measure the time of a block as ``Time/<name>`` in milliseconds; in code that has no step at hand."""
        return self._session.span(name)

    def image(self, name: str, pixels: NDArray[np.uint8], position: int) -> None:
        """Show an image (``[height, width, 3]`` uint8) in every sink that can."""
        self._session.record.image(name, pixels, position)

    def histogram(self, name: str, values: Float[Tensor, ...] | NDArray[Any], position: int) -> None:
        """Show the distribution of some values in every sink that can. Reads the values: not for every step."""
        self._session.record.histogram(name, values, position)

    def flush(self) -> None:
        """Wait until every row so far has been processed by journal, rules and sinks."""
        self._session.record.flush()

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
        return None
