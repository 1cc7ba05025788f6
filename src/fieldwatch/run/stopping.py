"""Stop a run on a signal: after the current step if it ends in time, else at the next stop point."""

import signal
import sys
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
    """Handles SIGTERM, SIGINT, SIGUSR1 and SIGHUP during long work. Available as `run.stop_point`.

    Call it between the parts of an evaluation, a mesh extraction or an export; a call takes about a microsecond. For
    5 s after a signal the work may continue, so that the step can end and be saved. After that the next call abandons
    the step without saving it, and a resumed run repeats it from the last checkpoint. Functions that are independent
    of a run can accept it as a plain callable.

    Args:
        record_event: function that records an event.
        saving: checkpoints of the run.
        alive: function that sends a heartbeat to the watchdog.
    """

    def __init__(self, record_event: Callable[..., None], saving: RunCheckpoints, alive: Callable[[], None]) -> None:
        self._record_event = record_event
        self._saving = saving
        self._alive = alive
        self._request = StopRequest()

    def __call__(self, during: str = "the step") -> None:
        """Return, or abandon the current step if a signal is overdue.

        Args:
            during: name of the current work, for the record.

        Raises:
            Interrupted: a signal arrived at least :attr:`patience` seconds ago.
        """
        # Each call is also a heartbeat, so long work with stop points does not count as hung.
        self._alive()
        if self._request.received and self._request.overdue:
            self._give_up(during)

    @property
    def overdue(self) -> bool:
        """Whether a signal arrived at least :attr:`patience` seconds ago."""
        return self._request.overdue

    @property
    def patience(self) -> float:
        """Seconds after a signal during which work may continue; use about half of the scheduler's grace period."""
        return self._request.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        """Set the seconds during which work may continue; possible at any time."""
        self._request.patience = seconds

    def waiting(self, during: str = "the wait for data") -> AbstractContextManager[None]:
        """Return a context manager in which a blocking call can be abandoned, though it contains no stop point.

        Args:
            during: name of the wait, for the record.

        Raises:
            Interrupted: (inside the block) a signal arrived at least :attr:`patience` seconds ago.
        """
        return self._request.abandonable(partial(self._give_up, during))

    def instead_of(self, error: Exception, during: str = "the wait for data") -> None:
        """End the run for a pending signal instead of an error that the signal may have caused.

        A signal to the whole process group ends data loader workers too, which then raise errors. Without a pending
        signal the method returns, and the caller handles the error.

        Args:
            error: error to replace.
            during: name of the failed work, for the record.

        Raises:
            Interrupted: a signal is pending; its cause is ``error``.
        """
        if self._request.received:
            try:
                self._give_up(during)
            except Interrupted as end:
                raise end from error

    @property
    def signal(self) -> int:
        """Number of the pending signal; 0 if there is none."""
        return self._request.number

    def end(self, number: int) -> NoReturn:
        """End the run between two steps, after its state was saved.

        Args:
            number: number of the signal, which another rank may have received.

        Raises:
            Interrupted: always.
        """
        if not self._request.received:
            # Another rank received the signal: raise it here too, so that all ranks have the same exit code.
            signal.raise_signal(number)
        self._end()

    def __enter__(self) -> None:
        """Install the signal handlers."""
        self._request.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Restore the previous signal handlers."""
        self._request.__exit__(kind, error, at)

    def _give_up(self, during: str) -> NoReturn:
        self._end(abandoned=during)

    def _end(self, **facts: Any) -> NoReturn:
        request = self._request
        # This waits for the save in progress, so the event names the newest checkpoint.
        last = max(self._saving.checkpoints.steps(), default=0)
        self._record_event(
            "interrupted", signal=request.requested, waited=round(request.waited, 3), resumes_from=last, **facts
        )
        raise Interrupted(request.exit_code)


_BEGINS_AGAIN = (
    "fieldwatch: run.batches(...) is at the end of its data and begins again, as often as it is asked. For one pass, "
    "iterate over the loader itself; for many, let the steps end the loop: "
    "for step, batch in zip(run.steps(n), run.batches(loader))\n"
)


class InterruptibleSource(Iterable[Item]):
    """Wrapper of an iterable whose waits can be abandoned on a signal: a loader may be slow, or its worker dead.

    Args:
        source: iterable to wrap, such as a data loader.
        stop_point: stop point of the run.
        endless: function that returns whether nothing else ends the loop; a second pass then says that it has begun.

    Attributes:
        yielded: number of items yielded so far.
    """

    def __init__(self, source: Iterable[Item], stop_point: StopPoint, endless: Callable[[], bool]) -> None:
        self._source = source
        self._stop_point = stop_point
        self._endless = endless
        self._told = False
        self.yielded = 0

    def __iter__(self) -> Iterator[Item]:
        if self.yielded and not self._told and self._endless():
            self._told = True
            sys.stderr.write(_BEGINS_AGAIN)
        iterator = iter(self._source)
        while True:
            try:
                # Only this wait can be abandoned: an exception inside the loop body could interrupt an update.
                with self._stop_point.waiting():
                    item = next(iterator)
            except StopIteration:
                return
            # torch's DataLoader raises a RuntimeError if a worker was killed.
            except RuntimeError as error:
                self._stop_point.instead_of(error)
                raise
            self.yielded += 1
            yield item
