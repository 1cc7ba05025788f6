"""The sinks of a run as one: all get everything, and one that cannot outlast a full disk is dropped."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fieldwatch.base import lacks_space
from fieldwatch.record import Block, Sink
from fieldwatch.record.disk import WriteBacklog
from fieldwatch.record.sinks import Closable, Deferrable, EventSink, Flushable, Rewindable


class SinkGroup:
    """Feeds the sinks, on the record's thread.

    A sink that is :class:`Deferrable` loses nothing on a full disk. Of any other it is not known what a call that
    failed has written already, so that the call cannot be repeated: such a sink gets no more rows until the run is
    resumed. An error of another kind is raised, as ever.

    Args:
        sinks: in the order in which they are fed.
        waiting: where patient ones let their writes wait.
        report: records an event, of a kind and with facts, about a sink that was dropped.
    """

    def __init__(self, sinks: Sequence[Sink], waiting: WriteBacklog, report: Callable[..., None]) -> None:
        self.sinks = tuple(sinks)
        self._report = report
        self._dropped = set[int]()
        self._marks: dict[str, Any] = {}
        for sink in self.sinks:
            if isinstance(sink, Deferrable):
                sink.defer_to(waiting)

    def __call__(self, block: Block) -> None:
        """Feed a block."""
        for number, sink in enumerate(self.sinks):
            self._feed(number, lambda sink=sink: sink(block))

    def event(self, event: Mapping[str, Any]) -> None:
        """Feed an event to those that take events."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, EventSink):
                self._feed(number, lambda sink=sink: sink.event(event))

    def show(self, capability: type, method: str, *arguments: Any) -> None:
        """Feed an image, histogram, text, config or layout to those that can show it."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, capability):
                self._feed(number, lambda sink=sink: getattr(sink, method)(*arguments))

    def any_supports(self, capability: type) -> bool:
        """Whether any sink has a capability."""
        return any(isinstance(sink, capability) for sink in self.sinks)

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Cut back what can be cut back, to where :meth:`mark` stood; what was dropped gets rows again."""
        self._dropped.clear()
        self._marks = dict((mark or {}).get("sinks", {}))
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, Rewindable):
                sink.rewind(self._marks.get(_sink_key(number, sink)))

    def mark(self) -> dict[str, Any]:
        """Where each sink stands; a dropped one where it stood last."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, Rewindable):
                self._feed(number, lambda number=number, sink=sink: self._store_mark(number, sink))
        return dict(self._marks)

    def flush(self) -> None:
        """Have written what sinks hold back."""
        for number, sink in enumerate(self.sinks):
            if isinstance(sink, Flushable):
                self._feed(number, sink.flush)

    def close(self) -> None:
        """Close those that can be closed."""
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
            message = f"the sink {name} met a full disk and gets no more rows until the run is resumed: {reason}"
            self._report("sink_dropped", sink=name, message=message)

    def _close(self, number: int, sink: Closable) -> None:
        if number in self._dropped:
            # That it meets the full disk again while it closes is no news.
            _refused_for_space(self.sinks[number], sink.close)
        else:
            sink.close()


def close_sinks(sinks: Sequence[Sink]) -> None:
    """Close sinks that no run has taken over; more than once is fine."""
    for sink in sinks:
        if isinstance(sink, Closable):
            sink.close()


def _refused_for_space(sink: Sink, call: Callable[[], object]) -> str:
    """Make a call; return why a full disk refused it, empty where it did not."""
    try:
        call()
    except Exception as error:
        # Libraries wrap the system's error in their own: what was being handled counts too.
        if not isinstance(sink, Deferrable) and lacks_space(error, foreign=True):
            return f"{type(error).__name__}: {error}"
        raise
    return ""


def _sink_key(number: int, sink: object) -> str:
    return f"{number}-{sink.__class__.__name__}"
