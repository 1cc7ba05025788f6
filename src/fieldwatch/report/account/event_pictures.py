"""Reader for the pictures of a run, which only its TensorBoard files contain.

It does not need protobuf's classes: it finds records by their framing and fields by their numbers, and skips everything
that does not look like a record of ours.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fieldwatch.base import protobuf

FOLDER = "tensorboard"
PNG = b"\x89PNG\r\n\x1a\n"
"""Signature at the start of every PNG file."""
_NEWEST_BYTES = 256 << 20
"""Number of bytes at the end of the event files that are searched for pictures."""
_LEAST_HEAD = 20
"""Minimum distance in bytes from the start of a record to its PNG: 12 of framing, and more than 8 of event fields."""
_MOST_HEAD = 700
"""Maximum distance: the rest is the picture's tag, which is rarely longer than 100 bytes."""
_PARSE_ERRORS = (struct.error, IndexError, ValueError, OSError)
"""Errors of damaged or foreign bytes, which are skipped: a missing picture must not cost the report."""


@dataclass(frozen=True, kw_only=True)
class LoggedPicture:
    """A picture that was logged during training.

    Attributes:
        tag: name of the picture.
        position: step, or 1-based epoch.
        png: content of the PNG file.
    """

    tag: str
    position: int
    png: bytes


def newest_pictures(folder: Path, most: int) -> list[LoggedPicture]:
    """Return the newest picture of each tag for at most ``most`` tags, newest first."""
    newest: dict[str, LoggedPicture] = {}
    # A resumed run has one event file per start, and names sort by time.
    remaining_bytes = _NEWEST_BYTES
    for path in reversed(event_files(folder)):
        if len(newest) >= most or remaining_bytes <= 0:
            break
        for picture in _pictures_backwards(path, remaining_bytes):
            # The first picture of a tag is the newest one, since the search runs backwards.
            newest.setdefault(picture.tag, picture)
            if len(newest) >= most:
                break
        remaining_bytes -= path.stat().st_size
    return list(newest.values())


def event_files(folder: Path) -> list[Path]:
    """Return the event files of a run that are not empty, oldest first."""
    return sorted(path for path in (folder / FOLDER).glob("*tfevents*") if path.is_file() and path.stat().st_size)


def _pictures_backwards(path: Path, most: int) -> Iterator[LoggedPicture]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = max(len(data) - most, 0)
            end = len(data)
            # Search from the end: only the newest pictures are needed, and the files can have gigabytes.
            while (at := data.rfind(PNG, start, end)) >= 0:
                picture = _picture_around(data, at)
                if picture is not None:
                    yield picture
                end = at
    except _PARSE_ERRORS:
        return


def _picture_around(data: mmap.mmap, at: int) -> LoggedPicture | None:
    """Return the picture whose PNG starts at ``at``; None unless a valid image record surrounds it."""
    for place in range(at - _LEAST_HEAD, max(at - _MOST_HEAD, -1), -1):
        # A record consists of length (8 bytes), checksum (4) and event. The first byte of an event is 9: field 1
        # (wall time) with wire type 1.
        if data[place + 12] != 9:
            continue
        (length,) = struct.unpack_from("<Q", data, place)
        # The byte 9 is common: a length that ends before the PNG or after the file is not one.
        if at - place - 12 < length <= len(data) - place - 16:
            try:
                return _picture(data[place + 12 : place + 12 + length])
            except _PARSE_ERRORS:
                continue
    return None


def _picture(record: bytes) -> LoggedPicture:
    event = protobuf.fields(record)
    # Numbers of event.proto and summary.proto: summary 5, value 1, image 4, encoded_image_string 4, tag 1, step 2.
    value = protobuf.fields(_bytes(protobuf.fields(_bytes(event, 5)), 1))
    png = _bytes(protobuf.fields(_bytes(value, 4)), 4)
    if not png.startswith(PNG):
        raise ValueError(f"expected a record with a PNG, got {len(png)} other bytes: it is skipped")
    position = event.get(2, 0)
    return LoggedPicture(tag=_bytes(value, 1).decode(), position=position if isinstance(position, int) else 0, png=png)


def _bytes(message: dict[int, int | bytes], number: int) -> bytes:
    value = message.get(number)
    if not isinstance(value, bytes):
        raise ValueError(f"a record has no field {number}: it is skipped")  # noqa: TRY004  the data is wrong, not the caller
    return value
