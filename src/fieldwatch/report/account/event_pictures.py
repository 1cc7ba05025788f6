"""What only the TensorBoard files of a run hold: its pictures.

Read without protobuf's classes: records are found by their framing, fields by their numbers. Whatever does not look
like one of our records is passed over.
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
"""How far back from the end of the files pictures are looked for."""
_HEAD = 700
"""Bytes before a picture in which its record begins."""
_TROUBLE = (struct.error, IndexError, ValueError, OSError)


@dataclass(frozen=True, kw_only=True)
class LoggedPicture:
    """A picture that was shown during training.

    Attributes:
        tag: its name.
        position: step, or 1-based epoch.
        png: the file's bytes.
    """

    tag: str
    position: int
    png: bytes


def newest_pictures(folder: Path, most: int) -> list[LoggedPicture]:
    """Return the newest picture of each tag, at most so many tags, the newest first."""
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
    """Return a run's event files, the oldest first."""
    return sorted(path for path in (folder / FOLDER).glob("*tfevents*") if path.is_file() and path.stat().st_size)


def _pictures_backwards(path: Path, most: int) -> Iterator[LoggedPicture]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = max(len(data) - most, 0)
            end = len(data)
            # From the end: the newest pictures are wanted, and files can have gigabytes.
            while (at := data.rfind(PNG, start, end)) >= 0:
                shown = _picture_around(data, at)
                if shown is not None:
                    yield shown
                end = at
    except _TROUBLE:
        return


def _picture_around(data: mmap.mmap, at: int) -> LoggedPicture | None:
    """Return the picture whose PNG begins at a place: the record before it has to be one of an image, exactly."""
    for place in range(at - 20, max(at - _HEAD, -1), -1):
        # A record is length (8 bytes), checksum (4), event; an event begins with its wall time: field 1, type 1.
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
        raise ValueError("a record between two pictures is none: it is passed over")
    position = event.get(2, 0)
    return LoggedPicture(tag=_bytes(value, 1).decode(), position=position if isinstance(position, int) else 0, png=png)


def _bytes(message: dict[int, int | bytes], number: int) -> bytes:
    value = message.get(number)
    if not isinstance(value, bytes):
        raise ValueError(f"a record lacks its field {number}: it is passed over")  # noqa: TRY004  the data's fault
    return value
