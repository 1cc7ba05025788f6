"""Run: the order of things in a training run, and nothing else."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fieldwatch.checkpoint import Autosave, Checkpoints, Every, OneWriter, Retention
from fieldwatch.guard import Rollback
from fieldwatch.health import GENERAL, Rule
from fieldwatch.measure import Clock, Owner, Phase, Watched, Window
from fieldwatch.record import Catalogue, Layout, plain
from fieldwatch.run.aside import Asides
from fieldwatch.run.attempts import Attempts
from fieldwatch.run.crash import leave_crash
from fieldwatch.run.declared import Declared
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.profile import Profile
from fieldwatch.run.ranks import Ranks, Will
from fieldwatch.run.recorded import Recorded
from fieldwatch.run.recording import Recording
from fieldwatch.run.rollback import Returning
from fieldwatch.run.saves import about_with, stored_mirror
from fieldwatch.run.shared_saving import saving_of
from fieldwatch.run.sinks import Sinks, default_sinks, own_log
from fieldwatch.run.start import Interrupted, Resume, check_folder, end_state, note_end
from fieldwatch.run.step import Step
from fieldwatch.run.stopping import StopPoint, Waited
from fieldwatch.run.stored_random_state import StoredRandomState
from fieldwatch.run.watchdog import AFTER, HangTimeout, Watchdog

Item = TypeVar("Item")


class Run(Recorded):
    """A training run in a folder: recorded, guarded, saved, resumed. Use it with ``with``, around any loop.

    Args:
        folder: where everything goes; made if missing. A folder that holds a run is continued.
        config: the resolved configuration (dataclass or mapping); a resumed run must have the same.
        preset: the configuration it was derived from, so that the difference is recorded.
        rules: the health rules.
        sinks: where rows go besides the journal, or what makes them once the folder is taken.
        checkpoint_every: steps between checkpoints; ``auto`` for what ``autosave`` allows, None for none before the end
        autosave: how long training may wait for checkpoints, and how much work may be lost, see :class:`Autosave`.
        mirror: a URL that fsspec knows: every checkpoint is copied there, and a run without any is restored from there.
        keep: which checkpoints stay.
        max_refusals: refused updates in a row after which the run stops with :class:`Diverged`.
        rollback: when it goes back to its last good checkpoint instead, and skips the bad updates; None never does.
        detail_every: cadence of the largest gradient, parameter statistics and update sizes, in steps.
        resume: ``auto`` continues a run found in the folder, ``must`` needs one, ``never`` refuses one.
        windows: per loss term, when it is meant to be active; a term that is silent then is a finding.
        phases: named stretches of training.
        metrics: the declared metrics; with them, a name that is not declared is an error.
        layout: how TensorBoard's custom-scalar tab is arranged; None derives one from the metrics.
        profile: when to account for every byte of tensor memory; None records what is allocated, and no more.
        about: more facts for ``run.json``.
        hang_timeout: seconds without a sign of life after which all stacks are written, see :class:`Watchdog`.

    Attributes:
        ranks: the processes that train together, see :class:`Ranks`; one without torchrun.
        stop_point: call it between the parts of long work, so that a signal is noticed there, see :class:`StopPoint`.
        attempts: does a step again, in smaller parts, when memory runs out, see :class:`Attempts`.
        aside: looks at what is trained without disturbing or ending the training, see :class:`Asides`.

    Raises:
        ConfigMismatch: the folder holds a run with another config (the message lists the difference).
        FileExistsError, FileNotFoundError: ``resume`` does not fit what the folder holds.
    """

    def __init__(  # noqa: PLR0913  each is one decision about the run
        self,
        folder: str | Path,
        *,
        config: Any = None,
        preset: Any = None,
        rules: Sequence[Rule] = GENERAL,
        sinks: Sinks = default_sinks,
        checkpoint_every: Every = "auto",
        autosave: Autosave | None = None,
        mirror: str = "",
        keep: Retention | None = None,
        max_refusals: int = 10,
        rollback: Rollback | None = None,
        detail_every: int = 50,
        resume: Resume = "auto",
        windows: Mapping[str, Window] | None = None,
        phases: Sequence[Phase] = (),
        metrics: Catalogue | None = None,
        layout: Layout | None = None,
        profile: Profile | None = None,
        about: Mapping[str, Any] | None = None,
        hang_timeout: HangTimeout = "auto",
    ) -> None:
        super().__init__()
        self.ranks = Ranks.of_process()
        self.folder, self.config = self.ranks.folder(folder), plain(config)
        self._resuming = check_folder(Path(folder), self.config, resume)
        mirror = mirror or stored_mirror(Path(folder))
        about = self.ranks.about(about_with(about, mirror))
        self._declared = Declared.of(self.config, preset, windows or {}, phases, about, metrics=metrics, layout=layout)
        rules, self._sinks = (rules, sinks) if self.ranks.is_first else ((), own_log)
        self._record = partial(Recording, self.folder, rules=rules, metrics=metrics, max_refusals=max_refusals)
        self.detail_every, self._will = detail_every, Will()
        self._lock, self._random = OneWriter(self.folder), StoredRandomState()
        self.watchdog = Watchdog(self.folder, hang_timeout)
        saving = {"every": checkpoint_every, "keep": keep, "autosave": autosave, "mirror": mirror}
        self._saving = saving_of(self.ranks, Path(folder), **saving)
        self._resume = partial(self._saving.resume, config=self.config, found=self._resuming, may=resume != "never")
        self.stop_point = StopPoint(self._finish, self.event, self._saving, self.watchdog.alive)
        self.watched, self.clock, self.returning = Watched(), Clock(), Returning(rollback, self, self._saving)
        self.memory = RunMemory(self.folder, self.watched, self.clock, profile)
        self.start, self.kept = 0, dict[str, Any]()
        self.attempts, self.aside = Attempts(self, self.open_step), Asides(self)
        self.mark: Mapping[str, Any] | None = None

    def watch(self, **groups: Owner) -> None:
        """Name the parameter groups whose gradients and sizes are recorded; disjoint, or ValueError."""
        self.watched.add(**groups)

    def hold(self, **data: Any) -> None:
        """Name what else lies in memory (images, neighbours, caches), so that the memory profile knows whose it is."""
        self.memory.hold(**data)

    def keep(self, **items: Any) -> None:
        """Say what a checkpoint holds; when resuming, everything is restored here. Call it once, before the loop.

        Args:
            **items: objects with ``state_dict``/``load_state_dict``, tensors, or mappings of tensors.

        Raises:
            ValueError: it was called before.
            CheckpointError: no checkpoint of the run could be restored.
        """
        self._saving.keep({**items, "random_state": self._random})
        self.kept = items
        restored = self._resume(self.recording)
        if restored is not None:
            self.start, self.mark = restored.step, restored.note

    def steps(self, total: int, *, first: int = 0) -> Iterator[Step]:
        """Give out the steps from ``first`` (or the resumed one) to ``total - 1``.

        What belongs to the end of a step happens when the loop asks for the next one: a ``continue`` cannot skip it.

        Raises:
            Diverged: too many updates in a row were refused.
            Interrupted: a signal came; the step was finished and saved (or given up, at a stop point).
            WriterFailed: the record could not be written.
        """
        self._begin(first, total)
        self.stop_point.between_steps()
        while self.step_index + 1 < total:
            self.step_index += 1
            step = Step(self, self.step_index)
            self._open_step(step)
            self.ranks.at_step(step.index)
            self.watchdog.alive("step", step.index)
            yield step
            self.returning.after_step(self._end_step, partial(self._rewind, first, total), total=total)
        self.watchdog.alive(AFTER)
        self._finish()  # now: what is made of the result may be interrupted, and made again

    def batches(self, source: Iterable[Item]) -> Iterator[Item]:
        """Iterate over ``source`` again and again, measuring the wait for each batch as ``Time/data``."""
        return self.clock.timed(Waited(source, self.stop_point))

    def save_after_step(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save a checkpoint at the end of this step, ranked by ``metrics``."""
        self._saving.after_step(metrics)

    def save(self) -> None:
        """Save a checkpoint now. Between steps only: inside one, use :meth:`save_after_step`."""
        self._saving.save(self.step_index + 1, self.recording, self.seconds())

    @property
    def checkpoints(self) -> Checkpoints:
        """The run's checkpoints on disk."""
        return self._saving.checkpoints

    @property
    def growth_cap(self) -> float | None:
        """The size that the model must not outgrow, as a memory rule asked; None while none has asked."""
        return self.recording.growth_cap if self.ranks.alone else self._will.growth_cap

    def __enter__(self) -> Self:
        """Take the folder for this process, start the record, and listen for signals."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.__enter__()
        self.ranks.join(self.folder)
        self.recording = self._record(sinks=self._sinks(self.folder) if callable(self._sinks) else self._sinks)
        self.watchdog.open()
        self.stop_point.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Save and finish, or leave a crash folder behind; the exception goes on its way."""
        self.ranks.leave(error)
        try:
            with self.watchdog.ending(error):
                self._close_step()
                if error is None:
                    self.recording.finish()
                    self._finish()
                elif not isinstance(error, Interrupted):
                    leave_crash(error, self.step_index, self.recording, self.memory, self._saving.how_to_resume())
                note_end(self.folder, end_state(error))
        finally:
            self._saving.close(self.recording)
            self.memory.close()
            self.recording.close()
            self.stop_point.__exit__(kind, error, at)
            self._lock.__exit__(kind, error, at)

    def _begin(self, first: int, total: int) -> None:
        self._rewind(first, total)
        self._saving.begin(self.start, self.recording)
        self.watchdog.begin(self.start, self.recording)

    def _rewind(self, first: int, total: int) -> None:
        self.start = max(self.start, first)
        self.step_index = self.start - 1
        self._count_from(self.recording.begin(self.start, self.mark, self.returning.options))
        self._declared.begin(self.folder, self.recording, self.start, total)
        self.memory.start(self.start, self.recording.asked)
        self._random.apply()

    def _end_step(self) -> None:
        self._close_step()
        recording, due = self.recording, self._saving.due(self.step_index + 1, self.recording)
        will = Will(self.stop_point.signal, due, recording.trouble is not None, recording.growth_cap)
        self._will = will = self.ranks.agree(will)
        if will.diverged:
            self._saving.meet(recording)
            recording.raise_divergence(self._saving.how_to_resume)
        self.stop_point.obey(will.signal)
        if will.save:
            self.watchdog.alive("checkpoint")
            self._saving.save_behind(self.step_index + 1, self.recording, self.seconds())

    def _finish(self) -> None:
        self._saving.finish(self.step_index + 1, self.recording, self.seconds())
