"""`RunMemory`: allocated memory at every step, tensor profile, out-of-memory reports and machine metrics."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fieldwatch.base import InputError, output_path
from fieldwatch.measure import AllocatorCounters, AllocatorHistory, Clock, ParameterGroups
from fieldwatch.measure.census import take_census
from fieldwatch.monitor import MachineSampler
from fieldwatch.record.disk import WriteBacklog, try_optional
from fieldwatch.run.nsight_capture import NsightCapture
from fieldwatch.run.out_of_memory import OutOfMemoryTriage
from fieldwatch.run.profile import MB, Profile
from fieldwatch.run.tensor_profile import TensorProfile

SAMPLE_EVERY = 16
"""Number of steps between two samples of the parameters' size, which changes rarely, and of the host memory, which
needs a system call; rows in between repeat the last sample. The CUDA allocator's counters are read at every step."""
SAMPLE_SECONDS = 0.01
"""Least time between two samples: a loop of fast steps would spend much of it on system calls."""
RESCAN_EVERY = 64
"""Number of steps between two rescans of the owners for new parameters."""
CAPACITY_EVERY = 512
"""Number of steps between two records of the capacity."""
CAPACITY_SECONDS = 1.0
"""Least time between two queries of it from the driver or the operating system, which take up to a millisecond."""

SNAPSHOTS_ON_FINDINGS = 5
"""Maximum number of allocator snapshots kept in addition to the requested ones."""


class RunMemory:
    """Memory measurement of a run.

    Args:
        folder: run folder.
        watched: parameter groups.
        clock: clock whose spans name the peaks.
        profile: when to attribute every byte to its owner; None for never.
        data: other large objects in memory, by name, as owners for the profile; entries may be added later.
    """

    def __init__(
        self, folder: Path, watched: ParameterGroups, clock: Clock, profile: Profile | None, data: dict[str, Any]
    ) -> None:
        self._folder = folder
        self._watched = watched
        self._clock = clock
        self._profile = profile
        self._data = data
        self._instruments: _MemoryInstruments | None = None

    def start(self, step: int, take_request: Callable[[str], bool], waiting: WriteBacklog | None = None) -> None:
        """Begin a segment of training at ``step``; the model has to be on its device.

        Args:
            step: first step of the segment.
            take_request: function that returns whether a rule has requested an action since the last call, and clears
                the request.
            waiting: backlog for writes that a full disk rejects; None raises the error instead.

        Raises:
            ValueError: allocator snapshots are requested for a device that does not support them.
        """
        # After a rollback, the measurements of the previous segment are still open.
        self.close()
        TensorProfile.rewind(self._folder, step)
        self._instruments = _MemoryInstruments(
            self._folder, self._watched, self._clock, self._data, self._profile, take_request, waiting
        )

    def begin(self, step: int) -> None:
        """Begin a step."""
        if self._instruments is not None and self._instruments.act_at_begin:
            self._instruments.begin(step)

    def at_update(self) -> None:
        """Sample the host memory while gradients exist; call it every `SAMPLE_EVERY` steps."""
        # The end of the step alone would miss the peak: gradients and activations are freed by then.
        if self._instruments is not None and self._instruments.may_sample():
            self._instruments.counters.sample()

    def end(self, step: int, values: dict[str, float]) -> None:
        """End a step, and add its memory metrics in MiB to its values."""
        if self._instruments is not None:
            self._instruments.end(step, values)

    def make_room(self, error: BaseException) -> None:
        """If memory ran out, release the reserve, so that the report can allocate."""
        if self._instruments is not None:
            self._instruments.triage.make_room(error)

    def explain(self, error: BaseException, crash_folder: Path, step: int) -> None:
        """If memory ran out, add the diagnosis to the error and to the crash folder."""
        if self._instruments is not None:
            self._instruments.triage.explain(error, crash_folder, step)

    def why(self, text: str) -> str:
        """Return the reason why memory ran out, without a census; empty if it is unknown."""
        return "" if self._instruments is None else self._instruments.triage.why(text)

    def close(self) -> None:
        """Close all files, and stop all measurements."""
        if self._instruments is not None:
            self._instruments.close()


