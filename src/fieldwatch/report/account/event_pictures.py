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
_NEWEST_BYTES = 256 << 20
"""Number of bytes at the end of the event files that are searched for pictures."""
_HEAD = 700
"""Maximum distance in bytes from the start of a record to the start of its PNG."""
_TROUBLE = (struct.error, IndexError, ValueError, OSError)


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
    found: dict[str, LoggedPicture] = {}
    left = _NEWEST_BYTES
    for path in reversed(event_files(folder)):
        if len(found) >= most or left <= 0:
            break
        for shown in _pictures_backwards(path, left):
            found.setdefault(shown.tag, shown)
            if len(found) >= most:
                break
        left -= path.stat().st_size
    return list(found.values())


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
                shown = _picture_around(data, at)
                if shown is not None:
                    yield shown
                end = at
    except _TROUBLE:
        return


def _picture_around(data: mmap.mmap, at: int) -> LoggedPicture | None:
    """Return the picture whose PNG starts at ``at``; None unless a valid image record surrounds it."""
    for place in range(at - 20, max(at - _HEAD, -1), -1):
        # A record consists of length (8 bytes), checksum (4) and event. The first byte of an event is 9: field 1
        # (wall time) with wire type 1.
        if data[place + 12] != 9:
            continue
        (length,) = struct.unpack_from("<Q", data, place)
        if at - place - 12 < length <= len(data) - place - 16:
            try:
                return _picture(data[place + 12 : place + 12 + length])
            except _TROUBLE:
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
