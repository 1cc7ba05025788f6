"""`TensorProfile`: a periodic account of all tensor memory, in TensorBoard, a text log and a JSON Lines file."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakSet

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fieldwatch.measure import (
    AllocatorCounters,
    Clock,
    Fragmentation,
    Listeners,
    ParameterGroups,
    Peaks,
    SpanLabels,
    SpanListener,
    fragmentation_of,
)
from fieldwatch.measure.census import Census, SavedTensors, take_census
from fieldwatch.record.disk import WriteBacklog, try_optional
from fieldwatch.record.memory import MEMORY_LOG, MemoryLog, TensorLog
from fieldwatch.run.memory_account import MemoryAccount
from fieldwatch.run.profile import Profile


@dataclass(frozen=True, kw_only=True)
class _Measurement:
    """Census and fragmentation of the same moment, so that the numbers of an account are consistent."""

    name: str
    census: Census
    fragmentation: Fragmentation


class TensorProfile:
    """Attributes the tensor memory of profiled steps to its owners; other steps have no cost.

    In a profiled step, the tensors saved for the backward pass and the peak of every span are tracked. The account is
    taken right before the first optimizer step, when gradients exist, or at the end of a step without an update.

    Args:
        folder: folder for ``memory.jsonl`` and ``profiles/tensor_profile_<time>.log``.
        profile: which steps are profiled, and the names of the tags.
        watched: parameter groups, and the optimizers that step them.
        clock: clock whose spans name peaks and saved tensors.
        counters: allocator counters of the device, including its peak counter.
        data: other large objects in memory, by name; read again for every account.
        waiting: backlog for writes that a full disk rejects; None raises the error instead.
    """

    def __init__(  # noqa: PLR0913  the parts of a run that memory concerns
        self,
        folder: Path,
        profile: Profile,
        *,
        watched: ParameterGroups,
        clock: Clock,
        counters: AllocatorCounters,
        data: Mapping[str, Any],
        waiting: WriteBacklog | None = None,
    ) -> None:
        self.profile = profile
        self._waiting = waiting
        self._watched = watched
        self._clock = clock
        self._counters = counters
        self._data = data
        self._saved = SavedTensors(counters.device)
        self._peaks = Peaks(counters)
        self._folder = folder
        self._files: tuple[TensorLog, MemoryLog] | None = None
        self._stepping: WeakSet[Optimizer] = WeakSet()
        self._step: int | None = None
        self._before: Census | None = None
        self._measured: _Measurement | None = None
        self._outer_listener: SpanListener | None = None
        self._hook: Any = None

    @staticmethod
    def rewind(folder: Path, step: int) -> None:
        """Invalidate the accounts of earlier segments from ``step`` on."""
        # Do not create the file in a run without a profile.
        if (folder / MEMORY_LOG).exists():
            with MemoryLog(folder) as lines:
                lines.segment(step)

    def begin(self, step: int) -> None:
        """Begin a step; has no effect unless the step is profiled."""
        if not self.profile.due(step):
            return
        self._step = step
        self._measured = None
        self._before = self._census(None)
        if self.profile.activations:
            # Storages that already have an owner are not counted again if autograd saves a view of them.
            self._saved.push(self._before.addresses())
        self._outer_listener = self._clock.listener
        outer = () if self._outer_listener is None else (self._outer_listener,)
        # Keep the existing listener of the spans; `_detach` restores it.
        self._clock.listener = Listeners(*outer, self._peaks, SpanLabels(self._label, self._saved.label))
        self._hook = register_optimizer_step_pre_hook(self._at_update)

    def end(self) -> dict[str, float]:
        """End the step: write its account, and return it as tags; empty if the step is not profiled."""
        if self._step is None:
            return {}
        step = self._step
        self._detach()
        measured = self._measured or self._measure("end")
        account = MemoryAccount(
            step=step,
            time=datetime.now().astimezone(),
            moment=measured.name,
            census=measured.census,
            saved_at_peak=self._saved.peak_by_label() if self.profile.activations and not self._saved.hidden else None,
            peaks=self._peaks.take(),
            fragmentation=measured.fragmentation,
        )
        self._before = self._measured = None
        try_optional(self._waiting, lambda: self._write(account))
        return account.tags(self.profile)

    def close(self) -> None:
        """Close both files; discard a step that is still open."""
        self._detach()
        for file in self._files or ():
            file.close()

    def _write(self, account: MemoryAccount) -> None:
        # The files are opened at the first account, so that no empty files are left.
        if self._files is None:
            self._files = self._open(account.time)
        log, lines = self._files
        log.append(account.snapshot(self.profile))
        lines.append(account.line(self.profile))

    def _open(self, now: datetime) -> tuple[TensorLog, MemoryLog]:
        files = TensorLog.in_folder(self._folder, now), MemoryLog(self._folder)
        if self._waiting is not None:
            for file in files:
                file.defer_to(self._waiting)
        return files

    def _detach(self) -> None:
        if self._step is not None:
            self._step = None
            self._hook.remove()
            self._saved.pop()
            self._clock.listener = self._outer_listener

    def _label(self, name: str) -> None:
        self._saved.label = name

    def _at_update(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:  # noqa: ARG002  torch's hook
        # A loop may call optimizer.step() itself, without step.update().
        self._stepping.add(optimizer)
        # With several optimizers, measure before the first: the loop may clear gradients in between.
        if self._measured is None:
            self._measured = self._measure("update")

    def _measure(self, name: str) -> _Measurement:
        census = self._census(self._saved)
        # Use the totals of the census, so that all parts add up to them.
        known = (census.allocated, census.reserved)
        parts = fragmentation_of(self._counters.device, known=known)
        return _Measurement(name=name, census=census, fragmentation=parts)

    def _census(self, saved: SavedTensors | None) -> Census:
        return take_census(
            self._watched,
            optimizers=tuple({*self._watched.optimizers(), *self._stepping}),
            data=self._data,
            device=self._counters.device,
            saved=saved,
            before=self._before if saved is not None else None,
        )