class _MemoryInstruments:
    """Measurement objects that exist only while training runs."""

    def __init__(  # noqa: PLR0913, PLR0917  those of RunMemory and its start()
        self,
        folder: Path,
        watched: ParameterGroups,
        clock: Clock,
        data: dict[str, Any],
        profile: Profile | None,
        take_request: Callable[[str], bool],
        waiting: WriteBacklog | None,
    ) -> None:
        self._folder = folder
        self._watched = watched
        self._take_request = take_request
        self._waiting = waiting
        # Parameters are usually moved to their device after the run is entered, so this is known only now.
        device = device_of(watched)
        self.counters = AllocatorCounters(device)
        self._machine = MachineSampler()
        self._cuda = device.type == "cuda"
        self._last_sample = dict[str, float]()
        self._next_sample = 0.0
        self._capacity: int | None = None
        self._next_capacity = 0.0
        self._history = AllocatorHistory(device)
        self._snapshot_at = profile.snapshot_at if profile is not None else ()
        self._capture = NsightCapture(lambda: take_request("capture"))
        self._tensors: TensorProfile | None = None
        if self._snapshot_at:
            if self._history.refusal:
                raise InputError(f"cannot take snapshots at steps {self._snapshot_at}: {self._history.refusal}")
            self._history.start()
            # Labels the allocations in the snapshot with the spans of the loop.
            clock.listener = self._history
        if profile is not None and profile.interval:
            self._tensors = TensorProfile(
                folder, profile, watched=watched, clock=clock, counters=self.counters, data=data, waiting=waiting
            )
        self.triage = OutOfMemoryTriage(
            folder,
            self.counters,
            self._history,
            lambda: take_census(watched, optimizers=watched.optimizers(), data=data, device=device),
        )

        # On a CPU without profilers, a step begins without any of them.
        self.act_at_begin = self._cuda or self._tensors is not None or self._capture.enabled

    def begin(self, step: int) -> None:
        self._capture.begin(step)
        self.triage.begin()
        if self._tensors is not None:
            self._tensors.begin(step)

    def may_sample(self) -> bool:
        """Return whether the last sample is old enough for another one."""
        return time.monotonic() >= self._next_sample

    def end(self, step: int, values: dict[str, float]) -> None:
        sampled = (step % SAMPLE_EVERY == 0 and self.may_sample()) or not self._last_sample
        if sampled:
            self._next_sample = time.monotonic() + SAMPLE_SECONDS
            self._last_sample = {**self.counters.take(), "Memory/parameters_MB": self._watched.nbytes() / MB}
        values |= self._last_sample
        # CUDA's counters are plain numbers of the allocator: reading them does not synchronize.
        if self._cuda and not sampled:
            values |= self.counters.take()
        if sampled or self._cuda:
            self.triage.steady_bytes = int(values.get("Memory/allocated_MB", 0.0) * MB)
        if self._tensors is not None:
            values |= self._tensors.end()
        # Densification replaces parameters: without a rescan, sizes would be those of the old ones.
        if (step + 1) % RESCAN_EVERY == 0:
            self._watched.refresh()
        if step % CAPACITY_EVERY == 0:
            self._record_capacity(values)
        if self._machine.due():
            values |= self._machine.sample()
        # `take_request` clears the request, so call it last, and only if a snapshot can be written.
        if step in self._snapshot_at or (self._history.recording and self._take_request("snapshot")):
            path = output_path(self._folder, "snapshots", f"memory_step{step}.pickle")
            # Old snapshots are deleted, since findings may request any number of them.
            keep_count = len(self._snapshot_at) + SNAPSHOTS_ON_FINDINGS
            try_optional(self._waiting, lambda: self._history.dump(path, keep=keep_count))
        if self._capture.enabled:
            self._capture.end(step)

    def _record_capacity(self, values: dict[str, float]) -> None:
        now = time.monotonic()
        # Unknown until a GPU is initialized.
        if self._capacity is None or now >= self._next_capacity:
            self._next_capacity = now + CAPACITY_SECONDS
            self._capacity = self.counters.capacity()
        if self._capacity is not None:
            values["Memory/capacity_MB"] = self._capacity / MB

    def close(self) -> None:
        if self._tensors is not None:
            self._tensors.close()
        self._capture.close()
        self._history.stop()
        self.triage.close()
        self._machine.close()


def device_of(watched: ParameterGroups) -> torch.device:
    """Return the device of the first watched parameter; the current device if nothing is watched."""
    for name in watched.names():
        for parameter in watched.read(name):
            return parameter.device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else torch.device("cpu")
