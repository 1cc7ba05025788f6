"""The supervisor, with small programs without torch as its children."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fieldwatch.monitor import (
    GAVE_UP,
    BlackBox,
    Heartbeat,
    Supervisor,
    SupervisorLink,
    cause_of_error,
    explain_silent_end,
    last_checkpoint,
    read_black_box,
    read_channel,
    read_post_mortems,
    supervisor_link,
)
from fieldwatch.monitor.causes import (
    Death,
    cause_in_stacks,
    cause_of_beat,
    cause_of_status,
    killed_for_memory,
    oom_kills,
)
from fieldwatch.monitor.child import TrainingProcess

BEGIN = """
import faulthandler, os, signal, sys, time
from pathlib import Path
from fieldwatch.base import InputError
from fieldwatch.monitor import BlackBox, report_exit, supervisor_link
from fieldwatch.monitor.post_mortem import heading
me, folder = supervisor_link(), Path(sys.argv[1])
box = BlackBox(folder, attempt=me.attempt)
stacks = (folder / "black_box" / "stacks.txt").open("a", buffering=1)
stacks.write(heading(me.attempt))
me.report_folder(folder)
def step(number, timeout=60.0):
    box.beat(number, b"step", timeout, time.monotonic())
def kill(number):
    os.kill(os.getpid(), number)
"""


@pytest.fixture
def watch(tmp_path):
    """Run a program under a supervisor; return the exit code, the supervisor and the announced lines."""

    def run(body, **options):
        lines = []
        program = tmp_path / "program.py"
        program.write_text(BEGIN + body)
        command = [sys.executable, str(program), str(tmp_path / "run")]
        watcher = Supervisor(lambda _: command, announce=lines.append, **{"pause": 0.0, **options})
        return watcher.run(), watcher, lines

    return run


def causes(watcher):
    return [start.cause for start in watcher.attempts]


def test_after_a_kill_it_goes_on_and_says_what_happened(watch, tmp_path):
    body = "step(5)\nif me.attempt == 1: kill(signal.SIGKILL)\nassert me.cause.startswith('killed')\n"
    code, watcher, lines = watch(body + "box.close('finished')")
    assert code == 0
    assert causes(watcher) == ["killed", "finished"]
    assert "attempt 1 died in step 5: killed" in lines[0]
    told = [json.loads(line) for line in (tmp_path / "run/crash/attempts.jsonl").read_text().splitlines()]
    assert [(one["attempt"], one["cause"], one["status"], one["step"]) for one in told] == [
        (1, "killed", -9, 5),
        (2, "finished", 0, 5),
    ]
    (report,) = read_post_mortems(tmp_path / "run")
    assert (report["cause"], report["step"], report["place"]) == ("killed", 5, told[0]["post_mortem"])


def test_a_run_that_never_died_leaves_no_crash_folder(watch, tmp_path):
    code, watcher, lines = watch("step(5)\nbox.close('finished')\nsys.exit(1)")
    assert (code, causes(watcher), lines) == (1, ["finished"], [])  # 1: findings
    assert not (tmp_path / "run" / "crash").exists()


@pytest.mark.parametrize(("number", "cause"), [("SIGSEGV", "segfault"), ("SIGBUS", "bus-error")])
def test_a_fatal_signal_is_named_and_its_stacks_are_kept(watch, tmp_path, number, cause):
    code, watcher, _ = watch(f"step(3)\nfaulthandler.enable(stacks)\nkill(signal.{number})", restarts=0)
    assert (code, causes(watcher)) == (GAVE_UP, [cause])
    (report,) = read_post_mortems(tmp_path / "run")
    assert "program.py" in (tmp_path / "run" / report["place"] / report["stacks"]).read_text()


def test_a_crash_loop_stops_after_three_restarts_and_says_how_to_go_on(watch, tmp_path):
    code, watcher, lines = watch("step(7)\nkill(signal.SIGKILL)")
    assert (code, causes(watcher)) == (GAVE_UP, ["killed"] * 4)
    assert "given up: 3 restarts" in lines[3]
    assert lines[-1].endswith(f": fieldwatch resume {tmp_path / 'run'}")
    assert len(read_post_mortems(tmp_path / "run")) == 4


def test_giving_up_leaves_a_report(watch, tmp_path):
    _, watcher, lines = watch("step(7)\nkill(signal.SIGKILL)", restarts=1)
    report = json.loads((tmp_path / "run/crash/given_up.json").read_text())
    assert report["why"].startswith("1 restarts")
    assert report["state"] == "killed"
    assert report["resume"] == f"fieldwatch resume {tmp_path / 'run'}"
    assert [one["cause"] for one in report["attempts"]] == causes(watcher) == ["killed"] * 2
    assert any("given_up.json" in line for line in lines)


def test_restarts_that_get_further_are_limited_per_hour(watch):
    code, watcher, lines = watch("step(me.attempt)\nos._exit(9)", per_hour=5)
    assert (code, causes(watcher)) == (GAVE_UP, ["left"] * 6)
    assert [start.step for start in watcher.attempts] == [1, 2, 3, 4, 5, 6]
    assert any("5 restarts" in line for line in lines)


@pytest.mark.machine
def test_the_pause_before_a_restart_grows_also_when_each_gets_further(watch):
    began = time.monotonic()
    _, watcher, lines = watch("step(me.attempt)\nos._exit(9)", per_hour=3, pause=0.1)
    spent = time.monotonic() - began - sum(start.seconds for start in watcher.attempts)
    assert spent >= 0.1 + 0.2 + 0.4
    assert [pause in line for line, pause in zip(lines, ("100 ms", "200 ms", "400 ms"), strict=False)] == [True] * 3


def test_a_library_that_exits_with_2_in_the_middle_is_no_bad_input(watch):
    code, watcher, _ = watch("step(me.attempt)\nif me.attempt == 1: sys.exit(2)\nbox.close('finished')")
    assert (code, causes(watcher)) == (0, ["left", "finished"])


def test_what_passes_is_waited_for_longer_than_what_does_not(watch, tmp_path):
    body = """
