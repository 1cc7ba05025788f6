"""`Observer`: hooks around the steps of a run, through which a replay looks at a step and goes back to it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.lazy import lazy_names
from fieldwatch.record import holds_run
from fieldwatch.run.options import Guard, Outputs, Saving

if TYPE_CHECKING:
    from fieldwatch.guard import Clip
    from fieldwatch.measure import Terms
    from fieldwatch.run.tracked_objects import TrackedObjects

__getattr__, _ = lazy_names(__name__)  # resolves the quoted annotations at run time


@dataclass(frozen=True, kw_only=True)
class ObservedStep:
    """What a step recorded.

    Attributes:
        index: 0-based index of the step.
        values: recorded values by metric name.
        samples: names of the samples.
        sample_loss: loss per sample, shape ``[samples]``; None if there is none.
        updated: whether ``step.update`` was called.
    """

    index: int
    values: Mapping[str, float | Tensor]
    samples: tuple[str, ...]
    sample_loss: Tensor | None
    updated: bool


class Observer:
    """Hooks around the steps of a run. The methods of this class do nothing, and change nothing.

    An observer is active for every :class:`~fieldwatch.run.run.Run` that is created inside of :func:`observing`. Such a
    run has no sinks, writes no checkpoints of its own accord, never stops or rolls back because it diverged, and skips
    the evaluations that are functions: they cannot influence the training.

    Attributes:
        active: whether the run is observed; False for this class.
    """

    active = False

    def folder_of(self, folder: Path) -> Path:
        """Return the folder to open in place of the one that the loop names."""
        return folder

    def opened(self, tracked: TrackedObjects, save: Callable[[], None]) -> None:
        """Begin to observe a run.

        Args:
            tracked: its tracked objects, which may be empty yet.
            save: function that saves a checkpoint of the steps finished so far.
        """

    def begin_step(self, index: int) -> None:
        """Called before the body of the loop."""

    def at_terms(self, terms: Terms, fraction: float) -> None:
        """Called before the backward pass, while the graph exists.

        Args:
            terms: loss terms with their graph.
            fraction: fraction of the batch that they cover.
        """

    def clip(self, clip: Clip | None) -> Clip | None:
        """Return the limit for the gradient norm to use in place of the loop's; the gradients are complete."""
        return clip

    def updating(self, optimizers: Sequence[Optimizer]) -> AbstractContextManager[None]:  # noqa: ARG002  for subclasses
        """Return a context manager around the steps of the optimizers."""
        return nullcontext()

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context manager around a block of :meth:`Run.evaluation`, which is not part of the step."""
        return nullcontext()

    def end_step(self, step: ObservedStep) -> None:
        """Called after the body of the loop."""

    def next_step(self, done: int, *, ended: bool) -> int | None:  # noqa: ARG002  for subclasses
        """Return the step to go on with.

        Args:
            done: number of finished steps.
            ended: whether all planned steps are done.

        Returns:
            ``done`` to go on, the step of a checkpoint to go back to, or None to end the replay.
        """
        return done

    def closed(self, error: BaseException | None) -> None:
        """Stop observing: the run ends, with an exception or not."""


_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_NO_OBSERVER = Observer()


@contextmanager
def observing(observer: Observer) -> Generator[None]:
    """Observe every run that is created inside this context."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def current_observer() -> Observer:
    """Return the observer of this context; one that does nothing if there is none."""
    return _observer.get() or _NO_OBSERVER


def options_of_replay(root: Path, saving: Saving, guard: Guard, outputs: Outputs) -> tuple[Saving, Guard, Outputs]:
    """Return the options of an observed run: it saves, sends and stops nothing, and trains the same numbers.

    Args:
        root: copy of the run folder; it is empty if the replay begins at step 0.
        saving: options of the loop; so are the other two.
        guard: what the run guards against.
        outputs: what the run writes beside its record.
    """
    return (
        replace(saving, every=None, mirror="", resume="must" if holds_run(root) else "auto"),
        # Rollback stays on, because its checkpoints say which updates to skip.
        replace(guard, hang_timeout=None, max_refusals=2**31),
        replace(outputs, sinks=(), sink_names=()),
    )
