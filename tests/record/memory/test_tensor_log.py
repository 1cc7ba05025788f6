import re
import resource
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.record.memory import LargeTensor, TensorLog, TensorSnapshot, read_tensor_log
from fieldwatch.record.memory.tensor_log import format_snapshot
from fieldwatch.record.memory.tensor_reading import NotATensorLog

NOON = datetime(2026, 1, 29, 12, 0, 0)  # noqa: DTZ001  the log's own kind of time
ORIGINAL = """
================================================================================
Iteration 40000 | 2026-01-29 13:36:21
================================================================================
Total Tensors: 1267
Allocated: 8073.40 MB | Reserved: 10126.00 MB | Fragmentation: 20.3%

Tensor Categories:
  parameters     :  5224.70 MB
  activations    :  2780.00 MB
  gradients      :    68.70 MB

Data Types:
  float32        :  7549.90 MB
  int64          :   575.00 MB

Large Tensors (>100MB): 7
Top 5 largest:
  1000.12 MB | shape=(4200000, 15, 3) | dtype=float32
  900.00 MB | shape=(4200000, 3) | dtype=float32
  800.00 MB | shape=(4200000, 4) | dtype=float32
  700.00 MB | shape=(70,) | dtype=int64
  600.00 MB | shape=() | dtype=float32
"""


def snapshot(iteration: int = 50, **changes) -> TensorSnapshot:
    whole = {
        "iteration": iteration,
        "time": NOON + timedelta(seconds=iteration),
        "total_tensors": 1267,
        "allocated": 8073.4,
        "reserved": 10126.0,
        "fragmentation": 20.3,
        "categories": {"gradients": 68.7, "parameters": 5224.7},
        "dtypes": {"float32": 7549.9},
        "large_count": 2,
        "largest": (
            LargeTensor(size=900.0, shape="(5, 3)", dtype="float32"),
            LargeTensor(size=200, shape="(7,)", dtype="int8"),
        ),
    }
    return TensorSnapshot(**whole | changes)


def original(iteration: int) -> str:
    return ORIGINAL.replace("40000", str(iteration))


def test_a_snapshot_is_written_in_the_original_grammar():
    largest = tuple(
        LargeTensor(size=size, shape=shape, dtype=dtype)
        for size, shape, dtype in re.findall(r"  ([\d.]+) MB \| shape=(.*) \| dtype=(\w+)", ORIGINAL)
        for size in [float(size)]
    )
    categories = {"gradients": 68.7, "activations": 2780.0, "parameters": 5224.7}
    dtypes = {"int64": 575.0, "float32": 7549.9}
    time = datetime(2026, 1, 29, 13, 36, 21)  # noqa: DTZ001  the log's own kind of time
    one = snapshot(40000, time=time, categories=categories, dtypes=dtypes, large_count=7, largest=largest)
    assert format_snapshot(one) == ORIGINAL


def test_without_large_tensors_there_is_no_list():
    text = format_snapshot(snapshot(large_count=0, large_threshold=64))
    assert text.endswith("Large Tensors (>64MB): 0\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"categories": {"two words": 1.0}}, "must be one word.*'two words'"),
        ({"dtypes": {"a\nIteration 9 | x": 1.0}}, "in a tensor log must be one word"),
        ({"largest": (LargeTensor(size=1, shape="(1)\n", dtype="f"),) * 2}, "cannot be logged"),
        ({"large_count": 3}, "3 large tensors must list the largest 3, got 2"),
    ],
)
def test_what_would_break_the_grammar_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        format_snapshot(snapshot(**changes))


sizes = st.floats(0, 1e6).map(lambda size: round(size, 2))
names = st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,30}", fullmatch=True), sizes, max_size=6)
large = st.builds(
    LargeTensor,
    size=sizes,
    shape=st.lists(st.integers(0, 10**9), max_size=4).map(lambda shape: str(tuple(shape))),
    dtype=st.sampled_from(["float32", "bfloat16", "int64"]),
)
snapshots = st.builds(
    lambda total, held, idle, by, types, threshold, largest: snapshot(
        total_tensors=total,
        allocated=held,
        reserved=held + idle,
        fragmentation=round(100 * idle / (held + idle + 1), 1),
        categories=by,
        dtypes=types,
        large_threshold=threshold,
        large_count=len(largest),
        largest=tuple(largest[:5]),
    ),
    st.integers(0, 10**9), sizes, sizes, names, names, st.integers(1, 1000), st.lists(large, max_size=7),
)  # fmt: skip