if me.attempt < 6:
    report_exit(OSError(28, "No space left on device"))
    sys.exit(3)
step(1)
box.close('finished')
"""
    code, watcher, lines = watch(body, restarts=3)
    assert (code, causes(watcher)) == (0, ["disk"] * 5 + ["finished"])
    assert len([line for line in lines if "No space left" in line]) == 5  # a line each


def told_by(body, words=(), **options):
    """Run a program under a supervisor that never creates a run."""
    lines = []
    begin = (
        "import os, sys\nfrom fieldwatch.base import InputError, MissingPathError\nfrom fieldwatch.monitor import *\n"
    )
    command = [sys.executable, "-c", begin + "me = supervisor_link()\n" + body, *words]
    watcher = Supervisor(lambda _: command, announce=lines.append, **{"pause": 0.0, **options})
    return watcher.run(), watcher, lines


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("OSError(28, 'No space left on device', '/x')", "disk"),
        ("OSError(116, 'Stale file handle', '/x')", "disk"),
        ("OSError(122, 'Disk quota exceeded', '/x')", "disk"),
        ("MemoryError('Unable to allocate 12.0 GiB')", "memory"),
        ("RuntimeError('CUDA error: CUDA-capable device(s) is/are busy or unavailable')", "cuda"),
        ("RuntimeError('CUDA error: out of memory')", "memory"),
    ],
)
def test_what_passes_is_waited_for_before_there_is_a_run(error, cause):
    code, watcher, lines = told_by(f"if me.attempt == 1: report_exit({error}); sys.exit(2)")
    assert (code, causes(watcher)) == (0, [cause, "finished"])
    assert "from the beginning" in lines[0]


def test_the_users_input_is_refused_once():
    code, watcher, lines = told_by("report_exit(InputError('--epochs 0: expected 1 or more')); sys.exit(2)")
    assert (code, causes(watcher), lines) == (2, ["bad-input"], [])


def test_an_input_that_disappears_and_comes_back_is_waited_for(tmp_path):
    data = tmp_path / "photos"
    data.mkdir()
    (data / "a.png").touch()
    body = """
