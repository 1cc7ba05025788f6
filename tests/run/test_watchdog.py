"""The black box and the stacks of a run that hangs or dies."""

import ctypes
import faulthandler
import os
import signal
import threading
import time

import pytest

from fieldwatch import Guard, Outputs, Run, Saving, read_history
from fieldwatch.monitor import BlackBox, read_black_box, read_post_mortems
from fieldwatch.run import Watchdog
from fieldwatch.run.watchdog import FIRST_TIMEOUT, MIN_TIMEOUT, PhaseTimeout


def run_in(folder, **options):
    return Run(folder, **{"saving": Saving(every=None), "outputs": Outputs(rules=(), sinks=())} | options)


@pytest.fixture
def watchdog(tmp_path):
    watchdog = Watchdog(tmp_path, 0.4)
    watchdog.open()
    yield watchdog
    watchdog.close("finished")


def stacks_within(watchdog, seconds):
    until = time.monotonic() + seconds
    while "Timeout (" not in watchdog.stacks.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    return watchdog.stacks.read_text()


def test_an_unknown_phase_may_take_half_an_hour_and_a_known_one_at_least_a_minute():
    pace = PhaseTimeout()
    assert pace.timeout == FIRST_TIMEOUT
    pace.observe(0.1)
    assert pace.timeout == MIN_TIMEOUT


def test_a_slow_phase_may_take_twenty_times_as_long():
    pace = PhaseTimeout()
    for _ in range(3):
        pace.observe(10.0)
    assert pace.timeout == 200.0


def test_one_long_evaluation_among_short_steps_is_not_forgotten():
    pace = PhaseTimeout()
    for k in range(2000):
        pace.observe(100.0 if k == 3 else 0.01)
    assert pace.timeout == 300.0


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("inf"), float("nan")])
def test_an_invalid_timeout_is_refused(tmp_path, timeout):
    with pytest.raises(ValueError, match=r"hang_timeout.*greater than 0"):
        Watchdog(tmp_path, timeout)


def test_stacks_are_written_while_a_hang_holds_the_gil(watchdog):
    watchdog.alive("step", 0)
    ctypes.PyDLL(None).usleep(1_800_000)
    text = watchdog.stacks.read_text()
    assert "Timeout (" in text
    assert "test_stacks_are_written_while" in text


def test_stacks_of_a_hang_include_all_threads(watchdog):
    gate = threading.Event()
    waiting = threading.Thread(target=gate.wait, args=(60,), name="waiting")
    waiting.start()
    watchdog.alive("step", 0)
    text = stacks_within(watchdog, 6.0)
    gate.set()
    waiting.join()
    assert "stacks_within" in text
    assert "in wait" in text


@pytest.mark.machine
def test_heartbeats_prevent_a_report(watchdog):
    watchdog.alive("step", 0)
    for k in range(60):
        time.sleep(0.03)
        watchdog.alive("step", k)
    assert "Timeout (" not in watchdog.stacks.read_text()


def test_a_long_span_without_history_is_no_hang(tmp_path):
    watchdog = Watchdog(tmp_path, "auto")
    watchdog.open()
    watchdog.alive("step", 0)
    watchdog.alive("step", 1)
    assert read_black_box(tmp_path).timeout == MIN_TIMEOUT
    watchdog.alive("evaluation")
    beat = read_black_box(tmp_path)
    assert (beat.phase, beat.timeout, beat.step) == ("evaluation", FIRST_TIMEOUT, 1)
    watchdog.close("finished")


def test_a_hang_that_ends_is_an_event_with_the_path_of_its_stacks(tmp_path):
    with run_in(tmp_path, guard=Guard(hang_timeout=0.2)) as run:
        for step in run.steps(3):
            if step.index == 1:
                time.sleep(1.5)
    (event,) = read_history(tmp_path).events("hung")
    assert event["step"] == 1
    assert 1.4 < event["hung_seconds"] < 30
    assert "It went on" in (tmp_path / event["stacks"]).read_text()


