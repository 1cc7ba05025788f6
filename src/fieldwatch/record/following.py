"""Following a run while it is written: what its journal and its events have gained since the last poll."""

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

_LAST_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class RecordUpdate:
    """What a run's record has gained since the last poll. Apply it in that order, or by :meth:`apply_to`.

    Attributes:
        replaced: the record is another one (a file shrank, or was replaced): forget everything returned before.
        rows_from: a resume has voided the rows of this step and later ones: forget those; None: it has not.
        events_from: the same for events, whose file is marked at another moment than the journal.
        blocks: the new valid rows, in order.
        events: the new valid events, in order.
        damage: the damaged lines so far, which are left out, one entry per file.
        more: whether there was more than the limit of one poll: poll again at once.
    """

    replaced: bool = False
    rows_from: int | None = None
    events_from: int | None = None
    blocks: tuple[Block, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    damage: tuple[Damage, ...] = ()
    more: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything new."""
        return self.replaced or bool(self.blocks or self.events) or (self.rows_from, self.events_from) != (None, None)

    @property
    def rows(self) -> int:
        """How many new rows there are."""
        return sum(map(len, self.blocks))

    def apply_to(self, history: History) -> None:
        """Bring a history up to date that all earlier updates were applied to."""
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
    """Reads what is new in the journal and the events of a run that another process is writing.

    Each poll reads only the bytes written since the last one: a few microseconds where there are none. A last line
    that is still being written is left for the next poll. Files, and the folder itself, may come into being later.
    Not thread-safe.

    Usage::

        follower, history = JournalFollower(folder), History()
        while True:
            follower.poll().apply_to(history)
            ...
            time.sleep(1)

    Args:
        folder: the run's folder.
        limit: bytes of the journal to read in one poll, about; what is left comes with the next ones. None reads all
            there is (8 bytes per value in memory).
    """

    def __init__(self, folder: Path | str, *, limit: int | None = None) -> None:
        self.folder = Path(folder)
        self._limit = math.inf if limit is None else limit
        self._begin()

    def _begin(self) -> None:
        self._journal = _Tail(self.folder / JOURNAL)
        self._events = _Tail(self.folder / EVENTS)
        self._damage = DamageTally()
        self._rows = RowReader(self._journal.path, self._damage)
        self._event_lines = LineReader()
        self._segment_number = 1

    def poll(self) -> RecordUpdate:
        """Return what is new since the last call; the first call returns what stands so far.

        Raises:
            OSError: a file cannot be read.
        """
        # Both files belong to one record: if either was replaced, everything starts over.
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
        """Return from which step on rows returned earlier are void, and the new valid ones."""
        void_from = None
        blocks = list[Block]()
        for first, text in self._journal.new_lines(self._limit):
            for _, block in self._rows.read(text, first):
                if isinstance(block, Block):
                    blocks.append(block)
                else:
                    void_from = block.resume if void_from is None else min(void_from, block.resume)
                    # Blocks of this poll may be voided, too; those of earlier polls are the caller's to discard.
                    blocks = [valid for earlier in blocks if len(valid := earlier.before(block.resume))]
        return void_from, blocks

    def _new_events(self) -> tuple[int | None, list[dict[str, Any]]]:
        """Return from which step on events returned earlier are void, and the new valid ones."""
        void_from = None
        events = list[dict[str, Any]]()
        path = self._events.path
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
                    # A line of a later segment stands in for that segment's own line, which may be damaged.
                    self._segment_number = max(self._segment_number, segment.number)
                    void_from = segment.resume if void_from is None else min(void_from, segment.resume)
                    events = [one for one in events if one["step"] < segment.resume]
                event.pop(SEGMENT_KEY, None)
                if "segment" not in event:
                    events.append(event)
        return void_from, events


class _Tail:
    """How far one file has been read: always up to the end of a readable line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.more = False
        self._end = 0
        self._lines = 0
        self._inode = 0
        self._last_bytes = b""

    def was_replaced(self) -> bool:
        """Whether what was read is not in the file any more: it shrank, was replaced or rewritten."""
        if not self._end:
            return False
        try:
            with self.path.open("rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                last_bytes = os.pread(file.fileno(), len(self._last_bytes), self._end - len(self._last_bytes))
        except FileNotFoundError:
            return True
        # A rewritten file may keep its inode and its size: the last bytes read must still be where they were.
        return status.st_ino != self._inode or status.st_size < self._end or last_bytes != self._last_bytes

    def new_lines(self, limit: float) -> Iterator[tuple[int, bytes]]:
        """Yield new whole lines, some 512 at a time as one text, with the 1-based number of the first."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            yield from self._chunks(file, limit)

    def _chunks(self, file: BinaryIO, limit: float) -> Iterator[tuple[int, bytes]]:
        status = os.fstat(file.fileno())
        self._inode = status.st_ino
        # A line that is still being written is not read: the writer may be between two writes of it.
        whole = end_of_last_line(file.fileno()) if status.st_size > self._end else self._end
        file.seek(self._end)
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
    """Return a follower of a run's record; see :class:`JournalFollower`."""
    return JournalFollower(folder, limit=limit)