from pathlib import Path
data, away = Path(sys.argv[2]), Path(sys.argv[2] + ".away")
if me.attempt == 1: data.rename(away)
if not data.exists():
    if me.attempt == 3: away.rename(data)
    report_exit(MissingPathError(f"{sys.argv[2]} does not exist"))
    sys.exit(2)
"""
    code, watcher, lines = told_by(body, ["--data", str(data)])
    assert (code, causes(watcher)) == (0, ["data"] * 3 + ["finished"])
    assert [str(data) in line for line in lines[:3]] == [True] * 3


def test_an_input_that_never_comes_back_is_given_up_within_the_hours_limit(tmp_path):
    data = tmp_path / "photos"
    data.mkdir()
    (data / "a.png").touch()
    body = """
if me.attempt == 1: os.rename(sys.argv[2], sys.argv[2] + ".away")
report_exit(MissingPathError(f'{sys.argv[2]} does not exist'))
sys.exit(2)
"""
    code, watcher, lines = told_by(body, ["--data", str(data)], per_hour=2)
    assert (code, causes(watcher)) == (GAVE_UP, ["data"] * 3)
    assert any("2 restarts" in line for line in lines)


def test_a_mistyped_input_is_refused_once(tmp_path):
    body = "report_exit(MissingPathError(f'{sys.argv[2]} does not exist')); sys.exit(2)"
    code, watcher, lines = told_by(body, ["--data", str(tmp_path / "fotos")])
    assert (code, causes(watcher), lines) == (2, ["bad-input"], [])


def test_a_bug_before_the_run_is_named_and_not_started_again():
    code, watcher, lines = told_by("report_exit(KeyError('gaussians')); sys.exit(3)")
    assert (code, causes(watcher)) == (3, ["exception"])
    assert "KeyError: 'gaussians'" in lines[0]


def test_a_library_that_exits_while_the_input_is_read_is_started_again():
    body = "try: sys.exit(2)\nexcept SystemExit as e: (report_exit(e), e.code) if me.attempt == 1 else os._exit(0)\n"
    code, watcher, _ = told_by(body + "sys.exit(2)")
    assert (code, causes(watcher)) == (0, ["left", "finished"])


def test_lines_of_the_channel_that_are_damaged_or_foreign_are_left_out():
    lines = [b"", b"nonsense", b"[1]", b'{"folder": 3}', b'{"cause": "nonsense"}', b'{"cause": []}', b"\xff\x00"]
    assert read_channel(lines) == (None, None)
    folder, words = read_channel([b'{"folder": "/a\\udc80"}', *lines, b'{"cause": "disk", "missing": 1}'])
    assert os.fsencode(folder) == b"/a\x80"
    assert (words.cause, words.detail, words.missing) == ("disk", "", False)


def test_restarts_that_get_further_are_not_counted_as_barren(watch):
    body = "step(me.attempt)\nif me.attempt < 4: os._exit(9)\nbox.close('finished')"
    code, watcher, _ = watch(body, restarts=1)
    assert (code, causes(watcher)) == (0, ["left"] * 3 + ["finished"])


@pytest.mark.parametrize(
    ("ending", "code", "cause"),
    [
        ("box.close('diverged', 'diverged: Diverged: 10 updates'); sys.exit(3)", 3, "diverged"),
        ("box.close('interrupted', 'interrupted: SIGTERM came'); sys.exit(143)", 143, "interrupted"),
        ("report_exit(InputError('--epochs 0: expected 1 or more')); sys.exit(2)", 2, "bad-input"),
    ],
)
def test_what_a_restart_cannot_mend_is_not_started_again(watch, ending, code, cause):
    found, watcher, _ = watch(f"step(3)\n{ending}")
    assert (found, causes(watcher)) == (code, [cause])


def test_what_ends_before_there_is_a_run_keeps_its_exit_code():
    lines = []
    watcher = Supervisor(lambda _: [sys.executable, "-c", "raise SystemExit(1)"], announce=lines.append)
    assert (watcher.run(), len(watcher.attempts)) == (1, 1)


@pytest.mark.parametrize(("how", "cause"), [("while True: time.sleep(9)", "hang"), ("kill(signal.SIGSTOP)", "stopped")])
def test_a_silent_child_is_made_to_show_its_stacks_and_ended(watch, tmp_path, monkeypatch, how, cause):
    monkeypatch.setattr("fieldwatch.monitor.child.GRACE", 0.3)
    listen = "faulthandler.register(signal.SIGUSR2, stacks, all_threads=True)\n"
    code, watcher, _ = watch(f"{listen}step(3, timeout=0.3)\n{how}", restarts=0)
    assert (code, causes(watcher)) == (GAVE_UP, [cause])
    (report,) = read_post_mortems(tmp_path / "run")
    assert "program.py" in (tmp_path / "run" / report["place"] / "stacks.txt").read_text()


def test_time_in_which_the_supervisor_was_stopped_itself_is_not_counted(monkeypatch):
    one = object.__new__(TrainingProcess)
    one._last_check = time.monotonic() - 9999.0
    one._idle = 0.0
    one._last_beat = 5.0
    beat = read_beat(beat=5.0, timeout=0.0)
    monkeypatch.setattr(TrainingProcess, "beat", lambda _: beat)
    one._end_if_hung()
    assert one._idle <= 1.0


def test_after_a_hang_that_may_have_been_none_there_is_more_patience(watch, monkeypatch):
    monkeypatch.setattr("fieldwatch.monitor.child.GRACE", 0.1)
    body = "faulthandler.register(signal.SIGUSR2, stacks)\nif me.patience < 2: step(3, timeout=0.2), time.sleep(99)\n"
    code, watcher, _ = watch(body + "box.close('finished')")
    assert (code, causes(watcher)) == (0, ["hang", "finished"])


def test_workers_that_are_left_end_with_their_parent(watch, tmp_path):
    body = "pid = os.fork()\nif pid == 0: time.sleep(99)\n(folder / 'worker').write_text(str(pid))\nstep(1)\nos.abort()"
    watch(body, restarts=0)
    worker = Path("/proc") / (tmp_path / "run" / "worker").read_text() / "stat"
    until = time.monotonic() + 10
    while worker.exists() and worker.read_text().split()[2] != "Z" and time.monotonic() < until:
        time.sleep(0.02)
    assert not worker.exists() or worker.read_text().split()[2] == "Z"


PARENT = """
import sys
from fieldwatch.monitor import Supervisor
sys.exit(Supervisor(lambda _: sys.argv[1:], announce=print).run())
"""
LOOP = """
def stop(number, frame):
    (folder / "saved").write_text("1")
    box.close("interrupted", "interrupted: SIGTERM came")
    os._exit(143)