def test_the_black_box_contains_step_and_span(tmp_path):
    with run_in(tmp_path) as run:
        for step in run.steps(5):
            with step.span("forward"):
                beat = read_black_box(tmp_path)
                assert (beat.step, beat.phase, beat.pid, beat.ending) == (step.index, "forward", os.getpid(), "running")
    assert read_black_box(tmp_path).ending == "finished"


def test_a_stop_point_is_a_heartbeat(tmp_path):
    with run_in(tmp_path) as run:
        for _ in run.steps(1):
            before = read_black_box(tmp_path).beat
            run.stop_point()
            assert read_black_box(tmp_path).beat > before


def test_sigusr2_writes_the_stacks_on_demand(watchdog):
    os.kill(os.getpid(), signal.SIGUSR2)
    assert "test_sigusr2_writes" in watchdog.stacks.read_text()


def test_everything_enabled_is_disabled_again(tmp_path):
    before = signal.getsignal(signal.SIGUSR2)
    enabled = faulthandler.is_enabled()
    heard = []
    signal.signal(signal.SIGUSR2, lambda number, _: heard.append(number))
    with run_in(tmp_path) as run:
        for _ in run.steps(1):
            os.kill(os.getpid(), signal.SIGUSR2)
    assert heard == []
    os.kill(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2]
    assert faulthandler.is_enabled() == enabled


def test_a_forked_child_ends_and_leaves_the_black_box_alone(watchdog, tmp_path):
    watchdog.alive("step", 7)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        watchdog.alive("step", 9)
        faulthandler.cancel_dump_traceback_later()  # as the interpreter does at exit
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert read_black_box(tmp_path).step == 7
    assert "Timeout (" in stacks_within(watchdog, 6.0)  # and the parent is still watched


def test_a_killed_process_is_reported_by_the_next_one(tmp_path):
    with run_in(tmp_path) as run:
        for _ in run.steps(4):
            pass
    box = BlackBox(tmp_path)  # the state after a process was killed
    box.beat(17, b"backward", 60.0, time.monotonic())
    with run_in(tmp_path) as run:
        for _ in run.steps(5):
            pass
    (report,) = read_post_mortems(tmp_path)
    assert (report["cause"], report["step"], report["phase"]) == ("killed", 17, "backward")
    assert "fieldwatch resume" in report["resume"]
    (event,) = read_history(tmp_path).events("died")
    assert (event["died_in"], event["post_mortem"]) == (17, report["place"])
    with run_in(tmp_path) as run:
        for _ in run.steps(6):
            pass
    assert len(read_post_mortems(tmp_path)) == 1


def test_an_interruption_leaves_a_note_and_no_crash_folder(tmp_path):
    with pytest.raises(SystemExit), run_in(tmp_path) as run:
        for step in run.steps(9):
            if step.index == 3:
                os.kill(os.getpid(), signal.SIGTERM)
    note = (tmp_path / "black_box" / "end.json").read_text()
    assert '"interrupted"' in note
    assert '"step": 3' in note
    assert "fieldwatch resume" in note
    assert not (tmp_path / "crash").exists()


def test_a_crash_folder_names_the_cause_the_checkpoint_and_has_stacks(tmp_path):
    with pytest.raises(OSError, match="No space"), run_in(tmp_path) as run:
        for step in run.steps(9):
            if step.index == 2:
                raise OSError(28, "No space left on device")
    (report,) = read_post_mortems(tmp_path)
    assert (report["cause"], report["step"], report["last_checkpoint"]) == ("disk", 2, None)
    assert "Thread" in (tmp_path / report["place"] / report["stacks"]).read_text()
    assert read_black_box(tmp_path).cause.startswith("disk: OSError")


def test_a_crash_that_cannot_be_written_does_not_hide_the_error(tmp_path):
    (tmp_path / "crash").write_text("a file where the folder should be")
    with pytest.raises(ZeroDivisionError) as caught, run_in(tmp_path) as run:
        for _ in run.steps(1):
            _ = 1 / 0
    assert any("could not be" in note for note in caught.value.__notes__)
    assert read_black_box(tmp_path).ending == "failed"
