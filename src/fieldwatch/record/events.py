"""The events of a run: findings, refusals, phases, checkpoints, evaluations, one JSON line each."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

from fieldwatch.record.lines import CHECKSUM, add_checksum
from fieldwatch.record.segments import SEGMENT_KEY, SegmentedFile

EVENTS = "events.jsonl"
_RESERVED_KEYS = {CHECKSUM, SEGMENT_KEY, "segment"}


class EventLog(SegmentedFile):
    """Writer of ``events.jsonl`` in a run's folder.

    An event is a mapping with at least ``kind`` (text) and ``step`` (0-based index of the step during which it
    happened); the rest is the kind's own. Non-finite numbers are written as the strings ``"nan"``, ``"inf"`` and
    ``"-inf"``, like in the journal. Two kinds mean something to :class:`History`: ``phase`` (its step starts a named
    phase) and ``windows`` (``{"windows": {term: [first, last]}}`` declares when each loss term is active).
    A line ``{"segment": 2, "resume": 400, ...}`` voids earlier events with step >= 400. Each line ends with its
    checksum under the key ``crc``; the events of later segments say with ``"of_segment": [2, 400]`` to which they
    belong. Readers leave both keys out.

    Args:
        folder: the run's folder; made if missing.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Path(folder) / EVENTS)

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event.

        Raises:
            ValueError: ``kind`` or ``step`` is missing or of the wrong type, or it has one of the keys ``crc``,
                ``of_segment`` and ``segment``, which the file uses itself.
            TypeError: a value is not a number, text, list or mapping.
        """
        check_event(event)
        refuse_reserved_keys(event["kind"], event)
        try:
            line = orjson.dumps(_plain({**event, **self.segment_fields}), option=orjson.OPT_NON_STR_KEYS)
        except TypeError as error:
            kind = event["kind"]
            raise TypeError(
                f"event '{kind}' holds what JSON cannot ({error}): give numbers, texts, lists or mappings"
            ) from error
        self._file.append(add_checksum(line))


def refuse_reserved_keys(kind: str, facts: Mapping[str, Any]) -> None:
    """Raise ValueError where an event has a key that the file of events uses itself."""
    reserved = facts.keys() & _RESERVED_KEYS
    if reserved:
        raise ValueError(
            f"event '{kind}' came with the key {min(reserved)!r}, which its file uses: choose another name"
        )


def check_event(event: Mapping[str, Any]) -> None:
    """Raise ValueError unless the event says what it is (``kind``) and when it happened (``step``)."""
    kind = event.get("kind")
    step = event.get("step")
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"an event came with kind {kind!r}: wanted a text such as 'finding', 'phase' or 'note'")
    # bool is a subclass of int: True would pass for step 1.
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise ValueError(f"event '{kind}' came with step {step!r}: wanted the 0-based index of the step it happened in")


def _plain(value: Any) -> Any:
    """Turn numpy numbers and arrays into plain ones, and non-finite numbers into their names."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: _plain(item) for key, item in items}
    # `tolist` turns both arrays and numpy scalars into plain Python values.
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    # JSON has no non-finite numbers: orjson would write null and lose which one it was.
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
