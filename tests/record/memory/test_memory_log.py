import pytest

from fieldwatch.record import DamageTally
from fieldwatch.record.memory import MEMORY_LOG, MemoryLog, read_memory_log


def census(step: int, allocated: int = 10) -> dict:
    return {"step": step, "allocated": allocated, "reserved": 20, "owners": {"parameters": {"means": 4}}}


def test_censuses_come_back_in_order_by_folder_or_file(tmp_path):
    with MemoryLog(tmp_path) as log:
        for step in (49, 99):
            log.append(census(step))
        log.flush()
        log.flush(fsync=True)
    assert read_memory_log(tmp_path) == [census(49), census(99)]
    assert read_memory_log(tmp_path / MEMORY_LOG) == [census(49), census(99)]
    assert read_memory_log(tmp_path / "elsewhere") == []


def test_resume_voids_what_it_goes_back_over(tmp_path):
    with MemoryLog(tmp_path) as log:
        for step in (49, 99, 149):
            log.append(census(step, 1))
    with MemoryLog(tmp_path) as log:
        log.segment(80)
        log.append(census(99, 2))
    with MemoryLog(tmp_path) as log:
        log.segment(120)
        log.append(census(149, 3))
    assert [(one["step"], one["allocated"]) for one in read_memory_log(tmp_path)] == [(49, 1), (99, 2), (149, 3)]
    assert b'{"segment":3,' in (tmp_path / MEMORY_LOG).read_bytes()


def test_a_torn_census_is_dropped_at_every_byte(tmp_path):
    with MemoryLog(tmp_path) as log:
        log.append(census(49))
        log.append(census(99))
    path = tmp_path / MEMORY_LOG
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        assert [one["step"] for one in read_memory_log(tmp_path)] == [49]
        with MemoryLog(tmp_path) as log:
            log.append(census(99))
        assert path.read_bytes() == whole


@pytest.mark.parametrize("key", ["step", "allocated", "reserved"])
@pytest.mark.parametrize("value", [None, -1, True, 1.5, "3"])
def test_a_census_without_its_counts_is_refused(tmp_path, key, value):
    with MemoryLog(tmp_path) as log, pytest.raises(ValueError, match=f"a census has {key} {value!r}"):
        log.append(census(1) | {key: value})
    assert read_memory_log(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[]", "is not a census"),
        ('{"step": "x", "allocated": 1, "reserved": 1}', "has step 'x'"),
        ('{"segment": 2}', "is not a segment marker"),
        ("{", "is not a line of JSON"),
    ],
)
def test_a_damaged_line_is_left_out_and_named(tmp_path, line, problem):
    path = tmp_path / MEMORY_LOG
    path.write_text(f'{line}\n{{"step": 3, "allocated": 1, "reserved": 1}}\n')
    damage = DamageTally()
    assert [one["step"] for one in read_memory_log(tmp_path, damage)] == [3]
    (found,) = damage.entries
    assert (found.lines, found.first) == (1, 1)
    assert problem in found.problem
