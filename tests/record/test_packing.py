"""Packed rows come back bit for bit, take little space, and are lost only together."""

import json
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwatch.record import DAMAGED, JOURNAL, Block, Journal, follow, read_blocks, read_history
from fieldwatch.record.lines import add_checksum
from fieldwatch.record.packing import LEAST_ROWS, MOST_ROWS
from fieldwatch.record.reading import read_segments


def packed_lines(folder):
    return [line for line in (folder / JOURNAL).read_bytes().split(b"\n") if line.startswith(b'{"packed"')]


@st.composite
def long_blocks(draw):
    rows = draw(st.integers(LEAST_ROWS, LEAST_ROWS + 9))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    steps = draw(st.integers(0, 2**40)) + np.cumsum(rng.integers(0, 3, rows))
    values = rng.standard_normal((rows, draw(st.integers(1, 5)))) * 10.0 ** draw(st.integers(-300, 300))
    singles = draw(st.booleans())
    with np.errstate(over="ignore", under="ignore"):
        values = values.astype(np.float32).astype(np.float64) if singles else values
    values[rng.random(values.shape) < 0.1] = draw(st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 5e-324]))
    names = [tuple(f"view é{k}" for k in range(rng.integers(0, 3))) for _ in range(rows)]
    return Block(
        axis=draw(st.sampled_from(["step", "epoch"])),
        columns=tuple(f"c{k}" for k in range(values.shape[1])),
        steps=steps,
        seconds=np.round(draw(st.floats(0, 1e6)) + np.cumsum(rng.random(rows)), 6),
        positions=steps if draw(st.booleans()) else rng.integers(0, 2**50, rows),
        values=values,
        samples=tuple(names) if draw(st.booleans()) and any(names) else (),
    )


