"""Reader for one event file, record by record: every scalar, and the damage at the end of the file."""

# google_crc32c and the classes that protobuf generates have no types, so this file is checked in basic mode only.
# pyright: basic, reportAttributeAccessIssue=false

import mmap
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.hparams import plugin_data_pb2

_MASK_DELTA = 0xA282EAD8
_HEAD = 12
"""Bytes before the content of a record: its length (8) and the checksum of the length (4)."""
_FRAME = 16
"""Bytes of a record in addition to its content: the head, and the checksum of the content (4)."""
_SCALARS = "scalars"
_HPARAMS = "hparams"
_VALUE_FIELDS = ("float_val", "double_val", "int_val", "int64_val", "half_val", "uint32_val", "uint64_val", "bool_val")
_TYPES: dict[int, Any] = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 9: "<i8", 10: "?", 19: "<f2", 22: "<u4", 23: "<u8"}
"""numpy dtype of the content of a tensor, by TensorFlow's number of the type."""


@dataclass(frozen=True, kw_only=True)
class EventFile:
    """Content of one event file.

    Attributes:
        path: path of the file.
        records: number of valid records, including the first one, which contains the version.
        began: wall time of the first record in seconds since 1970; NaN without records.
        steps: ``[n]`` int64 steps by tag, in the order written.
        wall_times: ``[n]`` float64 seconds since 1970 by tag.
        values: ``[n]`` float64 values by tag.
        record_numbers: ``[n]`` int64 by tag: 1-based number of the record with the value.
        starts: record number and step of each restart mark: the run continued from that step.
        config: hyperparameters recorded in the file.
        skipped: number of values that are not scalars, by kind.
        damage: description of the damage at the end of the file; empty if the file is intact.
    """

    path: Path
    records: int
    began: float
    steps: Mapping[str, NDArray[np.int64]]
    wall_times: Mapping[str, NDArray[np.float64]]
    values: Mapping[str, NDArray[np.float64]]
    record_numbers: Mapping[str, NDArray[np.int64]]
    starts: tuple[tuple[int, int], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    damage: str = ""


def read_event_file(path: Path) -> EventFile:
    """Read every record of an event file, up to its end or to the first truncated or damaged record.

    Raises:
        OSError: if the file cannot be read.
    """
    reader = _Reader()
    damage = ""
    with path.open("rb") as file:
        # An empty file cannot be mapped.
        size = path.stat().st_size
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        try:
            for record in intact_records(data):
                if not reader.add(record):
                    damage = f"record {reader.records + 1} is not an event: the rest of the file was not read"
                    break
            else:
                damage = _damage(data, reader.end)
        finally:
            if isinstance(data, mmap.mmap):
                data.close()
    return reader.result(path, damage)


def intact_records(data: Any) -> Iterator[bytes]:
    """Yield each valid record; stop at the first truncated or damaged one."""
    at = 0
    # Records have no marker, so the next one cannot be found after a damaged length.
    while (length := _length(data, at)) is not None:
        record = data[at + _HEAD : at + _HEAD + length]
        end = at + length + _FRAME
        if len(data) < end or data[end - 4 : end] != _checksum(record):
            return
        yield record
        at = end


def _length(data: Any, at: int) -> int | None:
    """Return the length of the record at a byte; None if its head is incomplete or damaged."""
    head = data[at : at + 8]
    if len(data) < at + _HEAD or data[at + 8 : at + _HEAD] != _checksum(head):
        return None
    return int.from_bytes(head, "little")


def _checksum(content: bytes) -> bytes:
    """Return the masked CRC-32C that follows the length and the content of a record."""
    # TFRecord's masking: rotated by 15 bits, plus a constant.
    crc = google_crc32c.value(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


def _damage(data: Any, end: int) -> str:
    """Describe the data after the last valid record; empty if there is none."""
    rest = len(data) - end
    if not rest:
        return "" if len(data) else "the file is empty: not even its first record was written"
    length = _length(data, end)
    # A run that is still being written, or was killed, ends with part of a record. This is not a damaged disk.
    truncated = rest < _HEAD or (length is not None and rest < length + _FRAME)
    what = "a record that was not written to its end" if truncated else "a damaged record (wrong checksum)"
    return f"{what} begins at byte {end:,}: the last {rest:,} of {len(data):,} bytes were not read"


class _Reader:
    """Collects the content of the records of one file."""

    def __init__(self) -> None:
        self.records = self.end = 0
        self._began = float("nan")
        self._rows: dict[str, tuple[list[int], list[float], list[float], list[int]]] = {}
        self._starts: list[tuple[int, int]] = []
        self._plugins: dict[str, str] = {}
        self._config: dict[str, Any] = {}
        self._skipped = Counter[str]()

    def add(self, record: bytes) -> bool:
        """Add the content of a record; return False if its bytes are not an event."""
        try:
            event = event_pb2.Event.FromString(record)
        except DecodeError:
            return False
        if not self.records:
            self._began = event.wall_time
        self.records += 1
        self.end += len(record) + _FRAME
        if event.HasField("summary"):
            for value in event.summary.value:
                self._value(event, value)
        elif event.HasField("session_log"):
            if event.session_log.status == event_pb2.SessionLog.START:
                self._starts.append((self.records, event.step))
        elif kind := event.WhichOneof("what"):
            # Every file starts with its version, which nobody misses.
            self._skipped[kind] += kind != "file_version"
        return True

    def _value(self, event: Any, value: Any) -> None:
        kind = value.WhichOneof("value")
        number = value.simple_value if kind == "simple_value" else None
        # TensorFlow 2 writes scalars as tensors of the plugin "scalars".
        if kind != "simple_value":
            plugin = self._plugin(value)
            if plugin == _HPARAMS:
                self._config |= _hyperparameters(value.metadata.plugin_data.content)
                return
            if kind == "tensor" and plugin == _SCALARS:
                number = _number(value.tensor)
        if number is None:
            self._skipped[self._plugins.get(value.tag) or kind or "nothing"] += 1
            return
        steps, wall_times, values, record_numbers = self._rows.setdefault(value.tag, ([], [], [], []))
        steps.append(event.step)
        wall_times.append(event.wall_time)
        values.append(number)
        record_numbers.append(self.records)

    def _plugin(self, value: Any) -> str:
        """Return the plugin that a tag belongs to; only the first value of a tag has to name it."""
        metadata = value.metadata
        name = metadata.plugin_data.plugin_name
        # Newer writers declare the class of the data, and plugins of other names then contain scalars as well.
        if metadata.data_class == summary_pb2.DATA_CLASS_SCALAR:
            name = _SCALARS
        return self._plugins.setdefault(value.tag, name) if name else self._plugins.get(value.tag, "")

    def result(self, path: Path, damage: str) -> EventFile:
        """Return the collected content."""
        rows = self._rows.items()
        return EventFile(
            path=path,
            records=self.records,
            began=self._began,
            steps={tag: np.array(steps, np.int64) for tag, (steps, _, _, _) in rows},
            wall_times={tag: np.array(wall_times, np.float64) for tag, (_, wall_times, _, _) in rows},
            values={tag: np.array(values, np.float64) for tag, (_, _, values, _) in rows},
            record_numbers={tag: np.array(numbers, np.int64) for tag, (_, _, _, numbers) in rows},
            starts=tuple(self._starts),
            config=self._config,
            skipped={kind: count for kind, count in self._skipped.items() if count},
            damage=damage,
        )


def _number(tensor: TensorProto) -> float | None:
    """Return the value of a tensor with one number; None for several numbers and for other types."""
    # A shape without dimensions, or with dimensions of 1 only, has one element.
    if any(dimension.size != 1 for dimension in tensor.tensor_shape.dim) or tensor.dtype not in _TYPES:
        return None
    # Writers choose: packed bytes, or a repeated field that depends on the type.
    if tensor.tensor_content:
        numbers = np.frombuffer(tensor.tensor_content, _TYPES[tensor.dtype])
    else:
        entries = next((entries for name in _VALUE_FIELDS if len(entries := getattr(tensor, name))), ())
        # half_val stores the 16 bits of each number as an integer.
        numbers = np.array(entries, np.uint16).view(np.float16) if tensor.half_val else np.array(entries, np.float64)
    # TensorFlow omits a plain 0.
    return float(numbers[0]) if len(numbers) == 1 else None if len(numbers) else 0.0


def _hyperparameters(content: bytes) -> dict[str, Any]:
    """Return the hyperparameters in a record of TensorBoard's plugin; empty if the record is of another kind."""
    try:
        data = plugin_data_pb2.HParamsPluginData.FromString(content)
    except DecodeError:
        return {}
    values = data.session_start_info.hparams
    return {name: getattr(values[name], values[name].WhichOneof("kind") or "", None) for name in values}
