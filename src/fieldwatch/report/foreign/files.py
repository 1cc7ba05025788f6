"""One event file, record by record: every scalar it holds, and how the file ends."""

# The classes that protobuf generates (and google_crc32c) carry no types, so strict checking ends here.
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
_FRAME = 16
_SCALARS = "scalars"
_HPARAMS = "hparams"
_PLACES = ("float_val", "double_val", "int_val", "int64_val", "half_val", "uint32_val", "uint64_val", "bool_val")
_TYPES: dict[int, Any] = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 9: "<i8", 10: "?", 19: "<f2", 22: "<u4", 23: "<u8"}
"""How numpy reads the content of a tensor, by TensorFlow's number of its type."""


@dataclass(frozen=True, kw_only=True)
class EventFile:
    """What one event file holds.

    Attributes:
        path: where it is.
        records: how many sound records, the first one (the version) included.
        begun: wall time of the first record, seconds since 1970; NaN without one.
        steps: per tag ``[n]`` int64, in the order written.
        walls: per tag ``[n]`` float64, seconds since 1970.
        values: per tag ``[n]`` float64.
        places: per tag ``[n]`` int64, the number of the record that held the value.
        starts: (number of the record, step) of each mark that the run went on from that step.
        config: hyperparameters, where the file tells them.
        others: how many values there are that are no scalars, by what they are.
        damage: what is wrong with the file's end; empty when it is whole.
    """

    path: Path
    records: int
    begun: float
    steps: Mapping[str, NDArray[np.int64]]
    walls: Mapping[str, NDArray[np.float64]]
    values: Mapping[str, NDArray[np.float64]]
    places: Mapping[str, NDArray[np.int64]]
    starts: tuple[tuple[int, int], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)
    damage: str = ""


def read_event_file(path: Path) -> EventFile:
    """Read an event file to its end, or to where it is torn or damaged; every record, no sample of them.

    Raises:
        OSError: the file cannot be read.
    """
    reader = _Reader()
    damage = ""
    with path.open("rb") as file:
        size = path.stat().st_size
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        try:
            for record in _records(data):
                if not reader.take(record):
                    damage = f"record {reader.records + 1} is no event: what follows it was not read"
                    break
            else:
                damage = _damage(data, reader.end)
        finally:
            if isinstance(data, mmap.mmap):
                data.close()
    return reader.result(path, damage)


def _records(data: Any) -> Iterator[bytes]:
    """Yield each sound record; end at the first torn or damaged one."""
    at = 0
    while (length := _length(data, at)) is not None:
        record = data[at + _HEAD : at + _HEAD + length]
        end = at + length + _FRAME
        if len(data) < end or data[end - 4 : end] != _checksum(record):
            return
        yield record
        at = end


def _length(data: Any, at: int) -> int | None:
    head = data[at : at + 8]
    if len(data) < at + _HEAD or data[at + 8 : at + _HEAD] != _checksum(head):
        return None
    return int.from_bytes(head, "little")


def _checksum(content: bytes) -> bytes:
    """Return the masked crc32c that follows a piece of a file of records."""
    # TFRecord's masking: rotated by 15 bits, plus a constant.
    crc = google_crc32c.value(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


def _damage(data: Any, end: int) -> str:
    """Say what stands behind the last sound record; empty when nothing does."""
    left = len(data) - end
    if not left:
        return "" if len(data) else "the file is empty: not even its first record was written"
    length = _length(data, end)
    torn = left < _HEAD or (length is not None and left < length + _FRAME)
    what = "a record that was not written to its end" if torn else "a damaged record (its checksum is wrong)"
    return f"{what} begins at byte {end:,}: the last {left:,} of {len(data):,} bytes were not read"


class _Reader:
    """Collects what the records of one file hold."""

    def __init__(self) -> None:
        self.records = self.end = 0
        self._begun = float("nan")
        self._rows: dict[str, tuple[list[int], list[float], list[float], list[int]]] = {}
        self._starts: list[tuple[int, int]] = []
        self._plugins: dict[str, str] = {}
        self._config: dict[str, Any] = {}
        self._others = Counter[str]()

    def take(self, record: bytes) -> bool:
        """Take a record in; False when its bytes are no event."""
        try:
            event = event_pb2.Event.FromString(record)
        except DecodeError:
            return False
        if not self.records:
            self._begun = event.wall_time
        self.records += 1
        self.end += len(record) + _FRAME
        if event.HasField("summary"):
            for value in event.summary.value:
                self._value(event, value)
        elif event.HasField("session_log"):
            if event.session_log.status == event_pb2.SessionLog.START:
                self._starts.append((self.records, event.step))
        elif kind := event.WhichOneof("what"):
            self._others[kind] += kind != "file_version"
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
            self._others[self._plugins.get(value.tag) or kind or "nothing"] += 1
            return
        steps, walls, values, places = self._rows.setdefault(value.tag, ([], [], [], []))
        steps.append(event.step)
        walls.append(event.wall_time)
        values.append(number)
        places.append(self.records)

    def _plugin(self, value: Any) -> str:
        """Return which plugin a tag belongs to: only its first value has to say."""
        metadata = value.metadata
        name = metadata.plugin_data.plugin_name
        if metadata.data_class == summary_pb2.DATA_CLASS_SCALAR:
            name = _SCALARS
        return self._plugins.setdefault(value.tag, name) if name else self._plugins.get(value.tag, "")

    def result(self, path: Path, damage: str) -> EventFile:
        """Return what was collected."""
        rows = self._rows.items()
        return EventFile(
            path=path,
            records=self.records,
            begun=self._begun,
            steps={tag: np.array(steps, np.int64) for tag, (steps, _, _, _) in rows},
            walls={tag: np.array(walls, np.float64) for tag, (_, walls, _, _) in rows},
            values={tag: np.array(values, np.float64) for tag, (_, _, values, _) in rows},
            places={tag: np.array(places, np.int64) for tag, (_, _, _, places) in rows},
            starts=tuple(self._starts),
            config=self._config,
            others={kind: count for kind, count in self._others.items() if count},
            damage=damage,
        )


def _number(tensor: TensorProto) -> float | None:
    """Return the one number of a tensor; None where it holds none, several, or what is no number."""
    if any(dimension.size != 1 for dimension in tensor.tensor_shape.dim) or tensor.dtype not in _TYPES:
        return None
    if tensor.tensor_content:
        found = np.frombuffer(tensor.tensor_content, _TYPES[tensor.dtype])
    else:
        held = next((held for name in _PLACES if len(held := getattr(tensor, name))), ())
        found = np.array(held, np.uint16).view(np.float16) if tensor.half_val else np.array(held, np.float64)
    return float(found[0]) if len(found) == 1 else None if len(found) else 0.0  # TensorFlow leaves a plain 0 out


def _hyperparameters(content: bytes) -> dict[str, Any]:
    """Return what TensorBoard's own hyperparameter record of a run says; nothing where it says something else."""
    try:
        data = plugin_data_pb2.HParamsPluginData.FromString(content)
    except DecodeError:
        return {}
    values = data.session_start_info.hparams
    return {name: getattr(values[name], values[name].WhichOneof("kind") or "", None) for name in values}
