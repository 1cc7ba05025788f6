"""The memory side of a run: what is allocated at every step, the tensor profile, and the machine beside it."""

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
"""Steps between two samples of the parameters' size, which changes rarely, and of a CPU's memory, which costs a system
call; the rows between repeat the last sample. CUDA's allocator keeps its own books, and is read at every step."""
RESCAN_EVERY = 64
"""Steps after which the owners are asked for new parameters."""
CAPACITY_EVERY = 512
"""Steps after which the driver, or the system, is asked for what is left."""

SNAPSHOTS_ON_FINDINGS = 5
"""How many allocator snapshots are kept besides those that were asked for."""


class RunMemory:
    """Everything a run records about memory.

    Args:
        folder: the run folder.
        watched: the parameter groups.
        clock: whose spans give peaks their names.
        profile: when to account for every byte; None never.
        data: what else lies in memory, by name, so that the profile knows its owners; it may grow.
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
        """Begin a stretch of training at ``step``; the model lies on its device by now.

        Args:
            step: its first one.
            take_request: returns whether a rule has requested an action since the last call, and clears the request.
            waiting: where writes wait that a full disk refuses; without it, such an error is raised.

        Raises:
            ValueError: allocator snapshots are wanted of a device that has none.
        """
        self.close()  # of the stretch before, if the run goes back
        TensorProfile.rewind(self._folder, step)
        self._instruments = _MemoryInstruments(
            self._folder, self._watched, self._clock, self._data, self._profile, take_request, waiting
        )

    def begin(self, step: int) -> None:
        """Begin a step."""
        if self._instruments is not None:
            self._instruments.begin(step)

    def at_update(self, step: int) -> None:
        """Look at a CPU's memory while gradients are there."""
        if step % SAMPLE_EVERY == 0 and self._instruments is not None:
            self._instruments.counters.sample()

    def end(self, step: int) -> dict[str, float]:
        """End a step: its memory in MiB, and what else was due."""
        return {} if self._instruments is None else self._instruments.end(step)

    def make_room(self, error: BaseException) -> None:
        """If memory ran out, give back what was kept for saying so."""
        if self._instruments is not None:
            self._instruments.triage.make_room(error)

    def explain(self, error: BaseException, crash_folder: Path, step: int) -> None:
        """If memory ran out, say why: on the error, and in the crash folder."""
        if self._instruments is not None:
            self._instruments.triage.explain(error, crash_folder, step)

    def why(self, text: str) -> str:
        """Why memory ran out, in one paragraph, as far as it is known without a census; empty where it is not."""
        return "" if self._instruments is None else self._instruments.triage.why(text)

    def close(self) -> None:
        """Give back what was opened."""
        if self._instruments is not None:
            self._instruments.close()


class _MemoryInstruments:
    """What there is once training begins."""

    def __init__(  # noqa: PLR0913, PLR0917  RunMemory's own, and what the run adds
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
        device = device_of(watched)
        self.counters = AllocatorCounters(device)
        self._machine = MachineSampler()
        self._cuda = device.type == "cuda"
        self._last_sample = dict[str, float]()
        self._history = AllocatorHistory(device)
        self._snapshot_at = profile.snapshot_at if profile is not None else ()
        self._capture = NsightCapture(lambda: take_request("capture"))
        self._tensors: TensorProfile | None = None
        if self._snapshot_at:
            if self._history.refusal:
                raise InputError(f"snapshots at steps {self._snapshot_at}: {self._history.refusal}")
            self._history.start()
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

    def begin(self, step: int) -> None:
        self._capture.begin(step)
        self.triage.begin()
        if self._tensors is not None:
            self._tensors.begin(step)

    def end(self, step: int) -> dict[str, float]:
        if step % SAMPLE_EVERY == 0 or not self._last_sample:
            self._last_sample = {**self.counters.take(), "Memory/parameters_MB": self._watched.nbytes() / MB}
            values = self._last_sample.copy()
        else:
            # CUDA's counters are plain numbers of the allocator: reading them does not synchronize.
            values = self._last_sample | self.counters.take() if self._cuda else self._last_sample.copy()
        self.triage.steady_bytes = int(values.get("Memory/allocated_MB", 0.0) * MB)
        if self._tensors is not None:
            values |= self._tensors.end()
        # Densification replaces parameters: without a rescan, sizes would be those of the old ones.
        if (step + 1) % RESCAN_EVERY == 0:
            self._watched.rescan()
        capacity = self.counters.capacity() if step % CAPACITY_EVERY == 0 else None
        if capacity is not None:
            values["Memory/capacity_MB"] = capacity / MB
        if self._machine.due():
            values |= self._machine.sample()
        # Asking takes the request back, so it is asked last, and only where a snapshot can be written.
        if step in self._snapshot_at or (self._history.recording and self._take_request("snapshot")):
            path = output_path(self._folder, "snapshots", f"memory_step{step}.pickle")
            keep_count = len(self._snapshot_at) + SNAPSHOTS_ON_FINDINGS
            try_optional(self._waiting, lambda: self._history.dump(path, keep=keep_count))
        self._capture.end(step)
        return values

    def close(self) -> None:
        if self._tensors is not None:
            self._tensors.close()
        self._capture.close()
        self._history.stop()
        self.triage.close()
        self._machine.close()


def device_of(watched: ParameterGroups) -> torch.device:
    """Where the model lives; the current device where nothing is watched."""
    for name in watched.names():
        for parameter in watched.read(name):
            return parameter.device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else torch.device("cpu")