@given(st.lists(snapshots, min_size=1, max_size=4))
def test_what_is_written_is_read_back(tmp_path_factory, whole):
    path = tmp_path_factory.mktemp("logs") / "profiles" / "a.log"
    written = [TensorSnapshot(**vars(one) | {"iteration": 50 * i}) for i, one in enumerate(whole)]
    with TensorLog(path) as log:
        for one in written:
            log.append(one)
    table = read_tensor_log(path)
    read = [table.snapshot(row) for row in range(len(table))]
    for one, other in zip(read, written, strict=True):
        differing = {key for key in vars(one) if getattr(one, key) != getattr(other, key)}
        assert differing <= {"reserved"}  # a sum that was rounded
        assert one.reserved == pytest.approx(other.reserved, abs=0.006)
    assert (table.dropped, table.truncated, table.garbage) == ((), False, 0)
    assert [len(values) for values in table.categories.values()] == [len(written)] * len(table.categories)


def test_the_usual_name(tmp_path):
    with TensorLog.in_folder(tmp_path, datetime(2026, 1, 29, 13, 36, 21)) as log:  # noqa: DTZ001  local time
        log.append(snapshot())
        log.flush()
        log.flush(fsync=True)
    assert log.path == tmp_path / "profiles" / "tensor_profile_20260129_133621.log"
    assert len(read_tensor_log(log.path)) == 1


@pytest.mark.parametrize("make", [original, lambda i: format_snapshot(snapshot(i))])
def test_a_log_cut_at_any_byte_of_its_last_snapshot_loses_only_that(tmp_path, make):
    before = make(50) + make(100)
    last = make(150)
    path = tmp_path / "cut.log"
    for cut in range(len(last)):
        path.write_text(before + last[:cut])
        table = read_tensor_log(path)
        assert table.iterations.tolist() == [50, 100], cut
        assert table.allocated.tolist() == [8073.4, 8073.4]
        told = bool(last[:cut].strip())
        assert (table.truncated, len(table.dropped)) == (told, int(told)), cut
        with TensorLog(path) as log:  # a resumed run appends after the last complete snapshot
            log.append(snapshot(200))
        table = read_tensor_log(path)
        assert table.iterations[[0, 1, -1]].tolist() == [50, 100, 200], cut
        assert table.truncated is False


def test_a_log_of_one_cut_snapshot_has_no_rows(tmp_path):
    path = tmp_path / "cut.log"
    path.write_text(ORIGINAL[: ORIGINAL.index("Data Types")])
    table = read_tensor_log(path)
    assert (len(table), table.dropped, table.truncated) == (0, (40000,), True)
    assert len(table.valid()) == 0


def test_a_list_that_the_writer_always_leaves_out_is_not_missed(tmp_path):
    path = tmp_path / "bare.log"
    path.write_text("".join(original(i).split("Top 5")[0] for i in (50, 100)))
    table = read_tensor_log(path)
    assert (len(table), table.truncated) == (2, False)
    assert table.snapshot(-1).largest == ()


def test_windows_line_ends_other_thresholds_and_unknown_names(tmp_path):
    path = tmp_path / "other.log"
    text = original(50).replace(">100MB", "> 64 MB").replace("gradients      ", "kv cache (2)   ")
    path.write_bytes((text + original(100)).replace("\n", "\r\n").encode())
    table = read_tensor_log(path)
    assert table.large_thresholds.tolist() == [64, 100]
    assert {name: values.tolist() for name, values in table.categories.items()} == {
        "parameters": [5224.7, 5224.7],
        "activations": [2780.0, 2780.0],
        "kv cache (2)": [68.7, 0.0],
        "gradients": [0.0, 68.7],
    }
    assert table.snapshot(0).largest[3] == LargeTensor(size=700.0, shape="(70,)", dtype="int64")
    assert table.truncated is False


