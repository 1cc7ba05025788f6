"""Tensor profile for a training loop without a run."""

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
    """Handle yielded by :func:`profile_tensors`, with which a loop marks its steps and spans."""

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
        """Return a context manager for one step of the loop; only profiled steps have a cost.

        Args:
            index: 0-based index of the step, at which its tags are recorded.
        """
        if self._tensors.profile.due(index):
            # Reading the counters resets the peak, which otherwise includes earlier steps.
            self._counters.take()
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
        """Name a part of the step, for which peaks and saved tensors are reported separately."""
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
        folder: folder for ``profiles/tensor_profile_<time>.log``, ``memory.jsonl`` and ``tensorboard/``.
        optimizers: optimizers whose state is included.
        data: other large objects in memory, by name: images, neighbors, caches.
        profile: which steps are profiled, and the names of the tags; by default every 50th step.
        sinks: destinations of the tags instead of ``tensorboard/``.
        groups: parameter groups of the model, by name. Their parameters are read again for every profile, so
            densification may replace them.

    Yields:
        The handle of the loop, to be used as ``with loop.step(iteration):``.

    Raises:
        InputError: two groups share a parameter, or a group has none.
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
