"""Read the record of a run folder, without the rows and events that were invalidated by a resume."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from fieldwatch.base import MissingPathError
from fieldwatch.record.damage import DamageTally
from fieldwatch.record.events import EVENTS
from fieldwatch.record.history import History
from fieldwatch.record.journal import JOURNAL, RowLayout, layout_of
from fieldwatch.record.lines import LineReader, checked_lines, numbered, read_chunks
from fieldwatch.record.manifest import RUN, NotARun, holds_run, read_manifest
from fieldwatch.record.packing import PACKED
from fieldwatch.record.row import Block
from fieldwatch.record.rows import RowReader
from fieldwatch.record.segments import SEGMENT_KEY, Segment, VoidSteps, segment_in, segment_starts

_INT64 = 2**63


def read_history(folder: Path | str, capacity: int | None = None, damage: DamageTally | None = None) -> History:
    """Read the journal and the events of a run folder into a history.

    A missing file is treated as empty, and a torn last line as never written. Damaged lines are skipped; for each file
    that has some, the history contains an event ``damaged_record``.

    Args:
        folder: the run folder.
        capacity: number of values to keep per metric; None keeps all.
        damage: additional counter of the damaged lines.

    Raises:
        MissingPathError: if the folder does not exist.
    """
    if not Path(folder).is_dir():
        raise MissingPathError(f"no run folder at {folder}: expected a folder that contains {JOURNAL}")
    history = History(capacity)
    damage = DamageTally() if damage is None else damage
    # The windows in run.json come first: `windows` events of the run override them. Open windows never end.
    for term, (first, last) in note_damage(Path(folder), damage).items():
        history.windows[term] = (first or 0, sys.maxsize if last is None else last)
    for block in read_blocks(folder, damage):
        history.extend(block)
    for event in read_events(folder, damage):
        history.add_event(event)
    for event in damage.events(history.step):
        history.add_event(event)
    return history


def note_damage(folder: Path, damage: DamageTally) -> Mapping[str, tuple[int, int | None]]:
    """Record whether run.json is missing or damaged, and return the windows that it declares.

    The result is empty if there is neither a run.json nor a copy of it in a checkpoint.
    """
    try:
        return read_manifest(folder, damage).windows if holds_run(folder) else {}
    except NotARun as error:
        damage.add_file(folder / RUN, f"cannot be used, and no checkpoint holds a copy of it: {error}")
        return {}


def read_segments(folder: Path | str) -> list[Segment]:
    """Return the segments of a run, including the first, as far as they are recorded in undamaged journal lines."""
    return [Segment(number=1), *(segment for _, segment in _marks(Path(folder) / JOURNAL)[0])]


def read_events(folder: Path | str, damage: DamageTally | None = None) -> Iterator[dict[str, Any]]:
    """Yield the valid events of a run, in order.

    Args:
        folder: the run folder.
        damage: counter of damaged lines, which are skipped.
    """
    path = Path(folder) / EVENTS
    counter = DamageTally() if damage is None else damage
    # Two passes: the first one finds the segments, with a separate counter so that no damage is counted twice.
    limits = VoidSteps(
        segment_starts((number, event) for number, event, _ in checked_lines(path, problem_of_event, DamageTally()))
    )
    for number, event, has_checksum in checked_lines(path, problem_of_event, counter):
        segment = segment_in(event)
        event.pop(SEGMENT_KEY, None)
        # A line with a checksum but no segment key belongs to segment 1. Lines without a checksum come from an old
        # version: 0 lets their line number decide.
        if "segment" not in event and event["step"] < limits.of(
            number, segment.number if segment else int(has_checksum)
        ):
            yield event


def problem_of_event(event: Any) -> str:
    """Return why a parsed line is neither an event nor a segment; an empty string if it is one."""
    if not isinstance(event, dict):
        return "is not an event"
    fields = cast("dict[str, Any]", event)
    if ("segment" in fields or SEGMENT_KEY in fields) and segment_in(fields) is None:
        return "is not a segment marker"
    return "" if "segment" in fields else _problem_of_fields(fields)


def _problem_of_fields(fields: Mapping[str, Any]) -> str:
    """Return why the fields of an event are invalid; an empty string if they are valid."""
    kind = fields.get("kind")
    step = fields.get("step")
    if not isinstance(kind, str) or not kind:
        return "is not an event (its kind is missing)"
    if type(step) is not int or not 0 <= step < _INT64:
        return f"is an event whose step is {str(step)[:40]!r}, not an integer of at least 0"
    if kind == "windows" and not _are_windows(fields.get("windows")):
        return "is a windows event without [first, last] steps for each term"
    return ""


def _are_windows(windows: Any) -> bool:
    if not isinstance(windows, dict):
        return False
    pairs = cast("dict[str, Any]", windows).values()
    return all(isinstance(pair, list) and list(map(type, cast("list[Any]", pair))) == [int, int] for pair in pairs)


def read_blocks(folder: Path | str, damage: DamageTally | None = None) -> Iterator[Block]:
    """Yield the valid rows of a run, in order and in blocks of at most 512 rows, with constant memory use.

    Args:
        folder: the run folder.
        damage: counter of damaged lines, which are skipped.
    """
    path = Path(folder) / JOURNAL
    # Two passes: read layouts and segments first, since a row may precede the only readable declaration of its layout.
    marks, layouts = _marks(path)
    limits = VoidSteps(marks)
    rows = RowReader(path, DamageTally() if damage is None else damage, layouts)
    for first, text in read_chunks(path):
        for number, block in rows.read(text, first):
            if isinstance(block, Block):
                standing = block.before(limits.of(number, rows.segment_number))
                if len(standing):
                    yield standing


def _marks(path: Path) -> tuple[list[tuple[int, Segment]], dict[int, RowLayout]]:
    """Return the segments with the numbers of the lines where they begin, and all layouts by number."""
    reader = LineReader()
    # Keeps only the marks, which are few, not the rows.
    lines = list[tuple[int, Mapping[str, Any]]]()
    layouts = dict[int, RowLayout]()
    for first, text in read_chunks(path):
        if first == 1:
            reader.check_first_line(text)
        # Rows begin with a bracket and marks with a brace. Most chunks contain no mark and need not be split.
        if b"{" not in text:
            continue
        for number, line in numbered(text, first):
            if not line.startswith(b"{") or line.startswith(PACKED):
                continue
            value, problem = reader.read(line)
            if problem:
                continue
            if "layout" in value:
                try:
                    layout = layout_of(value, with_checksum=reader.has_checksums)
                except (KeyError, TypeError, ValueError):
                    continue  # RowReader counts this line as damaged in the second pass
                layouts[layout.number] = layout
            lines.append((number, value))
    return list(segment_starts(lines)), layouts
