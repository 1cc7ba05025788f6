"""The event log of a run: findings, refusals, phases, checkpoints and evaluations, one JSON line each."""

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
    """Writer of ``events.jsonl`` in a run folder.

    An event is a mapping with at least ``kind`` (a string) and ``step`` (0-based index of the step in which it
    happened); further keys depend on the kind. Non-finite numbers are written as the strings ``"nan"``, ``"inf"`` and
    ``"-inf"``, as in the journal. :class:`History` interprets two kinds: ``phase`` starts a named phase at its step,
    and ``windows`` (``{"windows": {term: [first, last]}}``) declares when each loss term is active.

    A line ``{"segment": 2, "resume": 400, ...}`` invalidates earlier events with step >= 400. Each line ends with its
    checksum under the key ``crc``. Events of later segments record their segment as ``"of_segment": [2, 400]``. Readers
    remove both keys.

    Args:
        folder: the run folder; created if missing.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Path(folder) / EVENTS)

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event.

        Raises:
            ValueError: if ``kind`` or ``step`` is missing or has the wrong type, or if the event has one of the
                reserved keys ``crc``, ``of_segment`` and ``segment``.
            TypeError: if a value is not a number, string, list or mapping.
        """
        check_event(event)
        refuse_reserved_keys(event["kind"], event)
        try:
            # Non-string keys are allowed, since events may map steps or ranks to values.
            line = orjson.dumps(_plain({**event, **self.segment_fields}), option=orjson.OPT_NON_STR_KEYS)
        except TypeError as error:
            kind = event["kind"]
            raise TypeError(
                f"event '{kind}' has a value that cannot be written as JSON ({error}): use numbers, strings, lists or "
                "mappings"
            ) from error
        self._file.append(add_checksum(line))


def refuse_reserved_keys(kind: str, facts: Mapping[str, Any]) -> None:
    """Raise ValueError if an event has a key that is reserved by the file format."""
    reserved = facts.keys() & _RESERVED_KEYS
    if reserved:
        raise ValueError(
            f"event '{kind}' has the key {min(reserved)!r}, which is reserved by the event log: choose another name"
        )


def check_event(event: Mapping[str, Any]) -> None:
    """Raise ValueError unless the event has a valid ``kind`` (what happened) and ``step`` (when)."""
    kind = event.get("kind")
    step = event.get("step")
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"event kind must be a non-empty string such as 'finding' or 'phase', got {kind!r}")
    # bool is a subclass of int: True would pass for step 1.
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
        raise ValueError(f"event '{kind}': step must be a 0-based step index, got {step!r}")


def _plain(value: Any) -> Any:
    """Convert numpy scalars and arrays to plain Python values, and non-finite numbers to their names."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: _plain(item) for key, item in items}
    # `tolist` converts both arrays and numpy scalars.
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    # JSON has no non-finite numbers: orjson would write null for all of them.
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