def test_damage_in_the_middle_is_left_out_and_told(tmp_path):
    path = tmp_path / "damaged.log"
    torn = original(100)[:300]
    path.write_bytes(
        (original(50) + torn + original(150)).encode() + b"\x00\xff garbage \x80\n" + original(200).encode()
    )
    table = read_tensor_log(path)
    assert table.iterations.tolist() == [50, 150, 200]
    assert (table.dropped, table.truncated) == ((100,), False)
    assert table.garbage > 0


def test_iterations_that_go_back_start_a_segment_and_the_later_one_stands(tmp_path):
    path = tmp_path / "resumed.log"
    path.write_text("".join(map(original, (50, 100, 150, 100, 150, 200))))
    table = read_tensor_log(path)
    assert table.segments.tolist() == [0, 0, 0, 1, 1, 1]
    valid = table.valid()
    assert valid.iterations.tolist() == [50, 100, 150, 200]
    assert valid.segments.tolist() == [0, 1, 1, 1]
    assert valid.snapshot(1).iteration == 100


def test_numbers_that_cannot_be_true_are_told(tmp_path):
    path = tmp_path / "implausible.log"
    path.write_text(original(50).replace("8073.40", "-3.00") + original(100).replace("68.70", "nan"))
    implausible = read_tensor_log(path).implausible
    assert any(note.startswith("allocated") and "-3 at iteration 50" in note for note in implausible)
    assert any(note.startswith("gradients") and "nan at iteration 100" in note for note in implausible)


def test_a_time_that_is_none_is_no_error(tmp_path):
    path = tmp_path / "time.log"
    path.write_text(
        original(50).replace("2026-01-29", "2026-13-45") + original(100) + original(150).replace("13:36:21", "?")
    )
    table = read_tensor_log(path)
    assert np.isnat(table.times).tolist() == [True, False, True]
    assert table.snapshot(0).time == datetime.min  # noqa: DTZ901  the log's own kind of time


@pytest.mark.parametrize(
    ("content", "looks"),
    [
        (b"", "is empty"),
        (b'{"step": 3}\n', "looks like JSON"),
        (b"\x80\x04\x95", "looks like a pickle"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"PK\x03\x04", "zip"),
        (ORIGINAL.encode("utf-16"), "UTF-16"),
        (b"\x00\x01\x02" * 100, "is binary"),
        (b"epoch,loss\n1,2\n", "text that begins with 'epoch,loss'"),
        (b"\n\n", "blank"),
    ],
)
def test_what_is_no_log_is_called_what_it_is(tmp_path, content, looks):
    path = tmp_path / "what"
    path.write_bytes(content)
    with pytest.raises(NotATensorLog, match=looks):
        read_tensor_log(path)


def test_a_log_with_thousands_of_names_is_refused(tmp_path):
    path = tmp_path / "names.log"
    names = "".join(f"  c{i}: 1.00 MB\n" for i in range(1000))
    path.write_text(ORIGINAL.replace("  gradients      :    68.70 MB\n", names))
    with pytest.raises(NotATensorLog, match="more than 256 categories"):
        read_tensor_log(path)


def test_a_file_that_is_something_else_is_not_appended_to(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(ValueError, match=r"notes\.txt is not"):
        TensorLog(path)
    assert path.read_text() == "my notes\n"


def test_a_log_that_changed_under_its_table_is_told(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(original(50) + original(100))
    table = read_tensor_log(path)
    path.write_text(original(75) + original(100))
    with pytest.raises(ValueError, match="has changed since"):
        table.snapshot(0)


def test_a_write_that_fails_leaves_the_log_whole(tmp_path):
    with TensorLog(tmp_path / "full.log") as log:
        log.append(snapshot(50))
        whole = log.path.read_bytes()
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100, usual[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                log.append(snapshot(100))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        assert log.path.read_bytes() == whole
        log.append(snapshot(100))
    assert read_tensor_log(log.path).iterations.tolist() == [50, 100]
