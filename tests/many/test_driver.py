"""Every result of an attempt has the right consequence and does not affect other scenes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fieldwatch.many import LEDGER, Ledger, OutInUse, ProcessExit, capacity_here, read_ledger, read_run


def states(driver):
    return {status.scene.name: status.state for status in driver.statuses}


def tries(driver, name="one"):
    return next(status.attempts for status in driver.statuses if status.scene.name == name)


def losses(folder):
    return read_run(folder, ("Loss/",)).curve


def kinds(out):
    return [json.loads(line)["kind"] for line in (out / LEDGER).read_text().splitlines()]


def test_a_crash_is_tried_again_from_where_it_was_and_touches_nobody(drive, scene, tmp_path):
    driver = drive(scene("victim", crash_at=2, steps=6), scene("spared", steps=6))
    assert states(driver) == {"victim": "healthy", "spared": "healthy"}
    first, second = tries(driver, "victim")
    assert (first.state, first.cause, first.code, first.first, first.reached) == (
        "crashed", "killed by SIGKILL", -9, 0, 3,
    )  # fmt: skip
    assert (second.state, second.first, second.reached) == ("healthy", 3, 6)
    assert len(tries(driver, "spared")) == 1
    assert losses(tmp_path / "out" / "victim") == losses(tmp_path / "out" / "spared")
    assert driver.exit_code() == 0


def test_what_never_works_is_given_up_after_its_retries(drive, scene):
    driver = drive(scene(end=7, retries=1), scene("other", end=1))
    assert states(driver) == {"one": "crashed", "other": "findings"}
    assert [one.cause for one in tries(driver)] == ["exit code 7: it printed nothing"] * 2
    assert driver.exit_code() == 3


@pytest.mark.parametrize(
    ("flags", "state", "cause"),
    [
        ({"end": 2}, "refused", "no photos there: give a folder that holds some"),
        ({"end": 3, "state": "diverged"}, "diverged", ""),
    ],
)
def test_what_another_try_cannot_mend_is_not_tried_again(drive, scene, flags, state, cause):
    driver = drive(scene(**flags))
    (one,) = tries(driver)
    assert one.state == state
    assert cause in one.cause
    assert driver.exit_code() == 3


def test_what_passes_by_itself_costs_no_retry(drive, scene):
    driver = drive(scene(full=4, retries=1))
    assert states(driver) == {"one": "healthy"}
    found = [(one.state, one.code) for one in tries(driver)]
    assert found == [("crashed", 2)] * 4 + [("healthy", 0)]
    assert all("No space left" in one.cause for one in tries(driver)[:4])


def test_an_exit_code_2_that_nobody_explains_is_no_bad_input(drive, scene, tmp_path):
    script = tmp_path / "exits.py"
    script.write_text("import sys; sys.exit(2)")  # as a library would
    driver = drive(scene(retries=1), program=(str(script),))
    assert [one.state for one in tries(driver)] == ["crashed"] * 2


def test_findings_without_a_finished_run_are_a_crash(drive, scene, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise ImportError('torch is damaged')")  # Python itself ends with 1 then
    driver = drive(scene(retries=0), program=(str(script),))
    assert [(one.state, one.code) for one in tries(driver)] == [("crashed", 1)]
    assert "torch is damaged" in tries(driver)[0].cause


def test_findings_are_told_by_the_exit_code(drive, scene):
    assert drive(scene(end=1), scene("other")).exit_code() == 1


@pytest.mark.parametrize(
    ("found", "state", "codes"),
    [("note", "healthy", (0, 0)), ("warning", "warnings", (0, 1)), ("error", "findings", (1, 1))],
)
def test_a_scene_with_warnings_fails_only_where_that_is_asked_for(drive, scene, found, state, codes):
    driver = drive(scene(found=found, end=int(found == "error")))
    assert [status.state for status in driver.statuses] == [state]
    assert (driver.exit_code(), driver.exit_code(strict=True)) == codes


def test_a_try_that_takes_too_long_saves_and_goes_on_in_the_next(drive, scene):
    driver = drive(scene(steps=5, pause=0.15, timeout=0.5, retries=9))
    assert states(driver) == {"one": "healthy"}
    made = tries(driver)
    assert "timeout of 0.5 s" in made[0].cause
    # On a loaded machine, the time can end before the first step of a try.
    assert all("timeout of 0.5 s" in one.cause for one in made if one.first is None)
    begun = [made[0], *(one for one in made[1:] if one.first is not None)]
    assert [one.first for one in begun][1:] == [one.reached for one in begun][:-1]


def test_stop_lets_everything_save_and_the_same_command_goes_on(drive, scene, tmp_path):
    scenes = scene("done", steps=2), scene("long", steps=40, pause=0.02), scene("late", steps=2, cpus=4.0)
    out = tmp_path / "out"
    stopped = drive(*scenes, stop=lambda: losses(out / "long") != () and "ended" in kinds(out))
    assert states(stopped) == {"done": "healthy", "long": "stopped", "late": "stopped"}
    assert stopped.exit_code() == 0  # none failed; the command itself exits with 130
    again = drive(*scenes)
    assert states(again) == dict.fromkeys(("done", "long", "late"), "healthy")
    assert len(tries(again, "done")) == 1
    assert [status.finished_earlier for status in again.statuses] == [True, False, False]
    assert tries(again, "long")[-1].first == tries(again, "long")[0].reached > 0
    assert [step for step, _ in losses(out / "long")] == list(range(40))


def test_one_that_does_not_end_when_told_is_killed_after_its_grace(drive, scene, tmp_path):
    begun = tmp_path / "out" / "one" / "saved.json"
    driver = drive(scene(steps=9, pause=9, stubborn=1), stop=begun.exists, grace=0.3)
    assert tries(driver)[0].state == "stopped"
    assert tries(driver)[0].cause == "killed by SIGKILL"


def test_a_worker_that_dies_is_another_try(drive, scene):
    class Dying:
        """Lose the first task."""

        def __init__(self):
            self.ends = [ProcessExit(code=None, cause="WorkerCrashedError in Ray: it died"), ProcessExit(code=0)]
            self.orders = []

        def capacity(self):
            return capacity_here(1, 0, 2**30)

        def submit(self, order):
            self.orders.append(order)

        def wait(self, seconds):
            assert seconds > 0
            return [(self.orders.pop(), self.ends.pop(0))] if self.orders else []

        def close(self):
            assert self.orders == []

    driver = drive(scene(), executor=Dying())
    assert [(one.state, one.cause) for one in tries(driver)] == [
        ("crashed", "WorkerCrashedError in Ray: it died"),
        ("healthy", ""),
    ]


def test_variables_threads_and_place_of_a_scene_reach_its_process(drive, scene, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    script = tmp_path / "print.py"
    script.write_text("import os; print(os.environ['COLOR'], os.environ['OMP_NUM_THREADS'], os.getcwd())")
    drive(scene(env={"COLOR": "red"}, cpus=2.0), program=(str(script),))
    console = (tmp_path / "out" / "console" / "one.txt").read_text()
    assert console.splitlines()[-1] == f"red 2 {tmp_path}"


def test_two_drivers_never_share_a_folder(tmp_path):
    program = (
        "import sys; from pathlib import Path; from fieldwatch.many import Ledger\n"
        "with Ledger(Path(sys.argv[1])): print('mine', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "mine\n"
        with pytest.raises(OutInUse, match="another train-many is using"), Ledger(tmp_path):
            pass
        other.kill()
    with Ledger(tmp_path) as ledger:  # a killed process holds no lock
        assert ledger.past == {}


def test_a_killed_driver_leaves_trainings_that_save_and_a_ledger_to_go_on_with(drive, scene, tmp_path):
    out = tmp_path / "out"
    plan = scene("long", steps=500, pause=0.02)
    here = Path(__file__).parent
    program = (
        "import sys; from pathlib import Path; from fieldwatch.many import *\n"
        "flags = {'steps': ('--steps=500',), 'pause': ('--pause=0.02',)}\n"
        "scene = PlannedScene(name='long', pipeline='video', flags=flags)\n"
        "with Ledger(Path(sys.argv[1])) as ledger:\n"
        "    room = ProcessExecutor(Capacity(cpus=1, gpus=0, memory_bytes=9))\n"
        "    driver = Driver([scene], Path(sys.argv[1]), room, ledger, place=Path('.'),"
        " program=('-I', '-S', sys.argv[2]))\n"
        "    driver.run(lambda: False, lambda _: None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(out), str(here / "trainer.py")]) as killed:
        wait_for((out / "long" / "saved.json").exists)
        killed.kill()
    pid = json.loads((out / "long" / "run.json").read_text())["segments"][-1]["pid"]
    wait_for(lambda: not running(pid))
    assert read_ledger(out / LEDGER)["long"].attempts[0].cause.startswith("the driver ended")
    kept = int((out / "long" / "saved.json").read_text())
    stopper = drive(plan, stop=lambda: int((out / "long" / "saved.json").read_text()) > kept + 3)
    assert [one.first for one in tries(stopper, "long")] == [None, kept]
    assert [step for step, _ in losses(out / "long")][: kept + 1] == list(range(kept + 1))


def wait_for(true):
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
