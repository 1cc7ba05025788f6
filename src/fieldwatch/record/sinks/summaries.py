"""TensorBoard protobuf messages: rows of scalars, images, histograms, text, hyperparameters and chart layouts."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import InputError, protobuf
from fieldwatch.record.charts.layout import Chart, Layout
from fieldwatch.record.sinks.event_files import CHECKSUM_BYTES, HEAD_BYTES, frame_head, masked_checksums

# Field numbers, plug-in names and tags are those of TensorBoard's event.proto, summary.proto, tensor.proto,
# custom_scalar/layout.proto and hparams/plugin_data.proto. Each function returns a whole `Summary.Value`.
_DT_STRING = 7
_HPARAMS = "_hparams_"
# What the hparams plug-in keeps beside its metadata: a float tensor of shape [0].
_NULL_TENSOR = protobuf.integer(1, 1) + protobuf.sized(2, protobuf.sized(2, b"", always=True))
_STATUS_SUCCESS = 1
HISTOGRAM_BINS = 30
# A varint of five bytes holds seven bits per byte: steps up to 2**35 - 1.
_STEP_BYTES = 5
LARGEST_STEP = (1 << 7 * _STEP_BYTES) - 1
_PIECE_BYTES = 1 << 16
"""Bytes of records that are serialized at once. The memory of larger arrays comes from the system, page by page."""
_SHIFTS = np.arange(0, 7 * _STEP_BYTES, 7)
# Positions in a framed event of scalars: 8 bytes of wall time after the key of its field, 5 of the step after another.
_WALL = HEAD_BYTES + 1 + np.arange(8)
_STEP = _WALL[-1] + 2 + np.arange(_STEP_BYTES)
_CHECKSUM = np.arange(CHECKSUM_BYTES)
_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
"""Number of channels, as TensorBoard expects it, by PNG color type (byte 25 of the file)."""


class ScalarTags:
    """Tags whose scalars one event contains, as a template of that event.

    Only two events are serialized. The bytes in which they differ are the positions of the numbers, which
    :func:`scalar_events` fills in. Steps are written as varints padded to 5 bytes, which every protobuf reader accepts,
    so that all events of the tags have the same length.

    Args:
        tags: tags, one per scalar.

    Attributes:
        record: framed event with arbitrary numbers, without a valid checksum at its end.
        value_bytes: ``[4 * tags]`` positions of the scalars' bytes in ``record``.
    """

    def __init__(self, tags: tuple[str, ...]) -> None:
        # The two templates differ in every byte of their numbers and nowhere else.
        event = _scalars_event(tags, 1)
        other = _scalars_event(tags, 2)
        varying = np.flatnonzero(np.frombuffer(event, np.uint8) != np.frombuffer(other, np.uint8)) + HEAD_BYTES
        # The wall time and the step come first in every event, at `_WALL` and `_STEP`.
        self.value_bytes = varying[len(_WALL) + len(_STEP) :]
        self.record = frame_head(len(event)) + event + bytes(CHECKSUM_BYTES)


class Scalars(NamedTuple):
    """Rows of scalars with the same tags.

    Attributes:
        tags: the tags.
        wall: ``[rows]`` wall time in seconds since 1970.
        steps: ``[rows]`` step.
        values: ``[rows, tags]`` scalars.
    """

    tags: ScalarTags
    wall: NDArray[np.float64]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


def scalar_events(parts: Sequence[Scalars]) -> Iterator[bytes]:
    """Serialize rows of scalars: yield framed records, one for each row, many at a time.

    Args:
        parts: rows, in the order of the records; no part without rows.

    Raises:
        InputError: if a step is negative or too large.
    """
    piece: list[Scalars] = []
    free = _PIECE_BYTES
    for part in parts:
        size = len(part.tags.record)
        count = len(part.steps)
        first = 0
        while first < count:
            # At least one row, even if it is larger than a piece.
            last = min(count, first + max(free // size, 0 if piece else 1))
            if last > first:
                rows = slice(first, last)
                piece.append(Scalars(part.tags, part.wall[rows], part.steps[rows], part.values[rows]))
                free -= (last - first) * size
                first = last
            if first < count:
                yield _serialized(piece)
                piece = []
                free = _PIECE_BYTES
    if piece:
        yield _serialized(piece)


def _serialized(parts: Sequence[Scalars]) -> bytes:
    """Serialize rows of scalars.

    All parts are filled into one array at once, since a step with other tags than the one before is a part of its own.
    """
    steps = np.concatenate([part.steps for part in parts])
    if steps.min() < 0 or steps.max() > LARGEST_STEP:
        raise InputError(
            f"TensorBoard steps must be from 0 to {LARGEST_STEP}, got steps {steps.min()} to {steps.max()}"
        )
    counts = [len(part.steps) for part in parts]
    sizes = np.repeat([len(part.tags.record) for part in parts], counts)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    stream = bytearray().join([part.tags.record * count for part, count in zip(parts, counts, strict=True)])
    array = np.frombuffer(stream, np.uint8)
    wall = np.concatenate([part.wall for part in parts]).astype("<f8")
    array[starts[:, None] + _WALL] = wall.view(np.uint8).reshape(-1, len(_WALL))
    # Base-128 varint: seven bits per byte, lowest first; the high bit marks that another byte follows.
    digits = (steps[:, None] >> _SHIFTS) & 0x7F
    digits[:, :-1] |= 0x80
    array[starts[:, None] + _STEP] = digits
    # TensorBoard stores float32: larger values become infinite. Suppress numpy's warning about it.
    with np.errstate(over="ignore"):
        singles = np.concatenate([part.values for part in parts], axis=None).astype("<f4").view(np.uint8)
    filled = end = 0
    for part, count in zip(parts, counts, strict=True):
        first = end
        end += count * len(part.tags.record)
        rows = array[first:end].reshape(count, -1)
        filled_before = filled
        filled += count * len(part.tags.value_bytes)
        rows[:, part.tags.value_bytes] = singles[filled_before:filled].reshape(count, -1)
    # Compute the checksums last, since they cover the numbers filled in above.
    text = bytes(stream)
    spans = zip((starts + HEAD_BYTES).tolist(), (ends - CHECKSUM_BYTES).tolist(), strict=True)
    records = [text[first:last] for first, last in spans]
    checksums = masked_checksums(records).view(np.uint8).reshape(-1, CHECKSUM_BYTES)
    array[ends[:, None] - CHECKSUM_BYTES + _CHECKSUM] = checksums
    return bytes(stream)


def _scalars_event(tags: tuple[str, ...], digit: int) -> bytes:
    """Serialize a template event in which every byte of every number equals ``digit``, up to the varint flag bits."""
    # Numbers whose bytes all equal the digit, so that every byte of every number differs between two templates.
    number = struct.unpack("<f", bytes([digit]) * 4)[0]
    step = sum(digit << 7 * i for i in range(_STEP_BYTES))
    values = [protobuf.text(1, tag) + protobuf.single(2, number, always=True) for tag in tags]
    summary = b"".join(protobuf.sized(1, value, always=True) for value in values)
    wall = struct.unpack("<d", bytes([digit]) * 8)[0]
    return protobuf.double(1, wall) + protobuf.integer(2, step) + protobuf.sized(5, summary, always=True)


def event(value: bytes, *, wall: float, step: int = 0) -> bytes:
    """Serialize an event with a single summary value."""
    summary = protobuf.sized(1, value, always=True)
    return protobuf.double(1, wall) + protobuf.integer(2, step) + protobuf.sized(5, summary, always=True)


def image(tag: str, png: bytes, width: int, height: int) -> bytes:
    """Build an image summary from an encoded PNG.

    Raises:
        ValueError: if the bytes are not a PNG.
    """
    if len(png) < 26 or not png.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError(
            f"image '{tag}': expected an encoded PNG, got {len(png)} other bytes: encode the image first (Pillow: save "
            "'PNG')"
        )
    channels = _CHANNELS.get(png[25], 3)
    content = (
        protobuf.integer(1, height)
        + protobuf.integer(2, width)
        + protobuf.integer(3, channels)
        + protobuf.sized(4, png)
    )
    return protobuf.text(1, tag) + protobuf.sized(4, content, always=True)


def histogram(tag: str, values: NDArray[np.floating[Any]]) -> bytes | None:
    """Build a histogram of the finite values with 30 equal bins; None if no value is finite."""
    finite = values[np.isfinite(values)].astype(np.float64).ravel()
    if not len(finite):
        return None
    counts, edges = np.histogram(finite, HISTOGRAM_BINS)
    content = (
        protobuf.double(1, float(finite.min()))
        + protobuf.double(2, float(finite.max()))
        + protobuf.double(3, float(len(finite)))
        + protobuf.double(4, float(finite.sum()))
        + protobuf.double(5, float(np.square(finite).sum()))
        + protobuf.doubles(6, edges[1:].tolist())
        + protobuf.doubles(7, counts.tolist())
    )
    return protobuf.text(1, tag) + protobuf.sized(5, content, always=True)


def text(tag: str, markdown: str) -> bytes:
    """Build a text summary for the text dashboard."""
    return protobuf.text(1, tag) + _text_tensor(markdown.encode()) + _metadata("text")


def session_start(config: Mapping[str, Any], started: float) -> bytes:
    """Build the hyperparameters of a run; values that are not truth values, numbers or texts are shown as text."""
    info = b"".join(
        protobuf.sized(1, protobuf.text(1, name) + protobuf.sized(2, _hyperparameter(value), always=True), always=True)
        for name, value in config.items()
    )
    return _hparams("session_start_info", protobuf.sized(3, info + protobuf.double(5, started), always=True))


def session_end(ended: float) -> bytes:
    """Build the summary that marks a run as finished successfully."""
    info = protobuf.integer(1, _STATUS_SUCCESS) + protobuf.double(2, ended)
    return _hparams("session_end_info", protobuf.sized(4, info, always=True))


def chart_layout(layout: Layout) -> bytes:
    """Build the chart layout of the custom scalars dashboard."""
    tabs = [
        protobuf.text(1, tab.title)
        + b"".join(protobuf.sized(2, _chart(chart), always=True) for chart in tab.charts)
        + protobuf.integer(3, tab.closed)
        for tab in layout.tabs
    ]
    content = b"".join(protobuf.sized(2, tab, always=True) for tab in tabs)
    return protobuf.text(1, "custom_scalars__config__") + _text_tensor(content) + _metadata("custom_scalars")


def _chart(chart: Chart) -> bytes:
    if chart.tags:
        content = b"".join(protobuf.text(1, tag, always=True) for tag in chart.tags)
        return protobuf.text(1, chart.title) + protobuf.sized(2, content, always=True)
    series = [
        protobuf.text(1, band.value) + protobuf.text(2, band.lower) + protobuf.text(3, band.upper)
        for band in chart.margins
    ]
    content = b"".join(protobuf.sized(1, band, always=True) for band in series)
    return protobuf.text(1, chart.title) + protobuf.sized(3, content, always=True)


def _hyperparameter(value: Any) -> bytes:
    """Make a `google.protobuf.Value`."""
    if isinstance(value, bool):
        return protobuf.integer(4, value, always=True)
    if isinstance(value, int | float):
        return protobuf.double(2, float(value), always=True)
    return protobuf.text(3, str(value), always=True)


def _hparams(name: str, data: bytes) -> bytes:
    return (
        protobuf.text(1, f"{_HPARAMS}/{name}")
        + protobuf.sized(8, _NULL_TENSOR, always=True)
        + _metadata("hparams", data)
    )


def _text_tensor(content: bytes) -> bytes:
    """Make the field `tensor` of a value: a scalar string."""
    return protobuf.sized(8, protobuf.integer(1, _DT_STRING) + protobuf.sized(8, content, always=True), always=True)


def _metadata(plugin: str, content: bytes = b"") -> bytes:
    """Make the field `metadata` of a value: the plug-in that shows it, and what that one needs to know."""
    return protobuf.sized(9, protobuf.sized(1, protobuf.text(1, plugin) + protobuf.sized(2, content)), always=True)
