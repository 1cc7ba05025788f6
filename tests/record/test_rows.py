"""Bulk parsing and line-by-line parsing of a journal yield the same rows and skip the same lines."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwatch.record import JOURNAL, DamageTally, read_blocks

LAYOUTS = (
    b'{"layout":0,"axis":"step","names":["a","b"],"float32":1}',
    b'{"layout":1,"axis":"epoch","names":["c"],"float32":0}',
)
WIDTH = {0: 7, 1: 6}
NAMED = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def one_by_one(lines):
    """Return valid rows and numbers of damaged lines, from the simplest possible implementation."""
    parsed = []
    known = declared(lines)
    damaged = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line, parse_constant=int)
        except ValueError:
            value = None
        if is_line(value, known):
            parsed.append(value)
        else:
            damaged.append(number)
    rows = []
    limit = np.inf
    for row in reversed(parsed):
        if isinstance(row, dict):
            limit = min(limit, row.get("resume", np.inf))
        elif row[1] < limit:
            values = [NAMED.get(value, value) for value in row[5:]]
            if row[0] == 0:
                with np.errstate(over="ignore"):
                    values[0] = float(np.float32(values[0]))
            rows.append((row[0], row[1], row[2], row[3], tuple(row[4]), [float(value) for value in values]))
    return rows[::-1], damaged


def declared(lines):
    """Return the layouts declared in the lines."""
    return {0, 1} if LAYOUTS[1] in lines else {0} if LAYOUTS[0] in lines else {1}


def is_line(line, known):
    if isinstance(line, dict):
        known |= {line["layout"]} if "layout" in line else set()
        return "layout" in line or "segment" in line
    if not isinstance(line, list) or not line or type(line[0]) is not int or line[0] not in known:
        return False
    if len(line) != WIDTH[line[0]] or type(line[1]) is not int or type(line[3]) is not int:
        return False
    if type(line[2]) not in {int, float} or type(line[4]) is not list or any(type(n) is not str for n in line[4]):
        return False
    return all(type(value) in {int, float} or (type(value) is str and value in NAMED) for value in line[5:])


def at_once(folder, lines):
    """Return the same results, from the reader under test."""
    (folder / JOURNAL).write_bytes(b"".join(line + b"\n" for line in lines))
    damage = Numbers()
    rows = [
        (int(row.axis == "epoch"), row.step, row.seconds, row.position, row.samples, list(row.values.values()))
        for block in read_blocks(folder, damage)
        for row in block.rows()
    ]
    return rows, damage.numbers


class Numbers(DamageTally):
    """A counter that also keeps the number of every damaged line."""

    def __init__(self):
        super().__init__()
        self.numbers = []

    def add(self, path, number, problem):
        super().add(path, number, problem)
        self.numbers.append(number)


FILLER = b'[0,0,0.0,0,["%b"],"nan",1.5]' % (b"long" * 500)
"""Five of these lines fill the first chunk of a journal."""
VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    st.integers(-9, 9).map(str),
    st.sampled_from(['"nan"', '"inf"', '"-inf"', "1e-5"]),
)
NAMES = st.lists(st.sampled_from(["x", "nan", "true", 'a"b', "[", "],[", "null", "\n", "é", ""]), max_size=2)
WRONG = st.sampled_from(
    [
        "true",
        "null",
        '"1.5"',
        '"NaN"',
        "[1.0]",
        "{}",
        '"x"',
        "[]",
        '["nan"]',
        "1.0,2.0",
        "1.0],[2.0",
        "18446744073709551615",
    ]
)
LINES_THAT_ARE_NONE = (
    b"", b"[", b"]", b"[]", b"12", b"null", b"[0,1,1.0,1,[]", b'[0,1,1.0,1,["', b'"],1.0,2.0]', b"1.0,2.0]",
    b"[0,1,1.0,1,[],1.0,2.0],[0,2,2.0,2,[],1.0,2.0]", b"[0,1,1.0,1,[],1.0,2.0],null,[0,2,2.0,2,[],1.0,2.0]",
    b"[0,1,1.0,1,[[]", b"]]", b"[0,1,1.0,1,[],1.0", b"[7,1,1.0,1,[],1.0]", b"[false,1,1.0,1,[],1.0,2.0]", b"{}",
    b"[0,1.5,1.0,1,[],1.0,2.0]", b"[0,1,1.0,1,{},1.0,2.0]", b"[0,1,1.0,1,[null],1.0,2.0]", b"\0\0",
)  # fmt: skip


@st.composite
def rows(draw, value=VALUES):
    layout = draw(st.sampled_from([0, 0, 0, 1]))
    step = draw(st.integers(0, 30))
    names = json.dumps(draw(NAMES))
    values = ",".join(draw(value) for _ in range(WIDTH[layout] - 5))
    return f"[{layout},{step},{step / 4},{step},{names},{values}]".encode()


SEGMENTS = st.integers(0, 30).map(lambda step: b'{"segment":2,"resume":%d,"started":""}' % step)
SOUND = st.one_of(rows(), rows(), rows(), SEGMENTS)
HOSTILE = st.one_of(SOUND, SOUND, SOUND, rows(st.one_of(VALUES, WRONG)), st.sampled_from(LINES_THAT_ARE_NONE))


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(SOUND, max_size=30))
def test_rows_that_are_sound(lines, tmp_path_factory):
    check(tmp_path_factory, [*LAYOUTS, *lines])


@settings(max_examples=120, deadline=None)
@given(lines=st.lists(HOSTILE, max_size=12))
def test_rows_that_are_not(lines, tmp_path_factory):
    check(
        tmp_path_factory, [*LAYOUTS, *lines, LAYOUTS[0]]
    )  # a damaged last line would count as torn, so end with a valid one


def check(factory, lines):
    """Check lines in the first chunk, and again after so many rows that they are in a chunk without layouts."""
    folder = factory.mktemp("run")
    for before in ([], [*LAYOUTS, *[FILLER] * 5]):
        wanted = one_by_one([*before, *lines])
        np.testing.assert_equal(at_once(folder, [*before, *lines]), wanted)


@pytest.mark.parametrize("wrong", [b"true", b"null", b'"1.5"', b"[1.0]", b"{}", b'"nan "'])
@pytest.mark.parametrize("samples", [b"", b'"nan"', b'"true"', rb'"\"nan\""'])
def test_one_wrong_value_among_many_rows_is_named(tmp_path, wrong, samples):
    lines = [LAYOUTS[0], *[FILLER] * 5, *(b'[0,%d,1.0,%d,[%b],0.5,"nan"]' % (i, i, samples) for i in range(30))]
    lines[25] = b"[0,24,1.0,24,[%b],0.5,%b]" % (samples, wrong)
    assert at_once(tmp_path, lines)[1] == [26]
    lines[20] = b"[0,20,1.0,20,[],0.5"
    rows, damaged = at_once(tmp_path, lines)
    assert damaged == [21, 26]
    assert [row[1] for row in rows[5:]] == [i for i in range(30) if i not in (14, 19)]


def test_two_lines_that_only_together_are_json(tmp_path):
    row = b"[0,1,1.0,1,[],0.5,0.5]"
    for first, second in (
        (b"[0,1,1.0,1,[]", b"0.5,0.5]"),
        (b'[0,1,1.0,1,["a', b'b"],0.5,0.5]'),
        (b"[0,1,1.0,1,[[]", b"],2,3]"),
    ):
        filler = [FILLER] * 5
        extra = b"[0,1,1.0,1,[],0.5,0.5],null,[0,1,1.0,1,[],0.5,0.5]"
        for lines, wrong in (
            ([first, second, row], [7, 8]),
            ([first, second, extra, row], [7, 8, 9]),
            ([extra, first, second, row], [7, 8, 9]),
        ):
            rows, damaged = at_once(tmp_path, [LAYOUTS[0], *filler, *lines])
            assert (len(rows), damaged) == (6, wrong)


def test_blocks_have_at_most_512_rows_whatever_their_length(tmp_path):
    lines = [LAYOUTS[1], *(b"[1,%d,1,%d,[],1]" % (i, i) for i in range(3000))]
    lines += [b'[1,%d,1,%d,["%b"],1]' % (i, i, b"x" * (i % 90) * 100) for i in range(3000, 3300)]
    (tmp_path / JOURNAL).write_bytes(b"\n".join(lines) + b"\n")
    blocks = list(read_blocks(tmp_path))
    assert max(map(len, blocks)) <= 512
    assert np.concatenate([block.steps for block in blocks]).tolist() == list(range(3300))


@pytest.mark.parametrize(
    "layout",
    [
        b'{"layout":[],"axis":"step","names":["a"],"float32":0}',
        b'{"layout":true,"axis":"step","names":["a"],"float32":0}',
        b'{"layout":0,"axis":"step","names":"ab","float32":0}',
        b'{"layout":0,"axis":"step","names":[1],"float32":0}',
        b'{"layout":0,"axis":"step","names":["a"],"float32":-1}',
        b'{"layout":0,"axis":"step","names":["a"],"float32":"1"}',
    ],
)
def test_layout_of_other_types_is_named(tmp_path, layout):
    (tmp_path / JOURNAL).write_bytes(layout + b"\n" + LAYOUTS[0] + b"\n")
    damage = DamageTally()
    assert list(read_blocks(tmp_path, damage)) == []
    (found,) = damage.entries
    assert (found.lines, found.first) == (1, 1)
    assert "not a layout" in found.problem