signal.signal(signal.SIGTERM, stop)
step(1)
(folder / "ready").write_text("1")
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_stopping_or_killing_the_supervisor_lets_the_training_save(tmp_path, number, code):
    program = tmp_path / "program.py"
    folder = tmp_path / "run"
    program.write_text(BEGIN + LOOP)
    command = [sys.executable, "-c", PARENT, sys.executable, str(program), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as parent:
        wait_for(folder / "ready")
        parent.send_signal(number)
        assert parent.wait(30) == code
    wait_for(folder / "saved")


def wait_for(path):
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert path.exists()


def test_only_the_supervisors_own_child_is_supervised(monkeypatch):
    said = SupervisorLink(supervisor=os.getppid(), attempt=2, cause="hang", patience=2.0, channel=99)
    monkeypatch.setenv(*next(iter(said.environment().items())))
    assert supervisor_link() == said
    other = SupervisorLink(supervisor=1 if os.getppid() != 1 else 2, attempt=2, channel=99)
    monkeypatch.setenv(*next(iter(other.environment().items())))
    assert supervisor_link() is None


def chained(top, cause):
    top.__cause__ = cause
    return top


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("wrong shape"), "exception"),
        (RuntimeError("CUDA error: device-side assert triggered"), "cuda"),
        (RuntimeError("CUDA error: unspecified launch failure"), "cuda"),
        (MemoryError("12 GiB"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (chained(RuntimeError("the writer failed"), OSError(errno.EROFS, "Read-only file system")), "disk"),
        (FileNotFoundError(errno.ENOENT, "no such file"), "exception"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_exceptions_are_named(error, cause):
    assert cause_of_error(error).cause == cause


def test_a_killed_process_is_the_out_of_memory_killers_where_the_group_counts_one_more(tmp_path, monkeypatch):
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 1\noom_kill 3\n")
    monkeypatch.setattr("fieldwatch.monitor.causes._oom_counter_files", lambda: iter([tmp_path / "none", counter]))
    assert oom_kills() == 3
    assert not killed_for_memory(-1, 3)
    counter.write_text("low 0\noom 2\noom_kill 4\n")
    assert killed_for_memory(-1, 3)
    assert not killed_for_memory(-1, None)


def read_beat(**changes):
    usual = {"pid": 1, "attempt": 1, "started": 0.0, "boot": "", "step": 4, "beat": 0.0, "time": 0.0, "timeout": 60.0}
    return Heartbeat(**{**usual, "phase": "step", "saved": -1, "ending": "running", "cause": "", **changes})


def test_a_status_of_success_in_the_middle_of_a_run_is_no_success():
    assert cause_of_beat(read_beat(), 0).cause == "left"
    assert cause_of_beat(read_beat(ending="finished"), 1) == Death(cause="finished", detail="finished")
    assert cause_of_status(-signal.SIGHUP).cause == "interrupted"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Fatal Python error: Segmentation fault\n\nThread 0x1:\n", "segfault"),
        ("Fatal Python error: Aborted\n", "abort"),
        ("Timeout (0:01:00)!\nThread 0x1:\n", "hang"),
    ],
)
def test_stacks_tell_what_ended_a_process_that_nobody_watched(text, cause):
    assert cause_in_stacks(text).cause == cause


def test_a_hang_that_ended_did_not_end_the_process():
    assert cause_in_stacks("Timeout (0:01:00)!\nThread 0x1:\n\nIt went on: no sign of life for 83 s\n") is None


def test_another_boot_means_that_the_machine_went_down(tmp_path, monkeypatch):
    BlackBox(tmp_path).beat(9, b"step", 60.0, 0.0)
    monkeypatch.setattr("fieldwatch.monitor.causes.boot_id", lambda: "another")
    death, beat, _ = explain_silent_end(tmp_path)
    assert (death.cause, beat.step) == ("power", 9)
    assert explain_silent_end(tmp_path) is None  # told once


def test_a_black_box_that_is_none_is_nothing(tmp_path):
    assert read_black_box(tmp_path) is None
    (tmp_path / "black_box").mkdir()
    (tmp_path / "black_box" / "heartbeat").write_bytes(b"\0" * 4096)
    assert read_black_box(tmp_path) is None


def test_the_last_checkpoint_is_the_highest_whole_one(tmp_path):
    for name in ("step_0000000005", "ckpt_000020", "damaged-step_0000000090", ".tmp-step_0000000099-1-a"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "manifest.sha256").write_text("x")
    (tmp_path / "checkpoints" / "step_0000000030").mkdir()
    assert last_checkpoint(tmp_path) == 20
