"""fieldwatch watch: what it prints, when it ends, and with which exit code."""

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from fieldwatch.monitor import BlackBox
from fieldwatch.record import Block, EventLog, Journal, Manifest, new_segment

SRC = Path(__file__).parents[2] / "src"


def write_run(folder, *, state="finished", severity=None, steps=100):
    folder.mkdir(parents=True)
    Manifest(config={}, segments=(new_segment(0),), state=state).write(folder)
    at = np.arange(steps)
    values = np.stack((1 / (1 + at), np.full(steps, 2.0)), axis=1)
    block = Block(
        axis="step", columns=("Loss/total", "Quality/x"), steps=at, seconds=at * 0.1, positions=at, values=values
    )
    with Journal(folder) as journal, EventLog(folder) as events:
        journal.append(block)
        events.append({"kind": "plan", "step": 0, "steps": steps})
        if severity:
            events.append(
                {"kind": "finding", "step": 5, "rule": "R", "severity": severity, "message": "m", "remedy": "r"}
            )
    with BlackBox(folder) as box:
        box.beat(steps - 1, b"end", float("inf"), 0.0)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("state", "severity", "code"),
    [
        ("finished", None, 0), ("finished", "note", 0), ("finished", "warning", 1), ("interrupted", "error", 1),
        ("failed", None, 3), ("diverged", "error", 3),
    ],
)  # fmt: skip
def test_the_exit_code_is_that_of_health(fieldwatch, tmp_path, state, severity, code):
    folder = write_run(tmp_path / "run", state=state, severity=severity)
    status, out, _ = fieldwatch("watch", folder, "--once")
    assert status == code
    assert state.upper() in out
    assert "step 100 of 100" in out


def test_into_a_pipe_it_prints_one_view(fieldwatch, tmp_path):
    status, out, _ = fieldwatch("watch", write_run(tmp_path / "run"))
    assert status == 0
    assert out.count("Loss/total") == 1
    assert "\x1b" not in out


def test_as_json(fieldwatch, tmp_path):
    status, out, _ = fieldwatch("watch", write_run(tmp_path / "run", severity="warning"), "--json")
    told = json.loads(out)
    assert status == 1
    assert (told["state"]["word"], told["progress"]["done"], told["total"]["last"]) == ("finished", 100, 0.01)


def test_without_a_name_it_is_the_newest_run(fieldwatch, here):
    write_run(here / "runs" / "splats" / "one")
    assert "splats/one" in fieldwatch("watch")[1]
    assert "splats/one" in fieldwatch("watch", "latest", "--once")[1]


def test_no_run_is_one_clear_message(refused, here):
    assert "no run under" in refused("watch")
    assert "holds no run" in refused("watch", "runs/nothing")
    (here / "torn").mkdir()
    (here / "torn" / "run.json").write_text("{")
    assert "from a copy" in refused("watch", "torn")


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "0.01"])
def test_an_interval_that_makes_no_sense(refused, tmp_path, interval):
    assert "seconds between refreshes" in refused("watch", write_run(tmp_path / "run"), f"--interval={interval}")


def test_it_waits_for_a_run_that_is_not_there_yet(fieldwatch, here, monkeypatch):
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            write_run(here / "runs" / "late")

    monkeypatch.setattr("fieldwatch.cli.watch.time.sleep", sleep)
    assert fieldwatch("watch", "--wait", "--interval", "7")[0] == 0
    assert pauses == [7, 7]
    pauses.clear()
    monkeypatch.setattr("fieldwatch.cli.watch.time.sleep", lambda _: write_run(here / "later"))
    assert "FINISHED" in fieldwatch("watch", "later", "--wait", "--once")[1]


def test_in_a_terminal_it_has_a_screen_of_its_own_and_leaves_the_last_view(fieldwatch, tmp_path, monkeypatch):
    from fieldwatch.record import Terminal  # noqa: PLC0415  the real one, before it is replaced

    screen = StringIO()

    def terminal(**settings):
        return Terminal(file=screen, force_terminal=True, width=80, height=24, **settings)

    monkeypatch.setattr("fieldwatch.cli.watch.Terminal", terminal)
    assert fieldwatch("watch", write_run(tmp_path / "run", severity="error"))[0] == 1
    live, _, left = screen.getvalue().rpartition("\x1b[?1049l")
    assert "\x1b[?1049h" in live
    assert "FINISHED" in live
    assert "FINISHED" in left
    assert left.count("\n") <= 23


def test_no_utf8_no_block_letters(tmp_path):
    folder = write_run(tmp_path / "run")
    environment = {"PYTHONPATH": str(SRC), "PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(line, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"[]\n")
    text = done.stdout.decode("ascii")
    assert "####" in text
    assert "Loss/total" in text


PROGRAM = (
    "import sys; from fieldwatch.cli import main; code = main(['watch', sys.argv[1]]);"
    "print([name for name in ('torch', 'jaxtyping', 'tensorboard') if name in sys.modules], file=sys.stderr);"
    "sys.exit(code)"
)
"""Runs the command, and says which heavy libraries it loaded."""
