"""TensorBoard protobuf messages: rows of scalars, images, histograms, text, hyperparameters and chart layouts."""

# The classes that protobuf generates (and google_crc32c) carry no types, so strict checking ends here.
# pyright: basic, reportAttributeAccessIssue=false

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as charts_metadata
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.text import metadata as text_metadata

from fieldwatch.base import InputError
from fieldwatch.record.charts.layout import Chart, Layout
from fieldwatch.record.sinks.event_files import frame_head, masked_checksums

HISTOGRAM_BINS = 30
# A varint of five bytes holds seven bits per byte: steps up to 2**35 - 1.
_STEP_BYTES = 5
_LARGEST_STEP = (1 << 7 * _STEP_BYTES) - 1
_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
"""Number of channels, as TensorBoard expects it, by PNG color type (byte 25 of the file)."""


class ScalarRows:
    """Serializes blocks of rows with the same tags: one event per row, which contains all of its scalars.

    Protobuf serializes only two template events. The bytes in which they differ are the positions of the numbers, which
    are then filled in for all rows at once. Steps are written as varints padded to 5 bytes, which every protobuf reader
    accepts, so that all records have the same length.

    Args:
        tags: tags, one per column.
    """

    def __init__(self, tags: tuple[str, ...]) -> None:
        # The two templates differ in every byte of their numbers and nowhere else.
        with_ones, with_twos = (np.frombuffer(_scalars_event(tags, digit), np.uint8) for digit in (1, 2))
        varying = np.flatnonzero(with_ones != with_twos)
        length = len(with_ones)
        # Order of the numbers in an event: wall time (8 bytes), step (5), values (4 each). A frame head of 12 bytes
        # precedes the event.
        self._wall, self._step, self._values = np.split(varying + 12, [8, 8 + _STEP_BYTES])
        self._length = length
        self._frame = np.zeros(length + 16, np.uint8)
        self._frame[:12] = np.frombuffer(frame_head(length), np.uint8)
        self._frame[12:-4] = with_ones

    def __call__(self, wall: NDArray[np.float64], steps: NDArray[np.int64], values: NDArray[np.float64]) -> bytes:
        """Serialize rows.

        Args:
            wall: ``[rows]`` wall time in seconds since 1970.
            steps: ``[rows]`` step.
            values: ``[rows, tags]`` scalars.

        Returns:
            Framed records of all rows.

        Raises:
            InputError: if a step is negative or too large.
        """
        if steps.min() < 0 or steps.max() > _LARGEST_STEP:
            raise InputError(
                f"TensorBoard steps must be from 0 to {_LARGEST_STEP}, got steps {steps.min()} to {steps.max()}"
            )
        count = len(steps)
        rows = np.tile(self._frame, (count, 1))
        rows[:, self._wall] = wall.astype("<f8").view(np.uint8).reshape(count, 8)
        # Base-128 varint: seven bits per byte, lowest first; the high bit marks that another byte follows.
        digits = (steps[:, None] >> np.arange(0, 7 * _STEP_BYTES, 7)) & 0x7F
        digits[:, :-1] |= 0x80
        rows[:, self._step] = digits
        # TensorBoard stores float32: larger values become infinite. Suppress numpy's warning about it.
        with np.errstate(over="ignore"):
            singles = np.ascontiguousarray(values, "<f4")
        rows[:, self._values] = singles.view(np.uint8).reshape(count, -1)
        text = rows.tobytes()
        size = self._length + 16
        records = [text[start + 12 : start + 12 + self._length] for start in range(0, count * size, size)]
        # Compute the checksums last, since they cover the numbers filled in above.
        rows[:, -4:] = masked_checksums(records).view(np.uint8).reshape(count, 4)
        return rows.tobytes()


def _scalars_event(tags: tuple[str, ...], digit: int) -> bytes:
    """Serialize a template event in which every byte of every number equals ``digit``, up to the varint flag bits."""
    number = np.frombuffer(bytes([digit]) * 8, "<f4")[0]
    step = sum(digit << 7 * i for i in range(_STEP_BYTES))
    summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=number) for tag in tags])
    wall = np.frombuffer(bytes([digit]) * 8, "<f8")[0]
    return event_pb2.Event(wall_time=wall, step=step, summary=summary).SerializeToString()


def event(summary: Message, *, wall: float, step: int = 0) -> bytes:
    """Serialize an event with a single summary value."""
    return event_pb2.Event(wall_time=wall, step=step, summary=summary_pb2.Summary(value=[summary])).SerializeToString()


def image(tag: str, png: bytes, width: int, height: int) -> Message:
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
    encoded = summary_pb2.Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=png)
    return summary_pb2.Summary.Value(tag=tag, image=encoded)


def histogram(tag: str, values: NDArray[np.floating[Any]]) -> Message | None:
    """Build a histogram summary of the finite values with 30 bins of equal width; None if no value is finite."""
    finite = values[np.isfinite(values)].astype(np.float64).ravel()
    if not len(finite):
        return None
    counts, edges = np.histogram(finite, HISTOGRAM_BINS)
    message = summary_pb2.HistogramProto(
        min=finite.min(),
        max=finite.max(),
        num=len(finite),
        sum=finite.sum(),
        sum_squares=np.square(finite).sum(),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )
    return summary_pb2.Summary.Value(tag=tag, histo=message)


def text(tag: str, markdown: str) -> Message:
    """Build a summary for the text dashboard."""
    metadata = text_metadata.create_summary_metadata(display_name="", description="")
    return summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=_string(markdown.encode()))


def session_start(config: Mapping[str, Any], started: float) -> Message:
    """Build the hyperparameter summary of a run; values other than bools, numbers and strings become strings."""
    info = plugin_data_pb2.SessionStartInfo(start_time_secs=started)
    for name, value in config.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[name].number_value = value
        else:
            info.hparams[name].string_value = str(value)
    data = plugin_data_pb2.HParamsPluginData(session_start_info=info)
    return _hparams(hparams_metadata.SESSION_START_INFO_TAG, data)


def session_end(ended: float) -> Message:
    """Build the summary that marks a run as successfully ended."""
    info = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=ended)
    return _hparams(hparams_metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=info))


def chart_layout(layout: Layout) -> Message:
    """Build the chart layout of the custom scalars dashboard."""
    tabs = [
        layout_pb2.Category(title=tab.title, chart=[_chart(chart) for chart in tab.charts], closed=tab.closed)
        for tab in layout.tabs
    ]
    return summary_pb2.Summary.Value(
        tag=charts_metadata.CONFIG_SUMMARY_TAG,
        metadata=charts_metadata.create_summary_metadata(),
        tensor=_string(layout_pb2.Layout(category=tabs).SerializeToString()),
    )


def _chart(chart: Chart) -> Message:
    if chart.tags:
        return layout_pb2.Chart(title=chart.title, multiline=layout_pb2.MultilineChartContent(tag=chart.tags))
    series = [
        layout_pb2.MarginChartContent.Series(value=margin.value, lower=margin.lower, upper=margin.upper)
        for margin in chart.margins
    ]
    return layout_pb2.Chart(title=chart.title, margin=layout_pb2.MarginChartContent(series=series))


def _hparams(tag: str, data: Message) -> Message:
    metadata = hparams_metadata.create_summary_metadata(data)
    return summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=hparams_metadata.NULL_TENSOR)


def _string(content: bytes) -> Message:
    return tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[content])
