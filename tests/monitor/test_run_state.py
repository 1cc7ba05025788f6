"""States of runs: one prepared folder per state, for which all commands and reports agree."""

import json
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fieldwatch.cli.entry import main
from fieldwatch.many import read_run
from fieldwatch.monitor import BlackBox, Death, read_black_box, state_of
from fieldwatch.monitor.post_mortem import write_post_mortem
from fieldwatch.monitor.run_state import SILENT_AFTER
from fieldwatch.monitor.watch import Watcher
from fieldwatch.record import Block, EventLog, Journal, Manifest, new_segment
from fieldwatch.report.account import account_of
from fieldwatch.report.compare.sources import side_of
from fieldwatch.report.tab.account_cache import reader

AT_PID = 8
AT_STARTED = 24
AT_BOOT = 32
AT_BEAT = 128 + 8
AT_TIME = 128 + 16


@pytest.fixture
def other():
    """A running process other than this one."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def plant(tmp_path, other):
    """Write a run folder of 20 steps, as if started by a running process on this machine."""

    def make(*, state="running", ending="running", cause="", black_box=True, **segment):
        folder = tmp_path / "run"
        folder.mkdir()
        pid = segment.pop("pid", other.pid)
        steps = np.arange(20)
        values = np.ones((20, 1))
        block = Block(
            axis="step", columns=("Loss/total",), steps=steps, seconds=steps * 0.1, positions=steps, values=values
        )
        with Journal(folder) as journal:
            journal.append(block)
        with EventLog(folder) as events:
            events.append({"kind": "plan", "step": 0, "steps": 1000})
        if black_box:
            box = BlackBox(folder)
            box.beat(19, b"backward", 60.0, time.monotonic())
            if ending != "running":
                box.close(ending, cause)
            patch(folder, AT_PID, "<q", pid)
        # As in a training, the black box comes first: run.json must not be older than it.
        segments = ({**new_segment(0), "pid": pid, **segment},)
        Manifest(config={}, segments=segments, state=state).write(folder)
        return folder

    return make


def patch(folder, at, form, *values):
    with (folder / "black_box" / "heartbeat").open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(form, *values))


def dead_pid():
    process = subprocess.Popen(["/bin/sh", "-c", "exit 0"])
    process.wait()
    return process.pid


def age_files(folder, seconds):
    then = time.time() - seconds
    for name in ("journal.jsonl", "events.jsonl", "run.json"):
        os.utime(folder / name, (then, then))


def make_running(plant, other):
    return plant()


def make_hung(plant, other):
    folder = plant()
    patch(folder, AT_BEAT, "<d", time.monotonic() - 500.0)
    return folder


def make_stopped(plant, other):
    other.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{other.pid}/stat").read_text().split()[2] != "T":
        assert time.monotonic() < deadline
    return plant()


def make_killed(plant, other):
    return plant(pid=dead_pid())


def make_zombie(plant, other):
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    return plant()


def make_told(plant, other):
    folder = plant(pid=dead_pid())
    write_post_mortem(folder, Death(cause="oom-killer", detail="killed by the kernel"), read_black_box(folder))
    return folder


def make_rebooted(plant, other):
    folder = plant()
    patch(folder, AT_BOOT, "40s", b"another-boot")
    return folder


def make_another_process(plant, other):
    folder = plant()
    patch(folder, AT_STARTED, "<d", time.time() - 1e6)
    return folder


def make_silent(plant, other):
    folder = plant(host="elsewhere.example")
    patch(folder, AT_TIME, "<d", time.time() - 1000.0)
    return folder


def make_afar(plant, other):
    return plant(host="elsewhere.example")


def make_without_black_box(plant, other):
    return plant(black_box=False)


def make_silent_without_black_box(plant, other):
    folder = plant(black_box=False)
    age_files(folder, 1000.0)
    return folder


def make_finished_but_not_closed(plant, other):
    return plant(state="finished", pid=dead_pid())


def make_resumed_and_killed_before_run_json(plant, other):
    return plant(state="interrupted", pid=dead_pid(), started="2026-01-02T03:04:05+00:00")


def ended(word):
    def make(plant, other):
        return plant(state=word, ending=word, cause=f"exception: it was {word}", pid=dead_pid())

    return make


CASES = {
    "running": (make_running, "running"),
    "hung": (make_hung, "hung"),
    "stopped": (make_stopped, "hung"),
    "killed": (make_killed, "killed"),
    "zombie": (make_zombie, "killed"),
    "told": (make_told, "killed"),
    "rebooted": (make_rebooted, "killed"),
    "its pid is another's": (make_another_process, "killed"),
    "silent on another host": (make_silent, "silent"),
    "running on another host": (make_afar, "running"),
    "running without a black box": (make_without_black_box, "running"),
    "silent without a black box": (make_silent_without_black_box, "silent"),
    "killed after it finished": (make_finished_but_not_closed, "finished"),
    "killed while it took the folder": (make_resumed_and_killed_before_run_json, "killed"),
    **{word: (ended(word), word) for word in ("finished", "interrupted", "failed", "diverged")},
}


@pytest.mark.parametrize(("make", "word"), CASES.values(), ids=CASES)
def test_every_surface_gives_the_same_answer(plant, other, capsys, make, word):
    folder = make(plant, other)
    with Watcher(folder) as watcher:
        watched = watcher.refresh().state.word
    code = main(["health", str(folder), "--json"])
    health = json.loads(capsys.readouterr().out)
    account = account_of(folder)
    answers = {
        "state_of": state_of(folder).word,
        "watch": watched,
        "health": health["state"],
        "report": account["run"]["state"],
        "tab": reader(folder)().account["run"]["state"],
        "compare": side_of(folder, "a").state,
        "many": read_run(folder, ("Loss/",)).state,
    }
    assert answers == dict.fromkeys(answers, word)
    assert (code == 3) == (word in ("killed", "failed", "diverged"))
    resumable = word in ("killed", "failed", "diverged", "interrupted")
    assert (account["run"]["resume"] == health["resume"] == f"fieldwatch resume {folder}") == resumable
    assert word.capitalize() in account["verdict"]["title"] or word in ("finished", "interrupted")


def test_a_folder_without_a_run_has_none_that_was_started(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        assert state_of(folder).word == read_run(folder, ()).state == "not started"
    with Watcher(tmp_path) as watcher:
        assert watcher.refresh().state.word == "not started"


def test_the_threshold_of_silence_stands_once(plant, other, monkeypatch):
    folder = make_silent(plant, other)
    monkeypatch.setattr("fieldwatch.monitor.run_state.SILENT_AFTER", SILENT_AFTER + 1e6)
    with Watcher(folder) as watcher:
        assert account_of(folder)["run"]["state"] == watcher.refresh().state.word == "running"


def test_health_says_how_it_stands_and_why(plant, other, capsys):
    folder = make_silent(plant, other)
    main(["health", str(folder)])
    said = capsys.readouterr().out
    assert "for 16 min" in said
    assert "elsewhere.example" in said


@pytest.mark.parametrize("damage", [b"", b"[]", b"\0" * 4096, b'{"state": "running", "segments": [3]}'])
def test_a_damaged_run_json_leaves_the_black_box_to_speak(plant, other, damage):
    folder = plant()
    (folder / "run.json").write_bytes(damage)
    assert state_of(folder).word == "running"
    (folder / "black_box" / "heartbeat").unlink()
    assert state_of(folder).word == "silent"


@pytest.mark.parametrize("pid", [-1, 0, 2**40, -(2**62)])
def test_a_damaged_pid_is_nobodys(plant, other, pid):
    folder = plant()
    patch(folder, AT_PID, "<q", pid)
    assert state_of(folder).word in ("killed", "running")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e300, -1e300])
@pytest.mark.parametrize("alive", [True, False])
def test_damaged_times_are_no_error(plant, other, value, alive):
    folder = plant(**({} if alive else {"pid": dead_pid()}))
    for place in (AT_TIME, AT_BEAT, 128 + 24, AT_STARTED):
        patch(folder, place, "<d", value)
        assert state_of(folder).word in ("running", "hung", "killed", "silent")


def test_it_needs_no_torch(plant, other):
    folder = plant()
    program = (
        "import sys; from fieldwatch.monitor import state_of; print(state_of(sys.argv[1]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "running False"


def test_the_same_host_is_this_one():
    assert new_segment(0)["host"] == platform.node()
