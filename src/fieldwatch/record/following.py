"""Follow a run while it is being written: poll for rows and events added since the last call."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fieldwatch.record.damage import DAMAGED, Damage, DamageTally, same_damage
from fieldwatch.record.events import EVENTS
from fieldwatch.record.history import History
from fieldwatch.record.journal import JOURNAL
from fieldwatch.record.lines import LineReader, chunks, end_of_last_line, numbered
from fieldwatch.record.reading import problem_of_event
from fieldwatch.record.row import Block
from fieldwatch.record.rows import RowReader
from fieldwatch.record.segments import SEGMENT_KEY, segment_in

# Number of trailing bytes that are compared to detect a rewritten file.
_LAST_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class RecordUpdate:
    """Changes of a run's record since the last poll. Apply the attributes in this order, or call :meth:`apply_to`.

    Attributes:
        replaced: whether the record was replaced (a file shrank or was rewritten): drop everything returned earlier.
        rows_from: step from which on a resume has invalidated the rows returned earlier: drop those; None if there was
            no resume.
        events_from: the same for events; it may arrive in another poll, because the two files are marked one after the
            other.
        blocks: new valid rows, in order.
        events: new valid events, in order.
        damage: damaged lines found so far (they are skipped), one entry per file.
        more: whether the limit of one poll was reached: poll again immediately.
    """

    replaced: bool = False
    rows_from: int | None = None
    events_from: int | None = None
    blocks: tuple[Block, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    damage: tuple[Damage, ...] = ()
    more: bool = False

    def __bool__(self) -> bool:
        """Whether anything has changed."""
        return self.replaced or bool(self.blocks or self.events) or (self.rows_from, self.events_from) != (None, None)

    @property
    def rows(self) -> int:
        """Number of new rows."""
        return sum(map(len, self.blocks))

    def apply_to(self, history: History) -> None:
        """Apply the update to a history that has received all earlier updates."""
        if self.replaced:
            history.discard(0)
            history.windows.clear()
        if self.rows_from is not None:
            history.discard_rows(self.rows_from)
        if self.events_from is not None:
            history.discard_events(self.events_from)
        for block in self.blocks:
            history.extend(block)
        for event in self.events:
            history.add_event(event)
        for damage in self.damage:
            event = damage.as_event(history.step)
            if not any(same_damage(event, known) for known in history.events(DAMAGED)):
                history.add_event(event)


class JournalFollower:
    """Reads new rows and events of a run that another process is writing.

    Each poll reads only the bytes written since the last one; it takes a few microseconds if there are none. A line
    that is still being written is left for the next poll. The files, and the folder itself, may be created later. Not
    thread-safe.

    Usage::

        follower, history = JournalFollower(folder), History()
        while True:
            follower.poll().apply_to(history)
            ...
            time.sleep(1)

    Args:
        folder: the run folder.
        limit: approximate number of journal bytes to read per poll; the rest follows in later polls. None reads
            everything at once (8 bytes of memory per value).
    """

    def __init__(self, folder: Path | str, *, limit: int | None = None) -> None:
        self.folder = Path(folder)
        self._limit = math.inf if limit is None else limit
        self._begin()

    def _begin(self) -> None:
        self._journal = _Tail(self.folder / JOURNAL)
        self._events = _Tail(self.folder / EVENTS)
        # All state is rebuilt together, since line numbers and layouts refer to the current files.
        self._damage = DamageTally()
        self._rows = RowReader(self._journal.path, self._damage)
        self._event_lines = LineReader()
        self._segment_number = 1

    def poll(self) -> RecordUpdate:
        """Return the changes since the last call; the first call returns the whole record so far.

        Raises:
            OSError: if a file cannot be read.
        """
        # Journal and events form one record: if either was replaced, start over with both.
        replaced = self._journal.was_replaced() or self._events.was_replaced()
        if replaced:
            self._begin()
        rows_from, blocks = self._new_rows()
        events_from, events = self._new_events()
        return RecordUpdate(
            replaced=replaced,
            rows_from=rows_from,
            events_from=events_from,
            blocks=tuple(blocks),
            events=tuple(events),
            damage=self._damage.entries,
            more=self._journal.more,
        )

    def _new_rows(self) -> tuple[int | None, list[Block]]:
        """Return the step from which on earlier rows are void (None if they are not), and the new valid rows."""
        void_from = None
        blocks = list[Block]()
        for first, text in self._journal.new_lines(self._limit):
            for _, block in self._rows.read(text, first):
                if isinstance(block, Block):
                    blocks.append(block)
                else:
                    void_from = block.resume if void_from is None else min(void_from, block.resume)
                    # Blocks of this poll may be void, too. Those of earlier polls must be discarded by the caller.
                    blocks = [valid for earlier in blocks if len(valid := earlier.before(block.resume))]
        return void_from, blocks

    def _new_events(self) -> tuple[int | None, list[dict[str, Any]]]:
        """Return the step from which on earlier events are void (None if they are not), and the new valid events."""
        void_from = None
        events = list[dict[str, Any]]()
        path = self._events.path
        # No limit: events are few compared to rows.
        for first, text in self._events.new_lines(math.inf):
            if first == 1:
                self._event_lines.check_first_line(text)
            for number, line in numbered(text, first):
                event, problem = self._event_lines.read(line)
                problem = problem or problem_of_event(event)
                if problem:
                    self._damage.add(path, number, problem)
                    continue
                segment = segment_in(event)
                if segment is not None and ("segment" in event or segment.number > self._segment_number):
                    # Any line of a later segment implies the segment's own line, which may be damaged.
                    self._segment_number = max(self._segment_number, segment.number)
                    void_from = segment.resume if void_from is None else min(void_from, segment.resume)
                    events = [earlier for earlier in events if earlier["step"] < segment.resume]
                event.pop(SEGMENT_KEY, None)
                if "segment" not in event:
                    events.append(event)
        return void_from, events


class _Tail:
    """Read position in one growing file, always at the end of a whole line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.more = False
        self._end = 0
        self._lines = 0
        self._inode = 0
        self._last_bytes = b""

    def was_replaced(self) -> bool:
        """Whether the file no longer contains what was read: it shrank, or was replaced or rewritten."""
        if not self._end:
            return False
        try:
            with self.path.open("rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                last_bytes = os.pread(file.fileno(), len(self._last_bytes), self._end - len(self._last_bytes))
        except FileNotFoundError:
            return True
        # A rewritten file may keep its inode and size, so also compare the last bytes read.
        return status.st_ino != self._inode or status.st_size < self._end or last_bytes != self._last_bytes

    def new_lines(self, limit: float) -> Iterator[tuple[int, bytes]]:
        """Yield new whole lines in chunks of about 512, each with the 1-based number of its first line."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            yield from self._chunks(file, limit)

    def _chunks(self, file: BinaryIO, limit: float) -> Iterator[tuple[int, bytes]]:
        status = os.fstat(file.fileno())
        self._inode = status.st_ino
        # Stop before a line that is still being written: the writer may have to complete it in a second write.
        whole = end_of_last_line(file.fileno()) if status.st_size > self._end else self._end
        file.seek(self._end)
        # The limit is approximate: reading stops at the end of the chunk that exceeds it.
        stop = min(whole, self._end + limit)
        for text, lines in chunks(file, whole - self._end):
            first = self._lines + 1
            self._end += len(text)
            self._lines += lines
            self._last_bytes = (self._last_bytes + text[-_LAST_BYTES:])[-_LAST_BYTES:]
            yield first, text
            if self._end >= stop:
                break
        self.more = self._end < whole


def follow(folder: Path | str, *, limit: int | None = None) -> JournalFollower:
    """Return a :class:`JournalFollower` for a run folder."""
    return JournalFollower(folder, limit=limit)