@settings(max_examples=60, deadline=None)
@given(written=st.lists(long_blocks(), min_size=1, max_size=3))
def test_every_bit_comes_back(written, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with Journal(folder) as journal:
        for block in written:
            journal.append(block)
    assert len(packed_lines(folder)) == len(written)
    before = [row for block in written for row in block.rows()]
    after = [row for block in read_blocks(folder) for row in block.rows()]
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        assert (a.step, a.position, a.axis, a.samples, a.seconds) == (b.step, b.position, b.axis, b.samples, b.seconds)
        # Float32 columns come first in a layout, so the order of the names may differ.
        assert a.values.keys() == b.values.keys()
        pairs = np.array([(value, b.values[name]) for name, value in a.values.items()])
        np.testing.assert_array_equal(pairs[:, 0], pairs[:, 1])
        signs = np.signbit(pairs[~np.isnan(pairs[:, 0])])
        assert (signs[:, 0] == signs[:, 1]).all()


def noisy(first, last, columns=24):
    steps = np.arange(first, last)
    values = np.exp(0.1 * np.random.default_rng(first).standard_normal((len(steps), columns)))
    return Block(
        axis="step",
        columns=tuple(f"Loss/component_{k:02d}" for k in range(columns)),
        steps=steps,
        seconds=np.round(steps * 0.0213 + 1e-4 * values[:, 0], 6),
        positions=steps,
        values=values.astype(np.float32).astype(np.float64),
    )


def test_a_row_of_24_scalars_takes_at_most_150_bytes(tmp_path):
    with Journal(tmp_path) as journal:
        for first in range(0, 6400, 64):
            journal.append(noisy(first, first + 64))
    assert (tmp_path / JOURNAL).stat().st_size / 6400 <= 150


def test_lines_are_as_documented(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append(noisy(128, 192, columns=2))
    (line,) = packed_lines(tmp_path)
    body, _, checksum = line.rpartition(b",")
    assert zlib.crc32(body) == int(checksum.removeprefix(b'"crc":')[:-1])
    fields = json.loads(line)
    assert (fields["packed"], fields["rows"], fields["step"]) == (0, 64, 128)


def test_few_rows_are_text(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        journal.append(make_block(0, LEAST_ROWS - 1))
    assert not packed_lines(tmp_path)
    assert (tmp_path / JOURNAL).read_bytes().count(b"\n[") == LEAST_ROWS - 1


def test_long_blocks_take_several_lines(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        journal.append(make_block(0, 2 * MOST_ROWS + LEAST_ROWS))
    assert len(packed_lines(tmp_path)) == 3
    assert read_history(tmp_path, None)["Loss/total"].steps.tolist() == list(range(2 * MOST_ROWS + LEAST_ROWS))


def test_times_beyond_whole_microseconds_are_text(tmp_path, make_block):
    block = make_block(0, 64)
    block.seconds[3] = 2.0**40
    with Journal(tmp_path) as journal:
        journal.append(block)
    assert not packed_lines(tmp_path)
    assert read_history(tmp_path)["Loss/total"].seconds[3] == 2.0**40


def test_a_flipped_bit_loses_its_line_alone_and_is_told(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        for first in range(0, 256, 64):
            journal.append(make_block(first, first + 64))
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    start = whole.index(packed_lines(tmp_path)[1])
    for place in range(start, start + len(packed_lines(tmp_path)[1]), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        history = read_history(tmp_path)
        assert history["Loss/total"].steps.tolist() == [*range(64), *range(128, 256)]
        (event,) = history.events(DAMAGED)
        assert (event["lines"], event["lost_steps"]) == (1, 64)


@pytest.mark.parametrize(
    "change",
    [
        {"packed": 7},
        {"packed": True},
        {"rows": 0},
        {"rows": 65},
        {"rows": MOST_ROWS + 1},
        {"rows": "64"},
        {"step": 0.5},
        {"step": 2**63},
        {"data": "?"},
        {"data": ""},
        {"data": 5},
        {"more": 1},
    ],
)
def test_a_line_with_a_valid_checksum_that_is_no_row_is_left_out(tmp_path, make_block, change):
    with Journal(tmp_path) as journal:
        journal.append(make_block(0, 64))
    path = tmp_path / JOURNAL
    fields = json.loads(packed_lines(tmp_path)[0]) | change
    del fields["crc"]
    path.write_bytes(path.read_bytes() + add_checksum(json.dumps(fields).encode()))
    history = read_history(tmp_path)
    assert history["Loss/total"].steps.tolist() == list(range(64))
    assert history.events(DAMAGED)[0]["lines"] == 1


def test_rows_of_an_abandoned_branch_are_void(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        journal.append(make_block(0, 100))
    with Journal(tmp_path) as journal:
        journal.segment(40)
        journal.append(make_block(40, 80))
    assert read_history(tmp_path)["Loss/total"].steps.tolist() == list(range(80))
    assert [(one.number, one.resume) for one in read_segments(tmp_path)] == [(1, 0), (2, 40)]
    lines = (tmp_path / JOURNAL).read_bytes().split(b"\n")
    kept = [line for line in lines if not line.startswith(b'{"segment"')]
    (tmp_path / JOURNAL).write_bytes(b"\n".join(kept))
    assert read_history(tmp_path)["Loss/total"].steps.tolist() == list(range(80))


def test_rows_can_be_followed_beside_text(tmp_path, make_block):
    follower = follow(tmp_path)
    with Journal(tmp_path) as journal:
        found = []
        for first, last in ((0, 64), (64, 128), (128, 130), (130, 200)):
            journal.append(make_block(first, last))
            found += [int(step) for block in follower.poll().blocks for step in block.steps]
    assert found == list(range(200))
    assert sum(len(block) for block in read_blocks(tmp_path)) == 200


def test_weighted_terms_and_shares_are_not_stored_but_read(tmp_path):
    columns = ("Loss/total", "Loss/component_a", "Loss/weight_a")
    steps = np.arange(64)
    values = np.stack((steps + 1.0, steps + 0.5, np.full(64, 0.1)), axis=1)
    block = Block(axis="step", columns=columns, steps=steps, seconds=steps * 1.0, positions=steps, values=values)
    with Journal(tmp_path) as journal:
        journal.append(block)
    assert b"share" not in (tmp_path / JOURNAL).read_bytes()
    history = read_history(tmp_path)
    weighted = values[:, 1] * 0.1
    assert history["Loss/weighted_a"].values.tolist() == weighted.tolist()
    assert history["Loss/share_a"].values.tolist() == (weighted / values[:, 0]).tolist()


def test_lines_of_one_layout_become_blocks_of_at_most_512_rows(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        for first in range(0, 6400, 64):
            journal.append(make_block(first, first + 64))
    sizes = [len(block) for block in read_blocks(tmp_path)]
    assert (sum(sizes), max(sizes)) == (6400, 512)
