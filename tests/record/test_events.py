import dataclasses
import math

import numpy as np
import pytest

from fieldwatch.record import EVENTS, DamageTally, EventLog, read_events, read_history


def test_events_come_back_in_order_with_non_finite_numbers_named(tmp_path):
    with EventLog(tmp_path) as events:
        events.append({"kind": "finding", "step": 3, "seconds": 1.0, "value": math.nan, "inner": {"a": [math.inf, 1]}})
        events.append({"kind": "note", "step": np.int64(4), "array": np.array([1.0, -math.inf])})
        events.flush()
        events.flush(fsync=True)
    first, second = read_events(tmp_path)
    assert first == {"kind": "finding", "step": 3, "seconds": 1.0, "value": "nan", "inner": {"a": ["inf", 1]}}
    assert second == {"kind": "note", "step": 4, "array": [1.0, "-inf"]}


@pytest.mark.parametrize("step", [None, -1, 1.5, True, "3"])
def test_event_without_a_step_is_refused(tmp_path, step):
    with EventLog(tmp_path) as events, pytest.raises(ValueError, match=f"event 'note': step must be .* got {step!r}"):
        events.append({"kind": "note", "step": step})


def test_event_without_a_kind_or_with_strange_values_is_refused(tmp_path):
    @dataclasses.dataclass
    class Odd:
        value: complex = 1j

    with EventLog(tmp_path) as events:
        with pytest.raises(ValueError, match=r"kind must be .*'finding'.* got None"):
            events.append({"step": 1})
        with pytest.raises(TypeError, match=r"event 'note'.*: use numbers"):
            events.append({"kind": "note", "step": 1, "odd": Odd()})
    assert (tmp_path / EVENTS).read_bytes() == b""


def test_resume_voids_later_events(tmp_path):
    with EventLog(tmp_path) as events:
        for step in (1, 5, 9):
            events.append({"kind": "note", "step": step, "try": 1})
        events.segment(5)
        events.append({"kind": "note", "step": 5, "try": 2})
    with EventLog(tmp_path) as events:
        events.segment(5)
        events.append({"kind": "note", "step": 7, "try": 3})
    assert [(event["step"], event["try"]) for event in read_history(tmp_path).events("note")] == [(1, 1), (7, 3)]
    assert (tmp_path / EVENTS).read_bytes().count(b'{"segment":3') == 1


def test_torn_event_is_dropped_and_a_corrupt_one_named(tmp_path):
    with EventLog(tmp_path) as events:
        events.append({"kind": "note", "step": 1})
        events.append({"kind": "note", "step": 2})
    path = tmp_path / EVENTS
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert [event["step"] for event in read_events(tmp_path)] == [1]
    path.write_bytes(b'{"kind":"note"}\n' + whole)
    damage = DamageTally()
    assert [event["step"] for event in read_events(tmp_path, damage)] == [1, 2]
    (found,) = damage.entries
    assert (found.file, found.lines, found.first) == ("events.jsonl", 1, 1)
    assert found.problem == "has no checksum"
    path.write_bytes(b'{"kind":"note"}\n{"kind":"note","step":3}\n')  # as a version without checksums wrote them
    damage = DamageTally()
    assert [event["step"] for event in read_events(tmp_path, damage)] == [3]
    assert "event whose step" in damage.entries[0].problem


@pytest.mark.parametrize("key", ["crc", "segment", "of_segment"])
def test_keys_that_the_file_uses_are_refused(tmp_path, key):
    with EventLog(tmp_path) as events, pytest.raises(ValueError, match=f"'note'.* key '{key}'"):
        events.append({"kind": "note", "step": 1, key: 2})
