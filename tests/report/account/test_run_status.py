"""Accounts of runs that are running, were killed, diverged, or continued after a crash."""

import os
import struct
import subprocess
import time

import orjson
import pytest

from fieldwatch.monitor import BlackBox
from fieldwatch.report.account import account_of

PLAN = {"kind": "plan", "step": 0, "steps": 1000}


@pytest.fixture
def dead_pid():
    """ID of a process that has ended."""
    process = subprocess.Popen(["/bin/sh", "-c", "exit 0"])
    process.wait()
    return process.pid


@pytest.fixture
def beat():
    """Write a black box with one heartbeat; ``pid`` is the process in it, by default this one."""

    def make(folder, *, step=49, ending="running", cause="", pid=None):
        box = BlackBox(folder)
        box.beat(step, b"backward", 60.0, time.monotonic())
        if ending == "running":
            box._map.flush()
        else:
            box.close(ending, cause)
        if pid is not None:
            with (folder / "black_box/heartbeat").open("r+b") as file:
                file.seek(8)
                file.write(struct.pack("<q", pid))
        return box

    return make


def leave_crash(folder, **told):
    place = folder / "crash/20260102T030405.000000Z"
    place.mkdir(parents=True)
    (place / "traceback.txt").write_text("Traceback <most recent>\nDiverged: no\n")
    (place / "crash.json").write_bytes(orjson.dumps(told))
    return place


def test_a_run_whose_process_lives_is_running(run_folder, rows, beat):
    folder = run_folder(rows.block(rows.training(50)), events=[PLAN], state="running")
    beat(folder)
    account = account_of(folder)
    assert account["run"]["state"] == account["verdict"]["level"] == "running"
    assert account["verdict"]["title"].startswith("Running, 50 of 1,000 steps")
    assert account["crash"] is None
    timing = next(panel for panel in account["panels"] if panel["id"] == "timing")
    assert any("at that pace" in one["name"] for one in timing["parts"][0]["facts"])


def test_a_running_run_without_a_black_box_is_believed(run_folder, rows):
    folder = run_folder(rows.block(rows.training(50)), state="running")
    assert account_of(folder)["run"]["state"] == "running"


def test_a_run_whose_process_is_gone_was_killed(run_folder, rows, beat, dead_pid):
    folder = run_folder(rows.block(rows.training(50)), events=[PLAN], state="running")
    beat(folder, pid=dead_pid)
    account = account_of(folder)
    assert (account["run"]["state"], account["verdict"]["level"]) == ("killed", "failed")
    assert account["verdict"]["title"] == "Killed in step 49"
    assert "step 49, backward" in account["crash"]["error"]
    assert account["crash"]["resume"] == account["run"]["resume"] == f"fieldwatch resume {folder}"


def test_a_process_that_began_after_the_run_is_another_one(run_folder, rows, beat):
    folder = run_folder(rows.block(rows.training(50)), state="running")
    beat(folder)
    with (folder / "black_box/heartbeat").open("r+b") as file:
        file.seek(24)
        file.write(struct.pack("<d", time.time() - 1e6))
    assert account_of(folder)["run"]["state"] == "killed"


@pytest.mark.parametrize(("age", "state"), [(5.0, "running"), (1000.0, "silent")])
def test_of_another_machine_only_the_last_sign_of_life_is_known(run_folder, rows, beat, age, state):
    start = rows.segment(host="elsewhere.example")
    folder = run_folder(rows.block(rows.training(50)), state="running", segments=(start,))
    beat(folder, pid=1)
    with (folder / "black_box/heartbeat").open("r+b") as file:
        file.seek(128 + 16)
        file.write(struct.pack("<d", time.time() - age))
    assert account_of(folder)["run"]["state"] == state


