"""Which runs beside a run count as earlier ones of the same program on the same data."""

import os

import pytest

from fieldwatch.health.earlier_runs import comparable_runs
from fieldwatch.health.earlier_runs.candidates import MOST_RUNS

LATER = "2026-01-02T04:00:00+00:00"


def names(folder):
    return [each.name for each in comparable_runs(folder)]


def test_a_finished_run_in_the_same_parent_folder_is_one(recorded):
    recorded("a")
    assert names(recorded("b", started=LATER)) == ["a"]


@pytest.mark.parametrize(
    "other",
    [
        {"state": "running"},
        {"state": "failed"},
        {"state": "interrupted"},
        {"started": "2026-01-03T00:00:00+00:00"},
        {"command": ("other.py",)},
        {"about": {"pipeline": "video"}},
        {"command": ("train.py", "--data", "/scenes/b")},
        {"command": ("train.py", "--data=/scenes/b")},
        {"config": {"data": {"folder": "/scenes/b"}}},
        {"config": {"dataset": "cifar"}},
    ],
)
def test_others_are_none(recorded, other):
    recorded("a", **other)
    assert names(recorded("b", started=LATER, command=("train.py",), config={"lr": 1})) == []


def test_settings_and_the_place_of_the_output_may_differ(recorded):
    recorded("a", command=("old/train.py", "--out", "runs/a", "--lr", "1"), config={"lr": 1, "data": "/scenes/a"})
    later = recorded(
        "b", command=("train.py", "--out=runs/b", "--lr", "2"), config={"lr": 2, "data": "/scenes/a"}, started=LATER
    )
    assert names(later) == ["a"]


def test_a_run_that_was_resumed_by_another_command_is_that_of_its_first_one(recorded):
    command = ("fieldwatch", "train", "video", "--data", "/clips/a")
    recorded("a", command=command)
    assert names(recorded("b", command=command, resumed=("fieldwatch", "resume", "runs/b"), started=LATER)) == ["a"]


def test_the_newest_come_first_and_there_are_not_many(recorded):
    for number in range(MOST_RUNS + 2):
        folder = recorded(f"a{number:02d}")
        os.utime(folder / "run.json", (1e9 + number, 1e9 + number))
    assert names(recorded("b", started=LATER)) == [f"a{number:02d}" for number in range(MOST_RUNS + 1, 1, -1)]


def test_long_records_are_not_read_beyond_a_total_size(recorded, monkeypatch):
    size = (recorded("a") / "journal.jsonl").stat().st_size
    recorded("b")
    later = recorded("c", started=LATER)
    assert len(names(later)) == 2
    monkeypatch.setattr("fieldwatch.health.earlier_runs.candidates.MOST_BYTES", int(1.5 * size))
    assert len(names(later)) == 1


def test_a_run_without_a_readable_description_is_compared_with_none(recorded):
    recorded("a")
    later = recorded("b", started=LATER)
    (later / "run.json").write_text("{")
    assert names(later) == []
    (later / "run.json").unlink()
    assert names(later) == []


def test_damaged_and_foreign_folders_are_passed_over(recorded, tmp_path):
    (recorded("a") / "run.json").write_text("{")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "file").write_text("")
    (tmp_path / "runs" / "foreign").mkdir()
    (tmp_path / "runs" / "foreign" / "run.json").write_text('{"tool": "another"}')
    (tmp_path / "runs" / "gone").symlink_to(tmp_path / "nowhere")
    assert names(recorded("b", started=LATER)) == []
