"""A training under ``--supervise``: killed or hung, it goes on by itself, and says what happened."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fieldwatch import read_history
from fieldwatch.cli.output import BadInput
from fieldwatch.cli.supervise import WatchFlags, is_supervised, resume_arguments, supervise
from fieldwatch.monitor import read_black_box, read_post_mortems
from fieldwatch.record import Manifest
from fieldwatch.record.manifest import new_segment

STEPS = 10 * 7


def test_a_killed_training_goes_on_by_itself_to_its_last_step(frames, tmp_path, start, tiny):
    folder = tmp_path / "run"
    rest = "--epochs 10 --eval-freq 10 --pixel-loss-warmup-epochs 2 --checkpoint-epochs 2 --supervise".split()
    supervisor = start("train", "video", "--data", frames, "--out", folder, *tiny, *rest)
    deadline = time.monotonic() + 120
    beat = None
    while (beat is None or beat.step < 20) and time.monotonic() < deadline:
        time.sleep(0.005)
        beat = read_black_box(folder)
    os.kill(beat.pid, signal.SIGKILL)
    _, said = supervisor.communicate(timeout=240)
    assert supervisor.returncode in (0, 1), said  # so small a network may earn findings
    assert "attempt 1 died in step" in said
    assert "killed" in said
    first, second = [json.loads(line) for line in (folder / "crash/attempts.jsonl").read_text().splitlines()]
    assert (first["cause"], first["status"], second["cause"]) == ("killed", -9, "finished")
    (report,) = read_post_mortems(folder)
    assert report["step"] >= 20
    history = read_history(folder)
    assert history["Loss/total"].steps.tolist() == list(range(STEPS))
    (event,) = history.events("restarted")
    assert (event["attempt"], event["cause"].split(":")[0]) == (2, "killed")


@pytest.fixture
def faults(root_of_torture, monkeypatch):
    monkeypatch.syspath_prepend(str(root_of_torture))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    import faults  # noqa: PLC0415  a script's folder, known here

    yield faults
    for name in ("faults", "rows", "default_hang"):
        sys.modules.pop(name, None)


@pytest.fixture
def root_of_torture():
    return Path(__file__).parents[2] / "benchmarks" / "torture"


def test_a_hang_that_holds_the_interpreter_is_named_and_got_over(faults, tmp_path):
    (result,) = faults.catalogue(tmp_path, ["hang, interpreter held"])
    assert result.wrong == []
    assert result.seconds <= faults.TIMEOUT + faults.LATE


def test_the_catalogue_has_a_toy_for_every_fault(faults):
    names = [fault.name for fault in faults.CATALOGUE]
    assert len(names) == len(set(names)) >= 12
    text = (Path(faults.__file__).with_name("toy_training.py")).read_text()
    assert [name for name in names if f'"{name}": ' not in text] == []


def test_only_trainings_and_resume_are_supervised():
    assert is_supervised("train video", ["--epochs", "3", "--supervise"])
    assert is_supervised("mesh refine", ["run", "mesh.ply", "--supervise"])
    assert not is_supervised("train video", ["--supervise", "--help"])
    assert not is_supervised("train video", ["--no-supervise"])
    assert not is_supervised("eval", ["runs/a", "--supervise"])


def test_a_restart_goes_on_with_the_folder_of_the_first_start():
    words = ["--data", "frames", "--resume", "never", "--out=old", "--resume=must"]
    assert resume_arguments(words, Path("runs/a")) == [
        *("--data", "frames", "--out=old"),
        *("--resume", "auto", "--out", "runs/a"),
    ]


def test_a_restart_goes_back_to_the_chosen_checkpoint_only_until_training_has_begun_there(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    started = []

    class Restarts:
        """Stands in for the supervisor: three starts, the second of which begins to train."""

        def __init__(self, command, **_):
            self.command = command

        def run(self):
            started.append(self.command(None))
            started.append(self.command(folder))
            Manifest(config={}, segments=(new_segment(0), new_segment(40))).write(folder)
            started.append(self.command(folder))
            return 0

    folder.mkdir()
    Manifest(config={}, segments=(new_segment(0),)).write(folder)
    monkeypatch.setattr("fieldwatch.monitor.Supervisor", Restarts)
    words = [str(folder), "--checkpoint", "40", "--supervise"]
    assert supervise("resume", words) == 0
    assert [line[4:] for line in started] == [[str(folder), "--checkpoint", "40"]] * 2 + [[str(folder)]]


def test_a_timeout_that_is_no_time_is_bad_input():
    assert (WatchFlags().timeout, WatchFlags(hang_timeout=0.0).timeout) == ("auto", None)
    with pytest.raises(BadInput, match="seconds greater than 0"):
        _ = WatchFlags(hang_timeout=-1.0).timeout
