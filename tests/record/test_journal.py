import json
import math
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwatch.record import DAMAGED, JOURNAL, Block, Journal, Row, read_blocks, read_history
from fieldwatch.record.lines import add_checksum
from fieldwatch.record.reading import read_segments

NAMES = ("Loss/total", "Loss/component_pixel", "Time/step")


def block(steps, columns=NAMES, *, axis="step", fill=None, samples=()):
    steps = np.asarray(steps, np.int64)
    values = (
        np.add.outer(steps * 10.0, np.arange(len(columns)))
        if fill is None
        else np.full((len(steps), len(columns)), fill, np.float64)
    )
    return Block(
        axis=axis,
        columns=tuple(columns),
        steps=steps,
        seconds=steps * 0.5,
        positions=steps,
        values=values,
        samples=samples,
    )


def cells(blocks):
    """Return every recorded cell: (axis, step, position, name) to value."""
    return {
        (row.axis, row.step, row.position, name): value
        for one in blocks
        for row in one.rows()
        for name, value in row.values.items()
    }


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


SINGLES = st.floats(width=32)
DOUBLES = st.floats(width=64)


@st.composite
def blocks_of_rows(draw):
    rows = draw(st.integers(1, 5))
    columns = draw(st.integers(1, 4))
    values = draw(st.lists(st.one_of(SINGLES, DOUBLES), min_size=rows * columns, max_size=rows * columns))
    first = draw(st.integers(0, 2**40))
    steps = np.arange(first, first + rows)
    samples = draw(st.one_of(st.just(()), st.tuples(*[st.lists(st.text(max_size=3), max_size=2).map(tuple)] * rows)))
    return Block(
        axis=draw(st.sampled_from(["step", "epoch"])),
        columns=tuple(f"c{i}" for i in range(columns)),
        steps=steps,
        seconds=np.round(draw(st.floats(0, 1e6)) + np.arange(rows), 6),
        positions=steps % 1000,
        values=np.array(values).reshape(rows, columns),
        samples=samples if any(samples) else (),
    )


