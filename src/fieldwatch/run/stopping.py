"""How a run ends when a signal asks it to: after the step if that ends in time, else at the next stop point."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, TypeVar, final

from fieldwatch.checkpoint import StopRequest
from fieldwatch.run.ending import Interrupted
from fieldwatch.run.saving import RunCheckpoints

Item = TypeVar("Item")


@final
class StopPoint:
    """Notices SIGTERM, SIGINT, SIGUSR1 and SIGHUP in the middle of long work. Every run has one, as `run.stop_point`.

    Call it between the parts of an evaluation, of a mesh, of files that are written: it costs a microsecond. For
    5 s from the arrival of a signal the work may go on, so that the step ends and is saved exactly. After that it is
    given up, nothing of the unfinished step is saved, and the last checkpoint stands; a resumed run comes to the same
    place again and does the work again. Rooms that know no run take it as a plain callable.

    Args:
        record_event: records an event.
        saving: the run's checkpoints.
        alive: gives a sign of life.
    """

    def __init__(self, record_event: Callable[..., None], saving: RunCheckpoints, alive: Callable[[], None]) -> None:
        self._record_event = record_event
        self._saving = saving
        self._alive = alive
        self._request = StopRequest()

    def __call__(self, during: str = "the step") -> None:
        """Go on, or give up what is under way.

        Args:
            during: what that is, for the record.

        Raises:
            Interrupted: a signal came 5 s ago or more.
        """
        self._alive()
        if self._request.received and self._request.overdue:
            self._give_up(during)

    @property
    def overdue(self) -> bool:
        """Whether a signal came, and its patience is over."""
        return self._request.overdue

    @property
    def patience(self) -> float:
        """Seconds from the arrival of a signal for which work may go on; half of the grace is wise."""
        return self._request.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        """Set it; at any time."""
        self._request.patience = seconds

    def waiting(self, during: str = "the wait for data") -> AbstractContextManager[None]:
        """Let a wait inside this block be given up as well, though no stop point lies in it.

        Args:
            during: what is waited for, for the record.

        Raises:
            Interrupted: (inside the block) a signal came 5 s ago or more.
        """
        return self._request.abandonable(partial(self._give_up, during))

    def instead_of(self, error: Exception, during: str = "the wait for data") -> None:
        """End for a signal that came, where a failure may be its work: one to the whole group ends workers as well.

        Args:
            error: the failure; it is the caller's while no signal has come.
            during: what failed, for the record.

        Raises:
            Interrupted: a signal came; from the error.
        """
        if self._request.received:
            try:
                self._give_up(during)
            except Interrupted as end:
                raise end from error

    @property
    def signal(self) -> int:
        """Number of the signal that came; 0 while none did."""
        return max(self._request.exit_code - 128, 0)

    def end(self, number: int) -> NoReturn:
        """End the run between two steps, after its state was saved.

        Args:
            number: of the signal, which may have come to another rank.

        Raises:
            Interrupted: always.
        """
        if not self._request.received:
            # It came to another rank: raised here too, so that the exit code is the same on all.
            signal.raise_signal(number)
        self._end()

    def __enter__(self) -> None:
        """Listen for signals."""
        self._request.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Listen no more."""
        self._request.__exit__(kind, error, at)

    def _give_up(self, during: str) -> NoReturn:
        self._end(abandoned=during)

    def _end(self, **facts: Any) -> NoReturn:
        request = self._request
        last = max(self._saving.checkpoints.steps(), default=0)
        self._record_event(
            "interrupted", signal=request.requested, waited=round(request.waited, 3), resumes_from=last, **facts
        )
        raise Interrupted(request.exit_code)


class InterruptibleSource(Iterable[Item]):
    """An iterable whose every wait may be given up: a loader may be slow, or its worker dead.

    Args:
        source: what is iterated over, again and again if it can be.
        stop_point: of the run that waits.

    Attributes:
        yielded: how many items were given out.
    """

    def __init__(self, source: Iterable[Item], stop_point: StopPoint) -> None:
        self._source = source
        self._stop_point = stop_point
        self.yielded = 0

    def __iter__(self) -> Iterator[Item]:
        iterator = iter(self._source)
        while True:
            try:
                with self._stop_point.waiting():
                    item = next(iterator)
            except StopIteration:
                return
            except RuntimeError as error:  # what torch raises for a worker that was killed
                self._stop_point.instead_of(error)
                raise
            self.yielded += 1
            yield item
