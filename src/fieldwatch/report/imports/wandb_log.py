"""Records of a W&B run file (``run-*.wandb``), read without the wandb package.

The file is a log in LevelDB's format: blocks of 32 KiB, filled with parts of records. Each part has a head of 7 bytes:
checksum (CRC-32 of type and content), length, and type (a whole record, or the first, a middle or the last part of
one). A record is a protobuf message, of which only a few fields matter here.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fieldwatch.base import InputError, protobuf

_BLOCK = 1 << 15
_HEAD = struct.Struct("<IHB")
_FILE_HEAD = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_WHOLE, _FIRST, _MIDDLE, _LAST = range(1, 5)
# Field numbers of HistoryItem and ConfigItem in wandb_internal.proto.
_KEY = 1
_NESTED_KEY = 2
_BOOLEAN, _INTEGER, _NUMBER, _TEXT, _JSON_TEXT = range(4, 9)
_JSON = 16


class DamagedLog(InputError):  # noqa: N818  named after the finding
    """A part of the file is damaged or missing."""


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """A record of the kinds that an import needs.

    Attributes:
        kind: history (one call of `log`), config, metric (a declared axis), run (the description) or exit.
        values: values of a history or config record by key; for the other kinds, the fields that are needed.
    """

    kind: str
    values: dict[str, Any]


def log_records(path: Path) -> Iterator[LogRecord]:
    """Yield the records of a file in order.

    Raises:
        DamagedLog: the file is no W&B run file, or is damaged or truncated from here on.
    """
    data = path.read_bytes()
    if not data:
        raise DamagedLog("the file is empty: expected the records of a W&B run; its program wrote none")
    if not data.startswith(_FILE_HEAD):
        raise DamagedLog("the file does not begin as a W&B run file does: expected a file run-*.wandb")
    for message in _messages(data):
        try:
            record = _record(message)
        except (IndexError, ValueError, struct.error) as error:
            raise DamagedLog(f"a record is no W&B record ({error}): expected an intact file run-*.wandb") from error
        if record is not None:
            yield record


def _messages(data: bytes) -> Iterator[bytes]:
    parts: list[bytes] = []
    at = len(_FILE_HEAD)
    while at < len(data):
        left = _BLOCK - at % _BLOCK
        # Too few bytes for a head: the writer fills the block with zeros.
        if left < _HEAD.size:
            at += left
            continue
        where = f"at byte {at:,} of {len(data):,}"
        if at + _HEAD.size > len(data):
            raise DamagedLog(f"the file ends in the middle of a record {where}")
        checksum, length, kind = _HEAD.unpack_from(data, at)
        content = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(content) < length:
            raise DamagedLog(f"the file ends in the middle of a record {where}")
        if zlib.crc32(content, zlib.crc32(bytes([kind]))) != checksum:
            raise DamagedLog(f"a record has the wrong checksum {where}")
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or (kind in (_WHOLE, _FIRST)) == bool(parts):
            raise DamagedLog(f"a part of a record is missing {where}")
        parts.append(content)
        at += _HEAD.size + length
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
            parts.clear()
    if parts:
        raise DamagedLog(f"the file ends in the middle of a record, before byte {len(data):,}: expected its last part")


def _record(message: bytes) -> LogRecord | None:
    for number, content in protobuf.all_fields(message):
        if not isinstance(content, bytes):
            continue
        match number:
            case 2:  # history: items in field 1, the step in field 2
                values = _items(content, 1)
                step = protobuf.fields(content).get(2)
                if isinstance(step, bytes):
                    values.setdefault("_step", protobuf.fields(step).get(1, 0))
                return LogRecord(kind="history", values=values)
            case 5:  # config: updates in field 1
                return LogRecord(kind="config", values=_items(content, 1))
            case 12:  # metric: name, glob name, step metric
                fields = protobuf.fields(content)
                name = _text(fields, 1) or _text(fields, 2)
                return LogRecord(kind="metric", values={"name": name, "axis": _text(fields, 4)})
            case 17:  # run: id, project, config, display name
                fields = protobuf.fields(content)
                config = fields.get(4, b"")
                names = {"id": _text(fields, 1), "project": _text(fields, 3), "name": _text(fields, 8)}
                known = _items(config, 1) if isinstance(config, bytes) else {}
                return LogRecord(kind="run", values={**names, "config": known})
            case 18:  # exit: exit code
                return LogRecord(kind="exit", values={"code": protobuf.fields(content).get(1, 0)})
            case _:
                pass
    return None


def _items(message: bytes, number: int) -> dict[str, Any]:
    """Return the values of the items in a repeated field by key; an item with a nested key is put into mappings."""
    values: dict[str, Any] = {}
    for field, item in protobuf.all_fields(message):
        if field != number or not isinstance(item, bytes):
            continue
        parts = list(protobuf.all_fields(item))
        fields = dict(parts)
        nested = [part.decode() for each, part in parts if each == _NESTED_KEY and isinstance(part, bytes)]
        *outer, key = nested or [_text(fields, _KEY)]
        inner = values
        for name in outer:
            inner = cast("dict[str, Any]", inner.setdefault(name, {}))
            if not isinstance(inner, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  a file may hold both
                raise ValueError(f"{'.'.join(nested)} is both a value and a mapping")  # noqa: TRY004  the data is wrong, not the caller
        inner[key] = _value(fields)
    return values


def _value(fields: dict[int, int | bytes]) -> Any:
    for number in (_JSON, _JSON_TEXT):
        text = fields.get(number)
        if isinstance(text, bytes):
            # W&B writes NaN and Infinity, as Python's json does.
            return json.loads(text)
    number = fields.get(_NUMBER)
    if isinstance(number, bytes):
        return struct.unpack("<d", number)[0]
    integer = fields.get(_INTEGER)
    if isinstance(integer, int):
        return integer - (1 << 64) if integer >> 63 else integer
    if _BOOLEAN in fields:
        return bool(fields[_BOOLEAN])
    return _text(fields, _TEXT) if _TEXT in fields else None


def _text(fields: dict[int, int | bytes], number: int) -> str:
    value = fields.get(number, b"")
    return value.decode() if isinstance(value, bytes) else ""
