"""fieldwatch nsys: command lines against a stand-in for nsys, commands for real."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
TOLD = runpy.run_path(str(HERE.parent / "monitor" / "nsight" / "canned_statistics.py"))["TOLD"]
SAY = "import json, os, sys; json.dump(dict(os.environ), open('told', 'w')); sys.exit(%d)"


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Put the stand-in on PATH; returns what it was called with."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nsys").write_text(f"#!{sys.executable}\n{(HERE / 'fake_nsys.py').read_text()}")
    (tools / "nsys").chmod(0o755)
    (tmp_path / "statistics").write_text(TOLD)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_NSYS_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAKE_NSYS_STATISTICS", str(tmp_path / "statistics"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


@pytest.fixture
def no_nsys(monkeypatch, tmp_path):
    for program in ("sh", "sleep"):
        (tmp_path / program).symlink_to(shutil.which(program))
    monkeypatch.setenv("PATH", str(tmp_path))


def python(code=0):
    return sys.executable, "-c", SAY % code


def wait_for(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not (answer := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    assert answer
    return answer


@pytest.fixture
def prepared(calls, tmp_path):
    """A command that waits under ``nsys train --on-request``: the pid of fieldwatch, and of the command."""
    ready = tmp_path / "ready"
    command = f"import os, time; open({str(ready)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    line = [sys.executable, "-m", "fieldwatch", "nsys", "train", "--on-request", "--", sys.executable, "-c", command]
    environment = os.environ | {"PYTHONPATH": str(SRC), "TMPDIR": str(scratch)}
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(wait_for(lambda: ready.exists() and ready.read_text()))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def test_a_whole_command_is_recorded_and_summed_up(calls, fieldwatch, tmp_path):
    code, out, message = fieldwatch("nsys", "train", "--out", tmp_path / "a" / "whole", "--", *python())
    assert (code, message) == (0, "")
    profile, stats = calls()
    assert profile[:2] == ["profile", f"--output={tmp_path}/a/whole"]
    assert profile[-3:] == list(python())
    assert stats[-1] == f"{tmp_path}/a/whole.nsys-rep"
    assert "GPU Kernel Summary" in out
    assert "void splat<float, (int)3>(const float *, int)" in out
    assert "adam [clone]" in out
    assert "4000.5" in out
    assert ":backward" in out
    assert "OS Runtime" not in out
    assert f"report    {tmp_path}/a/whole.nsys-rep" in out


@pytest.mark.parametrize("wanted", [0, 3, 130])
def test_the_exit_code_of_the_command_is_passed_on(calls, fieldwatch, wanted):
    code, _, _ = fieldwatch("nsys", "train", "--", *python(wanted))
    assert code == wanted


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        ((), {}),
        (("--steps", "1000", "1020"), {"FIELDWATCH_PROFILE_STEPS": "1000:1020"}),
        (("--on-finding",), {"FIELDWATCH_PROFILE_ON_FINDING": "1"}),
    ],
)
def test_the_command_is_told_what_to_record(calls, fieldwatch, tmp_path, flags, variables):
    code, _, _ = fieldwatch("nsys", "train", *flags, "--out", "one", "--", *python())
    assert code == 0
    assert ("--capture-range=cudaProfilerApi" in calls()[0]) == bool(flags)
    told = json.loads((tmp_path / "told").read_text())
    assert {name: value for name, value in told.items() if name.startswith("FIELDWATCH_P")} == variables


def test_a_range_that_never_came_is_a_finding(calls, fieldwatch, monkeypatch):
    monkeypatch.setenv("FAKE_NSYS_NO_RANGE", "1")
    code, out, _ = fieldwatch("nsys", "train", "--steps", "5", "9", "--", *python())
    assert code == 1
    assert "No report" in " ".join(out.split())
    code, _, _ = fieldwatch("nsys", "train", "--steps", "5", "9", "--", *python(3))
    assert code == 3


def test_without_a_place_the_report_goes_under_nsight(calls, fieldwatch, tmp_path):
    assert fieldwatch("nsys", "train", "--", *python())[0] == 0
    (report,) = (tmp_path / "nsight").iterdir()
    assert report.suffix == ".nsys-rep"


def test_a_report_is_never_overwritten(calls, refused, tmp_path):
    (tmp_path / "one.nsys-rep").write_text("precious")
    for name in ("one", "one.nsys-rep"):
        assert "exists already" in refused("nsys", "train", "--out", tmp_path / name, "--", *python())
    assert (tmp_path / "one.nsys-rep").read_text() == "precious"


def test_statistics_that_cannot_be_read_are_said_with_nsys_own_words(calls, fieldwatch, monkeypatch):
    monkeypatch.setenv("FAKE_NSYS_FAILS", "stats")
    code, _, message = fieldwatch("nsys", "train", "--", *python())
    assert code == 2
    assert "a message" in message


def test_wrong_usage_of_train(calls, refused):
    assert "expected a command" in refused("nsys", "train")
    assert "expected a command" in refused("nsys", "train", "--on-finding", "--")
    assert "'no-such-program'" in refused("nsys", "train", "--", "no-such-program")
    assert "expected FIRST LAST" in refused("nsys", "train", "--steps", "9", "5", "--", *python())
    assert "choose one" in refused("nsys", "train", "--on-request", "--on-finding", "--", *python())
    assert "cannot create" in refused("nsys", "train", "--out", "/proc/nowhere/one", "--", *python())


@pytest.mark.usefixtures("no_nsys")
def test_without_nsys_it_is_said_where_to_get_it(refused):
    for words in (("train", "--", "sh"), ("snapshot", os.getpid()), ("snapshot", "--device", os.getpid())):
        message = refused("nsys", *words)
        assert "https://developer.nvidia.com/nsight-systems" in message


@pytest.mark.parametrize("whose", ["fieldwatch", "command"])
def test_some_seconds_of_a_running_command(prepared, answer, calls, tmp_path, whose):
    process, pid = prepared
    of = process.pid if whose == "fieldwatch" else pid
    told = answer("nsys", "snapshot", "--seconds", "0.2", "--out", tmp_path / "some", of)
    launch, start, stop, _ = calls()
    session = f"--session=fieldwatch-{process.pid}"
    assert launch[:2] == ["launch", f"--session-new=fieldwatch-{process.pid}"]
    assert start == ["start", session, f"--output={tmp_path}/some"]
    assert stop == ["stop", session]
    assert told["report"] == f"{tmp_path}/some.nsys-rep"
    assert told["statistics"][0]["rows"][0]["Instances"] == "100"
    assert psutil.pid_exists(pid)


def test_a_snapshot_is_shown_as_a_table(prepared, fieldwatch):
    process, _ = prepared
    code, out, _ = fieldwatch("nsys", "snapshot", "--seconds", "0.1", process.pid)
    assert code == 0
    assert "GPU Kernel Summary" in out
    assert "nsight/" in out


def test_a_request_that_nsys_refuses(prepared, refused, monkeypatch):
    process, _ = prepared
    monkeypatch.setenv("FAKE_NSYS_FAILS", "start")
    assert "exit code 1" in refused("nsys", "snapshot", process.pid)


def test_a_signal_reaches_the_command_which_may_save(calls, tmp_path):
    ready = tmp_path / "ready"
    saved = tmp_path / "saved"
    command = (
        "import signal, sys, time\n"
        f"def save(*_): open({str(saved)!r}, 'w').close(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "time.sleep(60)"
    )
    line = [sys.executable, "-m", "fieldwatch", "nsys", "train", "--", sys.executable, "-c", command]
    with subprocess.Popen(line, env=os.environ | {"PYTHONPATH": str(SRC)}, stdout=subprocess.PIPE) as process:
        wait_for(ready.exists)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert (process.returncode, saved.exists()) == (143, True)
    assert b"CUDA GPU Kernel Summary" in out


def test_the_device_can_be_recorded_beside_any_process(calls, answer):
    told = answer("nsys", "snapshot", "--device", "--seconds", "0.1", "--out", "device", os.getpid())
    (profile,) = calls()
    assert profile[-3:] == ["--gpu-metrics-devices=all", "sleep", "0.1"]
    assert told["statistics"] == []


def test_a_process_that_nsys_did_not_start_cannot_be_attached_to(calls, refused, tmp_path):
    message = refused("nsys", "snapshot", os.getpid())
    assert "cannot attach" in message
    assert "fieldwatch nsys train --on-request -- fieldwatch resume RUN" in message
    assert not (tmp_path / "nsight").exists()


def test_a_process_of_another_user(calls, refused, monkeypatch):
    def refuse(process):
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "environ", refuse)
    assert "as root" in refused("nsys", "snapshot", os.getpid())


@pytest.mark.parametrize("pid", ["4194305", "-1", "99999999999999999999"])
def test_a_pid_that_is_nobody(calls, refused, pid):
    assert f"no process {pid}" in refused("nsys", "snapshot", "--", pid)


@pytest.mark.parametrize("seconds", ["0", "-3", "nan", "inf", "4000"])
def test_seconds_that_make_no_sense(calls, refused, seconds):
    assert "expected more than 0" in refused("nsys", "snapshot", f"--seconds={seconds}", os.getpid())