@settings(max_examples=80, deadline=None)
@given(written=st.lists(blocks_of_rows(), min_size=1, max_size=4))
def test_every_bit_comes_back(written, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with Journal(folder) as journal:
        for one in written:
            journal.append(one)
    before = [row for one in written for row in one.rows()]
    after = [row for one in read_blocks(folder) for row in one.rows()]
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        assert (a.step, a.position, a.axis, a.samples) == (b.step, b.position, b.axis, b.samples)
        assert a.seconds == b.seconds
        assert a.values.keys() == b.values.keys()
        for name, value in a.values.items():
            assert np.float64(value).tobytes() == np.float64(b.values[name]).tobytes() or math.isnan(value)
            assert same(value, b.values[name])


@pytest.mark.parametrize(
    "value", [5e-324, 1e-45, -0.0, 1.7976931348623157e308, 3.4028235e38, math.inf, -math.inf, math.nan]
)
def test_edges_of_the_number_formats(tmp_path, value):
    with Journal(tmp_path) as journal:
        journal.append(block([0], fill=value))
        journal.append(block([1], fill=0.1))
        journal.append(block([2], fill=float(np.float32(0.1))))
    values = read_history(tmp_path)["Loss/total"].values
    assert np.float64(value).tobytes() == values[0].tobytes() or math.isnan(values[0])
    assert values[1:].tolist() == [0.1, float(np.float32(0.1))]


def test_lines_are_as_documented(tmp_path):
    values = np.array([[0.1, np.nan], [0.25, 2.0]])
    values[0, 0] = np.float32(0.1)
    with Journal(tmp_path) as journal:
        for _ in range(2):
            journal.append(
                Block(
                    axis="step",
                    columns=("a", "b"),
                    steps=np.array([7, 8]),
                    seconds=np.array([1.5, 2.5]),
                    positions=np.array([7, 8]),
                    values=values,
                    samples=(("view \u2603",), ()),
                )
            )
        journal.segment(8)
        journal.append(block([8], ("a", "b")))
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    layout = json.loads(lines[0])
    assert layout.pop("crc") == zlib.crc32(b'{"layout":0,"axis":"step","names":["a","b"],"float32":2')
    assert layout == {"layout": 0, "axis": "step", "names": ["a", "b"], "float32": 2}
    body = '[0,7,1.5,7,["view \u2603"],0.1,"nan"'
    assert lines[1] == f"{body},{zlib.crc32(body.encode())}]"
    assert lines[2] == f"[0,8,2.5,8,[],0.25,2.0,{zlib.crc32(b'[0,8,2.5,8,[],0.25,2.0')}]"
    assert len(lines) == 8
    assert list(json.loads(lines[5])) == ["segment", "resume", "started", "crc"]
    assert json.loads(lines[6])["of_segment"] == [2, 8]


def test_column_that_once_needed_float64_stays_so(tmp_path):
    with Journal(tmp_path) as journal:
        for step, value in enumerate([0.5, 0.1, 0.5, 0.1]):
            journal.append(block([step], ("a", "b"), fill=value))
            journal.append(block([step], ("c",), fill=0.25))
    layouts = [line for line in (tmp_path / JOURNAL).read_text().splitlines() if line.startswith("{")]
    assert len(layouts) == 3
    assert read_history(tmp_path)["a"].values.tolist() == [0.5, 0.1, 0.5, 0.1]


def test_empty_blocks_write_nothing(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append(block([]))
        journal.append(Block.of(Row(step=1, seconds=0.0, values={})))
        journal.flush()
        journal.flush(fsync=True)
    assert (tmp_path / JOURNAL).read_bytes() == b""


def test_torn_last_line_at_every_byte_is_dropped_and_cut_before_appending(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append(block(range(3)))
        journal.append(block([3], fill=math.nan, samples=(("a", "b"),)))
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        assert read_history(tmp_path)["Loss/total"].steps.tolist() == [0, 1, 2]
        with Journal(tmp_path) as journal:
            journal.append(block([9]))
        assert read_history(tmp_path)["Loss/total"].steps.tolist() == [0, 1, 2, 9]
    path.write_bytes(whole)
    assert read_history(tmp_path)["Loss/total"].steps.tolist() == [0, 1, 2, 3]


def test_last_line_of_zero_bytes_is_a_torn_one(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append(block(range(3)))
    path = tmp_path / JOURNAL
    path.write_bytes(path.read_bytes() + b"\0" * 70_000 + b"\n")
    assert read_history(tmp_path).step == 2
    with Journal(tmp_path) as journal:
        journal.append(block([3]))
    assert read_history(tmp_path).step == 3


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"[0,1,0.5", "is not a line of JSON"),
        (b"[0,1,0.5,1,[],1.0]", "is not a row of layout 0: expected 9 entries"),
        (b"[5,1,0.5,1,[],1.0,2.0,3.0]", "undeclared layout"),
        (b"[]", "undeclared layout"),
        (b'[0,"one",0.5,1,[],1.0,2.0,3.0,5]', "is not a row of layout 0"),
        (b"[0,1,0.5,1,[],1.0,null,3.0,1]", "does not match its checksum"),
        (add_checksum(b"[0,1,0.5,1,[],1.0,null,3.0]").rstrip(), "not a number"),
        (add_checksum(b'[0,1,0.5,1,[],1.0,"x",3.0]').rstrip(), "not a number"),
        (b'{"layout":1,"axis":"step"}', "has no checksum"),
        (add_checksum(b'{"layout":1,"axis":"step"}').rstrip(), "is not a layout"),
        (add_checksum(b'{"layout":1,"axis":"hour","names":[],"float32":0}').rstrip(), "is not a layout"),
        (add_checksum(b'{"segment":2}').rstrip(), "neither a layout"),
        (b"12", "neither a layout"),
    ],
)
def test_a_damaged_line_in_the_middle_is_left_out_and_told(tmp_path, line, problem):
    with Journal(tmp_path) as journal:
        journal.append(block([0, 1, 2]))
    path = tmp_path / JOURNAL
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[2:]]))
    history = read_history(tmp_path)
    assert history["Loss/total"].steps.tolist() == [0, 1, 2]
    (event,) = history.events(DAMAGED)
    assert (event["file"], event["lines"], event["first"], event["lost_steps"]) == (JOURNAL, 1, 3, 0)
    assert problem in event["message"]


def test_resume_voids_later_rows_but_only_earlier_written_ones(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append(block(range(8), fill=1))
        journal.segment(5)
        journal.append(block(range(5, 9), fill=2))
    with Journal(tmp_path) as journal:
        journal.segment(3)
        journal.append(block(range(3, 5), fill=3))
    series = read_history(tmp_path)["Loss/total"]
    assert series.steps.tolist() == [0, 1, 2, 3, 4]
    assert series.values.tolist() == [1, 1, 1, 3, 3]
    assert [(segment.number, segment.resume) for segment in read_segments(tmp_path)] == [(1, 0), (2, 5), (3, 3)]


def test_negative_resume_is_refused(tmp_path):
    with Journal(tmp_path) as journal, pytest.raises(ValueError, match="resume from a 0-based step index, got -1"):
        journal.segment(-1)


def test_missing_folder_and_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"/absent.*journal\.jsonl"):
        read_history(tmp_path / "absent")
    history = read_history(tmp_path)
    assert (history.step, history.names()) == (-1, ())


def test_full_disk_leaves_a_whole_file(tmp_path, full_disk):
    with Journal(tmp_path) as journal:
        journal.append(block(range(3)))
        with full_disk((tmp_path / JOURNAL).stat().st_size + 100), pytest.raises(OSError, match="File too large"):
            journal.append(block(range(3, 30), columns=("other", "names")))
        journal.append(block(range(3, 5), columns=("other", "names")))
    assert read_history(tmp_path)["other"].steps.tolist() == [3, 4]


@pytest.mark.usefixtures("unchecked")
def test_reading_keeps_memory_flat(tmp_path):
    with Journal(tmp_path) as journal:
        for start in range(0, 20_000, 500):
            journal.append(block(range(start, start + 500), NAMES[:1], fill=0.5))
    tracemalloc.start()
    history = read_history(tmp_path, capacity=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert history["Loss/total"].steps.tolist() == list(range(19_900, 20_000))
    assert peak < 1_500_000
