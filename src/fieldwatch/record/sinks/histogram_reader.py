"""Reader for the histograms in TensorBoard event files of this toolkit, without protobuf's classes."""

# google_crc32c carries no types, so strict checking ends here.
# pyright: basic

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import protobuf
from fieldwatch.record.sinks.event_files import frame, frame_head, own_files
from fieldwatch.record.sinks.summaries import HISTOGRAM_BINS, LARGEST_STEP

_NEWEST_BYTES = 256 << 20
"""Number of bytes at the end of the event files that are searched."""
# Fields of HistogramProto in summary.proto.
_RIGHT_EDGES = 6
_COUNTS = 7
_LIST_BYTES = 8 * HISTOGRAM_BINS
_FRAME_HEAD = 12
_FIRST_BYTE = 9
"""First byte of every event: field 1 (wall time) with wire type 1."""
_HEAD = 700
"""Maximum distance in bytes from the start of a record to the start of its lists."""


@dataclass(frozen=True, kw_only=True)
class StoredHistogram:
    """A histogram that was logged during training.

    Attributes:
        tag: name of the histogram.
        position: step, or 1-based epoch.
        edges: ``[bins + 1]`` edges of the bins, ascending and equally spaced.
        counts: ``[bins]`` number of values in each bin; not all are 0.
    """

    tag: str
    position: int
    edges: NDArray[np.float64]
    counts: NDArray[np.float64]

    def quantile(self, fraction: float) -> float:
        """Return a quantile, interpolated within its bin; ``fraction`` is in [0, 1]."""
        filled = np.flatnonzero(self.counts)
        # Empty bins at the ends would put the minimum and maximum at their far edges.
        bins = slice(int(filled[0]), int(filled[-1]) + 1)
        below = np.concatenate([[0.0], np.cumsum(self.counts[bins])])
        return float(np.interp(fraction * below[-1], below, self.edges[bins.start : bins.stop + 1]))


def stored_histograms(folder: Path) -> dict[str, list[StoredHistogram]]:
    """Return the histograms in a folder of event files by tag, in the order of their positions.

    Only complete records of this toolkit are returned; damaged ones and files that cannot be opened are skipped. At
    most the last 256 MiB of the files are read.
    """
    found: dict[str, dict[int, StoredHistogram]] = {}
    left = _NEWEST_BYTES
    for path in reversed(own_files(folder)):
        newest = {(one.tag, one.position): one for one in _histograms(path, left)}
        for (tag, position), histogram in newest.items():
            # Newer files come first, and their histogram of a position is the valid one.
            found.setdefault(tag, {}).setdefault(position, histogram)
        left -= path.stat().st_size
        if left <= 0:
            break
    return {tag: [by_position[at] for at in sorted(by_position)] for tag, by_position in found.items()}


def _list_head(field: int) -> bytes:
    """Return the bytes that precede the numbers of a list with one number per bin."""
    return protobuf.sized(field, bytes(_LIST_BYTES))[:-_LIST_BYTES]


_LISTS = re.compile(
    re.escape(_list_head(_RIGHT_EDGES)) + b".{%d}" % _LIST_BYTES + re.escape(_list_head(_COUNTS)), re.DOTALL
)
"""The edges, up to the start of the counts."""


def _histograms(path: Path, most: int) -> Iterator[StoredHistogram]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # Rows of scalars are skipped at the speed of a byte search: the files can have gigabytes.
            for match in _LISTS.finditer(data, max(len(data) - most, 0)):
                record = _record_around(data, match.start())
                histogram = _parsed(record) if record is not None else None
                if histogram is not None:
                    yield histogram
    except (OSError, ValueError):  # removed by a resume, not readable, or empty
        return


def _record_around(data: mmap.mmap, at: int) -> bytes | None:
    """Return the record that contains the byte ``at``; None if there is none with valid checksums."""
    for start in range(at - _FRAME_HEAD, max(at - _HEAD, -1), -1):
        if data[start + _FRAME_HEAD] != _FIRST_BYTE:
            continue
        (length,) = struct.unpack_from("<Q", data, start)
        end = start + _FRAME_HEAD + length
        if at < end <= len(data) and data[start : start + _FRAME_HEAD] == frame_head(length):
            record = data[start + _FRAME_HEAD : end]
            return record if data[start : end + 4] == frame(record) else None
    return None


def _parsed(record: bytes) -> StoredHistogram | None:
    """Return the histogram of a record; None if it is another record that contains the same bytes."""
    try:
        # Fields of event.proto and summary.proto: step 2, summary 5; value 1; tag 1, histo 5.
        event = protobuf.fields(record)
        value = protobuf.fields(_bytes(protobuf.fields(_bytes(event, 5)), 1))
        content = protobuf.fields(_bytes(value, 5))
        right = np.frombuffer(_bytes(content, _RIGHT_EDGES), "<f8")
        counts = np.frombuffer(_bytes(content, _COUNTS), "<f8")
        tag = _bytes(value, 1).decode()
    except (IndexError, ValueError, struct.error):
        return None
    position = event.get(2, 0)
    if not isinstance(position, int) or position > LARGEST_STEP or len(right) != len(counts):
        return None
    # Numbers that are not ours may be too large to compute with.
    with np.errstate(over="ignore", invalid="ignore"):
        # The file has the right edges only; the bins are equally wide.
        edges = np.concatenate([[2 * right[0] - right[1]], right])
        ascending = np.isfinite(edges).all() and (np.diff(edges) >= 0).all()
        countable = (counts >= 0).all() and 0 < counts.sum() < np.inf
    return StoredHistogram(tag=tag, position=position, edges=edges, counts=counts) if ascending and countable else None


def _bytes(message: dict[int, int | bytes], field: int) -> bytes:
    value = message.get(field)
    if not isinstance(value, bytes):
        raise ValueError(f"expected bytes in field {field}, got {type(value).__name__}")  # noqa: TRY004  the data is wrong, not the caller
    return value