def test_a_killed_run_with_a_post_mortem_tells_it(run_folder, rows, beat, dead_pid):
    folder = run_folder(rows.block(rows.training(50)), state="running")
    beat(folder, pid=dead_pid, ending="told")
    leave_crash(folder, cause="oom-killer", error="killed by the kernel", step=49, pid=dead_pid)
    account = account_of(folder)
    assert account["verdict"]["title"] == "Killed in step 49: oom-killer"
    assert account["crash"]["folder"] == "crash/20260102T030405.000000Z"
    assert [(one["kind"], one["step"]) for one in account["marks"]] == [("died", 49)]


def test_a_diverged_run_tells_cause_first_bad_step_and_what_to_do(run_folder, rows, beat):
    folder = run_folder(rows.block(rows.training(50)), state="diverged")
    beat(folder, ending="diverged", cause="diverged: no")
    bad = {"step": 40, "metrics": ["Loss/total", "Loss/component_color"]}
    resume = "Resume from step 30 with `fieldwatch resume x`"
    told = {"cause": "diverged", "error": "Diverged: 10 updates", "step": 49, "first_bad": bad, "resume": resume}
    place = leave_crash(folder, pid=os.getpid(), **told)
    verdict = {"reason": "exhaustion", "message": "Too much.", "remedy": "Take less.", "missing": 1}
    (place / "memory.json").write_bytes(orjson.dumps({"verdict": verdict, "requested": 5}))
    account = account_of(folder)
    crash = account["crash"]
    assert account["verdict"]["title"] == "Diverged in step 49"
    assert "step 40: Loss/total" in account["verdict"]["detail"]
    assert crash["first_bad"] == bad
    assert crash["traceback"].startswith("Traceback <most recent>")
    assert (crash["memory"], crash["resume"]) == ("Too much. Take less.", resume)


def test_a_note_is_not_given_as_the_reason_of_a_death(run_folder, rows):
    note = {"kind": "finding", "rule": "StepOutlier", "step": 9, "severity": "note", "message": "slow", "remedy": "-"}
    account = account_of(run_folder(rows.block(rows.training(50)), events=[note], state="failed"))
    assert "slow" not in account["verdict"]["detail"]
    assert [one["rule"] for one in account["findings"]] == ["StepOutlier"]


def test_an_old_death_is_not_taken_for_the_last_one(run_folder, rows, beat):
    folder = run_folder(rows.block(rows.training(50)), state="failed")
    leave_crash(folder, cause="cuda", error="old", step=3, pid=1)
    beat(folder, ending="failed", cause="disk: no space left")
    crash = account_of(folder)["crash"]
    assert crash["cause"] == "disk"
    assert crash["error"].startswith("no space left")


def test_a_run_that_went_on_after_a_death_has_no_crash_but_a_mark(run_folder, rows, beat):
    died = {"kind": "died", "step": 29, "cause": "killed"}
    folder = run_folder(rows.block(rows.training(50)), events=[died])
    leave_crash(folder, cause="killed", error="killed without a word", step=37, pid=1)
    beat(folder, ending="finished")
    account = account_of(folder)
    assert account["crash"] is None
    assert account["verdict"]["level"] == "healthy"
    assert [(one["kind"], one["step"]) for one in account["marks"]] == [("died", 37)]


def test_a_crash_folder_that_cannot_be_read_is_told_as_far_as_it_goes(run_folder, rows):
    folder = run_folder(rows.block(rows.training(50)), state="failed")
    (folder / "crash/x").mkdir(parents=True)
    (folder / "crash/x/crash.json").write_bytes(b"{torn")
    crash = account_of(folder)["crash"]
    assert (crash["cause"], crash["folder"], crash["traceback"]) == ("unknown", "crash/x", "")


def test_an_interrupted_run_says_how_to_go_on(run_folder, rows, beat):
    folder = run_folder(rows.block(rows.training(50)), events=[PLAN], state="interrupted")
    beat(folder, ending="interrupted")
    account = account_of(folder)
    assert account["verdict"]["title"].startswith("Healthy: interrupted after 50 of 1,000 steps")
    assert account["run"]["resume"] == f"fieldwatch resume {folder}"
