"""At any moment of a run, a follower has the same history as a reader of the complete files."""

import shutil

import numpy as np
import pytest

from fieldwatch.record import (
    EVENTS,
    JOURNAL,
    DamageTally,
    EventLog,
    History,
    Journal,
    follow,
    read_events,
    read_history,
)
from fieldwatch.record.lines import NO_JSON


@pytest.fixture
def followed(tmp_path):
    """Return a folder, and a function that polls it and compares the result with a full read."""
    folder = tmp_path / "run"
    follower = follow(folder)
    history = History(None)
    events = []

    def look():
        news = follower.poll()
        news.apply_to(history)
        if news.replaced:
            events.clear()
        if news.events_from is not None:
            events[:] = [event for event in events if event["step"] < news.events_from]
        events.extend(news.events)
        if folder.is_dir():
            whole = read_history(folder)
            assert history.names() == whole.names()
            for name in whole.names():
                np.testing.assert_array_equal(history[name].steps, whole[name].steps)
                np.testing.assert_array_equal(history[name].values, whole[name].values)
            assert events == list(read_events(folder))
            assert history.step == whole.step
        return news

    return folder, look


def test_from_before_the_folder_to_two_resumes(followed, make_block):
    folder, look = followed
    assert not look()
    folder.mkdir()
    assert not look()
    with Journal(folder) as journal, EventLog(folder) as events:
        assert not look()
        journal.append(make_block(0, 20))
        events.append({"kind": "note", "step": 7})
        assert look().rows == 20
        assert not look()
        journal.append(make_block(20, 30, ("other",)))
        journal.append(make_block(30, 40))
        assert look().rows == 20
        journal.append(make_block(40, 50))
        journal.segment(25)
        news = look()
        assert (news.rows_from, news.events_from, news.rows) == (25, None, 0)
        journal.append(make_block(25, 33))
        events.segment(5)
        news = look()
        assert (news.rows_from, news.events_from, news.rows) == (None, 5, 8)
        journal.segment(31)
        journal.segment(10)
        journal.append(make_block(10, 12))
        events.append({"kind": "note", "step": 6})
        news = look()
        assert (news.rows_from, news.rows, len(news.events)) == (10, 2, 1)


def test_torn_tails_are_left_until_they_are_whole(followed, make_block):
    folder, look = followed
    with Journal(folder) as journal:
        journal.append(make_block(0, 5))
    whole = (folder / JOURNAL).read_bytes()
    with Journal(folder) as journal:
        journal.append(make_block(5, 6))
    line = (folder / JOURNAL).read_bytes()[len(whole) :]
    (folder / JOURNAL).write_bytes(whole)
    assert look().rows == 5
    for end in range(1, len(line)):
        (folder / JOURNAL).write_bytes(whole + line[:end])
        assert not look()
    (folder / JOURNAL).write_bytes(whole + line)
    assert look().rows == 1
    with (folder / JOURNAL).open("ab") as file:
        file.write(b"\0" * 300 + b"\n")
    assert not look()
    with Journal(folder) as journal:
        journal.append(make_block(6, 8))
    assert look().rows == 2


@pytest.mark.parametrize("name", [JOURNAL, EVENTS])
def test_files_that_are_others_begin_anew(followed, make_block, name):
    folder, look = followed
    with Journal(folder) as journal, EventLog(folder) as events:
        journal.append(make_block(0, 20))
        events.append({"kind": "note", "step": 7, "text": "x" * 300})
    look()
    other = folder.with_name("other")
    with Journal(other) as journal, EventLog(other) as events:
        journal.append(make_block(100, 140, ("new",)))
        events.append({"kind": "note", "step": 8, "text": "y" * 400})
    shutil.copyfile(other / name, folder / name)  # same inode, longer file
    assert look().replaced
    assert not look()
    (folder / name).write_bytes(b"")
    assert look().replaced
    (other / name).replace(folder / name)
    look()
    shutil.rmtree(folder)
    assert look().replaced
    assert not look()


def test_a_limit_gives_the_rest_later(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        for first in range(0, 3000, 20):  # so few rows are written as text, which takes more space
            journal.append(make_block(first, first + 20))
        journal.segment(1500)
    follower = follow(tmp_path, limit=20_000)
    history = History(None)
    looks = 0
    while (news := follower.poll()).more:
        news.apply_to(history)
        looks += 1
    news.apply_to(history)
    assert looks > 2
    assert news.rows_from == 1500
    assert history["Loss/total"].steps.tolist() == list(range(1500))


def test_a_damaged_line_is_left_out_and_named_and_read_again_when_it_is_mended(tmp_path, make_block):
    with Journal(tmp_path) as journal:
        journal.append(make_block(0, 5))
    follower = follow(tmp_path)
    assert follower.poll().rows == 5
    whole = (tmp_path / JOURNAL).read_bytes()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b"[0,5\n" + whole.splitlines()[-1] + b"\n")
    news = follower.poll()
    assert news.rows == 1
    assert [(one.file, one.lines, one.first, one.problem) for one in news.damage] == [(JOURNAL, 1, 7, NO_JSON)]
    (tmp_path / JOURNAL).write_bytes(whole)
    news = follower.poll()
    assert (news.replaced, news.rows, news.damage) == (True, 5, ())


@pytest.mark.parametrize("line", ["12", '{"kind":"note"}', '{"kind":"note","step":"7"}', '{"kind":"note","step":true}'])
def test_what_is_no_event_is_left_out_and_named(tmp_path, line):
    (tmp_path / EVENTS).write_text(f'{line}\n{{"kind":"note","step":1}}\n')
    damage = DamageTally()
    assert [event["step"] for event in read_events(tmp_path, damage)] == [1]
    news = follow(tmp_path).poll()
    assert [event["step"] for event in news.events] == [1]
    for found in (damage.entries, news.damage):
        assert [(one.file, one.lines, one.first) for one in found] == [(EVENTS, 1, 1)]
        assert "an event" in found[0].problem
