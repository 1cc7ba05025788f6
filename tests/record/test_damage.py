"""Damaged lines are detected by their checksum, skipped and counted; invalidated rows do not become valid again."""

import os
import shutil
import zlib
from pathlib import Path

import pytest

from fieldwatch.record import (
    DAMAGED,
    EVENTS,
    JOURNAL,
    DamageTally,
    EventLog,
    Journal,
    Manifest,
    NotARun,
    follow,
    read_blocks,
    read_events,
    read_history,
    read_manifest,
)
from fieldwatch.record.reading import read_segments

OLD = Path(__file__).parent / "old_run"


def lines_of(path):
    return path.read_bytes().split(b"\n")[:-1]


def put(path, lines):
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def test_a_flipped_digit_is_not_read_as_another_number(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        journal.append(make_block(0, 30))
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    truth = dict(zip(*series(tmp_path), strict=True))
    for place in range(whole.index(b"\n[0,7,") + 1, whole.index(b"\n[0,8,")):
        if not chr(whole[place]).isdigit():
            continue
        other = b"%d" % ((whole[place] - 48 + 1) % 10)
        path.write_bytes(whole[:place] + other + whole[place + 1 :])
        shown = dict(zip(*series(tmp_path), strict=True))
        assert shown == {step: value for step, value in truth.items() if step != 7}
        (event,) = read_history(tmp_path).events(DAMAGED)
        assert (event["lines"], event["lost_steps"]) == (1, 1)


def series(folder):
    found = read_history(folder)["Loss/total"]
    return found.steps.tolist(), found.values.tolist()


def test_the_checksum_is_one_that_anybody_can_compute(tmp_path, make_block):
    with Journal(tmp_path) as journal, EventLog(tmp_path) as events:
        journal.append(make_block(0, 3))
        events.append({"kind": "note", "step": 1, "text": "a, b"})
        journal.segment(2)
        events.segment(2)
        events.append({"kind": "note", "step": 2})
    for line in (*lines_of(tmp_path / JOURNAL), *lines_of(tmp_path / EVENTS)):
        body, _, rest = line.rpartition(b",")
        assert int(rest.removeprefix(b'"crc":')[:-1]) == zlib.crc32(body)


def test_a_lost_layout_is_known_from_its_next_declaration(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        for first in range(0, 100, 10):
            journal.append(make_block(first, first + 10))
    path = tmp_path / JOURNAL
    lines = lines_of(path)
    declared = [number for number, line in enumerate(lines) if line.startswith(b"{")]
    assert len(declared) >= 3
    put(path, [b"\xff" + lines[0][1:], *lines[1:]])
    assert series(tmp_path)[0] == list(range(100))
    (event,) = read_history(tmp_path).events(DAMAGED)
    assert (event["lines"], event["first"]) == (1, 1)


@pytest.mark.parametrize("lost", [[0], [0, 1], [0, 1, 2]])
def test_what_a_segment_voided_stays_void_when_its_line_is_damaged(tmp_path, make_block, lost):
    with Journal(tmp_path) as journal, EventLog(tmp_path) as events:
        journal.append(make_block(0, 30))
        events.append({"kind": "note", "step": 25, "try": 1})
    with Journal(tmp_path) as journal, EventLog(tmp_path) as events:
        journal.segment(10)
        events.segment(10)
        for first in range(10, 28):
            journal.append(make_block(first, first + 1))
        events.append({"kind": "note", "step": 11, "try": 2})
    for name in (JOURNAL, EVENTS):
        lines = lines_of(tmp_path / name)
        begin = next(number for number, line in enumerate(lines) if line.startswith(b'{"segment"'))
        for number in lost if name == JOURNAL else [0]:
            lines[begin + number] = b"#" + lines[begin + number]
        put(tmp_path / name, lines)
    first = 10 + max(0, len(lost) - 2)
    kept = [*range(10), *range(first, 28)]
    assert series(tmp_path)[0] == kept  # and nothing of steps 28 and 29, nor of what was there before
    assert [event["try"] for event in read_events(tmp_path)] == [2]
    assert [(one.number, one.resume) for one in read_segments(tmp_path)] == [(1, 0), (2, 10)]
    history = read_history(tmp_path)
    follow(tmp_path).poll().apply_to(history)


def test_a_layout_number_that_was_lost_is_not_given_again(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        journal.append(make_block(0, 5))
        journal.append(make_block(5, 8, ("other",)))
    path = tmp_path / JOURNAL
    lines = lines_of(path)
    put(path, [line for line in lines if not line.startswith(b'{"layout":1')])
    with Journal(tmp_path) as journal:
        journal.append(make_block(8, 10, ("third",)))
    history = read_history(tmp_path)
    assert "other" not in history
    assert history["third"].steps.tolist() == [8, 9]
    assert history.events(DAMAGED)[0]["lines"] == 3


def test_reading_changes_nothing_and_writing_goes_on_behind_the_damage(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        journal.append(make_block(0, 10))
    path = tmp_path / JOURNAL
    lines = lines_of(path)
    damaged = b"\n".join([*lines[:4], lines[4][:-3], *lines[5:9], b"garbage", *lines[9:], b"garbage", b""])
    path.write_bytes(damaged)
    list(read_blocks(tmp_path))
    assert path.read_bytes() == damaged
    with Journal(tmp_path) as journal:
        journal.segment(10)
        journal.append(make_block(10, 12))
    assert path.read_bytes().startswith(damaged)
    assert series(tmp_path)[0] == [0, 1, 2, *range(4, 12)]
    tally = DamageTally()
    list(read_blocks(tmp_path, tally))
    assert (tally.entries[0].lines, tally.entries[0].steps) == (3, 1)


def test_a_folder_of_a_version_without_checksums_opens_and_goes_on(tmp_path, make_block):
    folder = shutil.copytree(OLD, tmp_path / "run")
    history = read_history(folder)
    assert history["Loss/total"].steps.tolist() == list(range(12))
    assert [event["step"] for event in history.events("checkpoint")] == [4, 9, 11]
    assert not history.events(DAMAGED)
    assert read_manifest(folder).config == {"lr": 0.25, "size": 4}
    with Journal(folder) as journal, EventLog(folder) as events:
        journal.segment(12)
        events.segment(12)
        journal.append(make_block(12, 14))
        events.append({"kind": "note", "step": 12})
    assert series(folder)[0] == list(range(14))
    assert not read_history(folder).events(DAMAGED)


def test_every_line_of_an_old_folder_may_be_damaged(tmp_path):
    folder = shutil.copytree(OLD, tmp_path / "run")
    for name in (JOURNAL, EVENTS):
        lines = lines_of(OLD / name)
        for number in range(len(lines)):
            put(folder / name, [*lines[:number], lines[number][:9], *lines[number + 1 :]])
            history = read_history(folder)
            assert history.events(DAMAGED)[-1]["first"] == number + 1
        shutil.copyfile(OLD / name, folder / name)


def test_a_changed_digit_of_run_json_is_noticed(tmp_path):
    Manifest(config={"lr": 0.25, "steps": 100}).write(tmp_path)
    path = tmp_path / "run.json"
    assert read_manifest(tmp_path).config == {"lr": 0.25, "steps": 100}
    path.write_text(path.read_text().replace("0.25", "0.75"))
    with pytest.raises(NotARun, match="hash"):
        read_manifest(tmp_path)


def test_run_json_and_its_name_are_on_the_disk(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr("os.fsync", lambda file: (synced.append(os.fstat(file).st_ino), real(file)))
    Manifest(config={}).write(tmp_path)
    assert synced[-1] == tmp_path.stat().st_ino
    assert (tmp_path / "run.json").stat().st_ino in synced[:-1]
