"""`SinkGroup`: feeds all sinks of a run, and drops those that fail on a full disk."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fieldwatch.base import lacks_space
from fieldwatch.record import Block, Sink
from fieldwatch.record.disk import WriteBacklog
from fieldwatch.record.sinks import BatchSink, Closable, Deferrable, EventSink, Flushable, Rewindable


class SinkGroup:
    """Feeds the sinks on the writer thread.

    A :class:`Deferrable` sink loses nothing on a full disk. For any other sink it is unknown how much a failed call has
    already written, so the call cannot be repeated: the sink gets no more rows until the run is resumed. All other
    errors propagate.

    Args:
        sinks: sinks in the order in which they are fed.
        waiting: backlog for the delayed writes of deferrable sinks.
        report: function that records an event about a dropped sink.

    Attributes:
        sinks: as above.
    """

    def __init__(self, sinks: Sequence[Sink], waiting: WriteBacklog, report: Callable[..., None]) -> None:
        self.sinks = tuple(sinks)
        self._report = report
        self._dropped = set[int]()
        # Last known positions: a dropped sink can no longer report its own.
        self._marks: dict[str, Any] = {}
        for sink in self.sinks:
            if isinstance(sink, Deferrable):
                sink.defer_to(waiting)

    def extend(self, blocks: Sequence[Block]) -> None:
        """Feed blocks of rows to all sinks."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, BatchSink):
                self._feed(number, lambda sink=sink: sink.extend(blocks))
                continue
            for block in blocks:
                self._feed(number, lambda sink=sink, block=block: sink(block))

    def event(self, event: Mapping[str, Any]) -> None:
        """Feed an event to the sinks that support events."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, EventSink):
                self._feed(number, lambda sink=sink: sink.event(event))

    def show(self, capability: type, method: str, *arguments: Any) -> None:
        """Call a method with an image, histogram, text, config or layout on the sinks that support it."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, capability):
                self._feed(number, lambda sink=sink: getattr(sink, method)(*arguments))

    def any_supports(self, capability: type) -> bool:
        """Return whether any sink implements a protocol."""
        return any(isinstance(sink, capability) for sink in self.sinks)

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Rewind the sinks to the positions of an earlier :meth:`mark`, and enable dropped sinks again."""
        # The disk may have space again, so dropped sinks get another chance.
        self._dropped.clear()
        self._marks = dict((mark or {}).get("sinks", {}))
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, Rewindable):
                sink.rewind(self._marks.get(_sink_key(number, sink)))

    def mark(self) -> dict[str, Any]:
        """Return the position of each sink; for a dropped one, its last known position."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, Rewindable):
                self._feed(number, lambda number=number, sink=sink: self._store_mark(number, sink))
        return dict(self._marks)

    def flush(self) -> None:
        """Write the buffered data of all sinks."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, Flushable):
                self._feed(number, sink.flush)

    def close(self) -> None:
        """Close all sinks that can be closed."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, Closable):
                self._close(number, sink)

    def _store_mark(self, number: int, sink: Rewindable) -> None:
        self._marks[_sink_key(number, sink)] = sink.mark()

    def _feed(self, number: int, call: Callable[[], object]) -> None:
        if number in self._dropped:
            return
        reason = _refused_for_space(self.sinks[number], call)
        if reason:
            self._dropped.add(number)
            name = self.sinks[number].__class__.__name__
            message = f"the disk is full: the sink {name} gets no more rows until the run is resumed: {reason}"
            self._report("sink_dropped", sink=name, message=message)

    def _close(self, number: int, sink: Closable) -> None:
        if number in self._dropped:
            # The drop is already reported: ignore that the disk is still full.
            _refused_for_space(self.sinks[number], sink.close)
        else:
            sink.close()


def close_sinks(sinks: Sequence[Sink]) -> None:
    """Close sinks that no record owns yet; may be called more than once."""
    for sink in sinks:
        if isinstance(sink, Closable):
            sink.close()


def _refused_for_space(sink: Sink, call: Callable[[], object]) -> str:
    """Call a function; return the error message if the disk was full, otherwise an empty string."""
    try:
        call()
    except Exception as error:
        # Libraries wrap the OSError in their own exceptions, so check the causes and contexts too.
        # A deferrable sink handles a full disk itself, so any error that it raises is final.
        if not isinstance(sink, Deferrable) and lacks_space(error, foreign=True):
            return f"{type(error).__name__}: {error}"
        raise
    return ""


def _sink_key(number: int, sink: object) -> str:
    # The number distinguishes several sinks of one class.
    return f"{number}-{sink.__class__.__name__}"
