"""Run: the order of things in a training run, and nothing else."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fieldwatch.checkpoint import Checkpoints, OneWriter, Retention, StopRequest
from fieldwatch.guard import Diverged
from fieldwatch.health import GENERAL, Finding, Rule, worst
from fieldwatch.measure import Clock, Heading, Owner, Phase, Watched, Window
from fieldwatch.record import Axis, Catalogue, Layout, plain
from fieldwatch.run.crash import leave_crash
from fieldwatch.run.declared import Declared
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.profile import Profile
from fieldwatch.run.recording import Recording
from fieldwatch.run.saving import Saving
from fieldwatch.run.sinks import Sinks, default_sinks
from fieldwatch.run.start import Interrupted, Resume, check_folder, end_state, note_end
from fieldwatch.run.step import Step
from fieldwatch.run.stored_random_state import StoredRandomState

Item = TypeVar("Item")


class Run:
    """A training run in a folder: recorded, guarded, saved, resumed. Use it with ``with``, around any loop.

    Args:
        folder: where everything goes; made if missing. A folder that holds a run is continued.
        config: the resolved configuration (dataclass or mapping); a resumed run must have the same.
        preset: the configuration it was derived from, so that the difference is recorded.
        rules: the health rules.
        sinks: where rows go besides the journal, or what makes them once the folder is taken.
        checkpoint_every: steps between checkpoints; None saves only at the end and on signals.
        keep: which checkpoints stay.
        max_refusals: refused updates in a row after which the run stops with :class:`Diverged`.
        detail_every: cadence of the largest gradient, parameter statistics and update sizes, in steps.
        resume: ``auto`` continues a run found in the folder, ``must`` needs one, ``never`` refuses one.
        windows: per loss term, when it is meant to be active; a term that is silent then is a finding.
        phases: named stretches of training.
        metrics: the declared metrics; with them, a name that is not declared is an error.
        layout: how TensorBoard's custom-scalar tab is arranged; None derives one from the metrics.
        profile: when to account for every byte of tensor memory; None records what is allocated, and no more.
        about: more facts for ``run.json``.

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
        checkpoint_every: int | None = 1000,
        keep: Retention | None = None,
        max_refusals: int = 10,
        detail_every: int = 50,
        resume: Resume = "auto",
        windows: Mapping[str, Window] | None = None,
        phases: Sequence[Phase] = (),
        metrics: Catalogue | None = None,
        layout: Layout | None = None,
        profile: Profile | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.config = Path(folder), plain(config)
        self._resuming = check_folder(self.folder, self.config, resume)
        self._declared = Declared.of(
            self.config, preset, windows or {}, phases, about or {}, metrics=metrics, layout=layout
        )
        self._record = partial(Recording, self.folder, rules=rules, metrics=metrics, max_refusals=max_refusals)
        self._sinks, self.detail_every = sinks, detail_every
        self._lock, self._stop, self._random = OneWriter(self.folder), StopRequest(), StoredRandomState()
        self._saving = Saving(self.folder, every=checkpoint_every, keep=keep)
        self.watched, self.clock = Watched(), Clock()
        self.memory = RunMemory(self.folder, self.watched, self.clock, profile)
        self.start, self.step_index = 0, -1
        self._mark: Mapping[str, Any] | None = None
        self._open: tuple[Step, float] | None = None

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
        restored = self._saving.restore(self.recording) if self._resuming else None
        if restored is not None:
            self.start, self._mark = restored.step, restored.note

    def steps(self, total: int, *, first: int = 0) -> Iterator[Step]:
        """Give out the steps from ``first`` (or the resumed one) to ``total - 1``.

        What belongs to the end of a step happens when the loop asks for the next one: a ``continue`` cannot skip it.

        Raises:
            Diverged: too many updates in a row were refused.
            Interrupted: a signal came; the step was finished and saved.
            WriterFailed: the record could not be written.
        """
        self._begin(first, total)
        self.step_index = self.start - 1
        while self.step_index + 1 < total:
            self.step_index += 1
            step = Step(self, self.step_index)
            self._open = (step, time.perf_counter())
            self.memory.begin(step.index)
            yield step
            self._end_step()

    def batches(self, source: Iterable[Item]) -> Iterator[Item]:
        """Iterate over ``source`` again and again, measuring the wait for each batch as ``Time/data``."""
        return self.clock.timed(source)

    def record(self, values: Mapping[str, float], *, axis: Axis = "step", position: int | None = None) -> None:
        """Record values outside a step, e.g. of an evaluation after the loop.

        Args:
            values: metric name to number.
            axis: what ``position`` counts.
            position: where they stand on that axis; the last step if left out.
        """
        step = max(self.step_index, 0)
        self.recording.write(Heading(axis, step, step if position is None else position, self.seconds()), {}, values)

    def event(self, kind: str, **facts: Any) -> None:
        """Record that something happened at the current step."""
        self.recording.event(kind, max(self.step_index, 0), seconds=self.seconds(), **facts)

    def save_after_step(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save a checkpoint at the end of this step, ranked by ``metrics``."""
        self._saving.after_step(metrics)

    def save(self) -> None:
        """Save a checkpoint now. Between steps only: inside one, use :meth:`save_after_step`."""
        self._saving.save(self.step_index + 1, self.recording, self.seconds())

    def seconds(self) -> float:
        """Training time so far, over all segments."""
        return self._seconds_before + time.monotonic() - self._began

    @property
    def checkpoints(self) -> Checkpoints:
        """The run's checkpoints on disk."""
        return self._saving.checkpoints

    @property
    def growth_cap(self) -> float | None:
        """The size that the model must not outgrow, as a memory rule asked; None while none has asked."""
        return self.recording.growth_cap

    @property
    def findings(self) -> Sequence[Finding]:
        """What the rules found so far."""
        return self.recording.findings

    @property
    def exit_code(self) -> int:
        """0 when nothing worse than a note was found, else 1."""
        return 0 if worst(self.recording.findings) in (None, "note") else 1

    def __enter__(self) -> Self:
        """Take the folder for this process, start the record, and listen for SIGTERM and SIGINT."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.__enter__()
        self.recording = self._record(sinks=self._sinks(self.folder) if callable(self._sinks) else self._sinks)
        self._began, self._seconds_before = time.monotonic(), 0.0
        self._stop.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Save and finish, or leave a crash folder behind; the exception goes on its way."""
        try:
            self._close_step()
            if error is None:
                self.recording.finish()
                self._saving.finish(self.step_index + 1, self.recording, self.seconds())
            elif not isinstance(error, Interrupted):
                leave_crash(error, self.step_index, self.recording, self.memory, self._saving.how_to_resume())
            note_end(self.folder, end_state(error, diverged=isinstance(error, Diverged)))
        finally:
            self.memory.close()
            self.recording.close()
            self._stop.__exit__(kind, error, at)
            self._lock.__exit__(kind, error, at)

    def _begin(self, first: int, total: int) -> None:
        self._began, self.start = time.monotonic(), max(self.start, first)
        self._seconds_before = self.recording.begin(self.start, self._mark)
        self._declared.begin(self.folder, self.recording, self.start, total)
        self.memory.start(self.start, self.recording.asked)
        self._random.apply()

    def _end_step(self) -> None:
        self._close_step()
        self.recording.raise_divergence(self._saving.how_to_resume)
        if self._stop.requested:
            self.save()
            self.event("interrupted", signal=self._stop.requested)
            raise Interrupted(self._stop.exit_code)
        if self._saving.due(self.step_index + 1, self.recording):
            self._saving.save(self.step_index + 1, self.recording, self.seconds(), only_healthy=True)

    def _close_step(self) -> None:
        if self._open is None:
            return
        (step, began), self._open, closing = self._open, None, time.perf_counter()
        values = step.host_values | self.clock.take() | self.memory.end(step.index)
        values["Time/step"] = (time.perf_counter() - began) * 1e3
        heading = Heading("step", step.index, step.index, self.seconds(), step.samples)
        self.recording.write(heading, step.device_values, values)
        self.clock.add("recording", (time.perf_counter() - closing) * 1e3)  # it stands in the next step's row
