"""The tensor profile for a loop that has no run around it."""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from fieldwatch.measure import AllocatorCounters, Clock, Owner, ParameterGroups
from fieldwatch.record import Block, Row, Sink
from fieldwatch.record.sinks import Closable, TensorBoard
from fieldwatch.run.memory import device_of
from fieldwatch.run.profile import Profile
from fieldwatch.run.tensor_profile import TensorProfile


class ProfiledLoop:
    """What :func:`profile_tensors` gives to the loop."""

    def __init__(
        self, tensors: TensorProfile, clock: Clock, counters: AllocatorCounters, sinks: Sequence[Sink]
    ) -> None:
        self._tensors = tensors
        self._clock = clock
        self._counters = counters
        self._sinks = sinks
        self._began = time.monotonic()

    @contextmanager
    def step(self, index: int) -> Generator[None]:
        """Surround one step of the loop; only the steps that are due cost anything.

        Args:
            index: its number, from 0; tags stand there.
        """
        if self._tensors.profile.due(index):
            self._counters.take()  # what was the most before does not belong to this step
        self._tensors.begin(index)
        try:
            yield
        finally:
            tags = self._tensors.end()
            if tags:
                values = {**tags, **self._counters.take()}
                block = Block.of(Row(step=index, seconds=time.monotonic() - self._began, values=values))
                for sink in self._sinks:
                    sink(block)

    def span(self, name: str) -> AbstractContextManager[None]:
        """Name a part of the step: peaks and saved tensors are told apart by it."""
        return self._clock.span(name)


@contextmanager
def profile_tensors(
    folder: str | Path,
    *,
    optimizers: Sequence[Optimizer] = (),
    data: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    sinks: Sequence[Sink] | None = None,
    **groups: Owner,
) -> Generator[ProfiledLoop]:
    """Profile the tensor memory of any training loop, without a :class:`~fieldwatch.Run`.

    Args:
        folder: gets ``profiles/tensor_profile_<time>.log``, ``memory.jsonl`` and ``tensorboard/``.
        optimizers: whose state is counted.
        data: what else lies in memory, by name: images, neighbours, caches.
        profile: which steps, under which names; every 50th if left out.
        sinks: where the tags go instead of ``tensorboard/``.
        groups: the model's parts, by name; owners are asked anew at every account, so densification may replace them.

    Yields:
        What surrounds each step: ``with loop.step(iteration):``.

    Raises:
        ValueError: two groups share a parameter, or one holds none.
    """
    watched = ParameterGroups()
    clock = Clock()
    watched.add(**groups)
    watched.stepped_by(tuple(optimizers))
    counters = AllocatorCounters(device_of(watched))
    open_sinks = (TensorBoard(Path(folder) / "tensorboard"),) if sinks is None else sinks
    tensors = TensorProfile(
        Path(folder), profile or Profile(), watched=watched, clock=clock, counters=counters, data=data or {}
    )
    try:
        yield ProfiledLoop(tensors, clock, counters, open_sinks)
    finally:
        tensors.close()
        for sink in open_sinks:
            if isinstance(sink, Closable):
                sink.close()
