"""Ranks that die, hang, fail or are stopped, most of them under torchrun: the others name them in time, and end."""

import json
import os
import signal
import textwrap
import time
from pathlib import Path

import pytest

from fieldwatch.run import RankLost
from fieldwatch.run.rank_group import ANSWER_SECONDS, EXIT_LOST_RANK, POLL_INTERVAL, STARTUP_COLLECTIVES
from ports import joined

ROOT = Path(__file__).parents[2]
PATIENCE = 2.0
"""Timeout of collectives in these tests, in seconds."""

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from fieldwatch.run import Ranks

how, folder = sys.argv[1], Path(sys.argv[2])
ranks = Ranks.of_process()
ranks.join(folder)
(folder / f"pid-{ranks.rank}").write_text(str(os.getpid()))
tensor = torch.ones(3)
try:
    for step in range(20):
        ranks.at_step(step)
        ranks.sum([tensor.fill_(1.0)])
    if how == "evaluation":
        ranks.only_first(lambda: time.sleep(2 * float(os.environ["FIELDWATCH_RANK_PATIENCE"])), how)
    elif ranks.rank == 1:
        began = time.time()
        (folder / "began").write_text(str(began))
        if how in ("SIGKILL", "SIGSTOP"):
            os.kill(os.getpid(), getattr(signal, how))
        if how == "failure":
            raise ValueError("no such photo")
        if how == "signal":
            raise SystemExit(143)
    ranks.sum([tensor.fill_(1.0)])
except BaseException as error:
    took = time.time() - float((folder / "began").read_text())
    found = {"kind": type(error).__name__, "text": str(error), "rank": getattr(error, "rank", None), "took": took}
    (folder / f"error-{ranks.rank}.json").write_text(json.dumps(found))
    ranks.leave(error)
    raise
ranks.leave(None)
(folder / f"sum-{ranks.rank}.json").write_text(json.dumps(tensor.tolist()))
"""


@pytest.fixture
def torchrun(start_python, surroundings):
    """Run the script; return torchrun's exit code, its output, and the error of each rank."""

    def call(how, folder, *, processes=2):
        script = folder / "script.py"
        script.write_text(textwrap.dedent(SCRIPT))
        # torchrun looks rarely, so that the other ranks can name the lost one before it ends them.
        agent = ["-m", "torch.distributed.run", "--nproc-per-node", processes, "--monitor-interval", 4]
        words = [*agent, script, how, folder]
        process = start_python(*words, environment=surroundings | {"FIELDWATCH_RANK_PATIENCE": str(PATIENCE)})
        if how == "SIGSTOP":
            kill_stopped(process, folder)
        printed = "".join(process.communicate(timeout=120))
        errors = {int(path.stem[-1]): json.loads(path.read_text()) for path in folder.glob("error-*.json")}
        return process.returncode, printed, errors

    return call


@pytest.fixture
def together(start_python, surroundings):
    """Run the script in processes that nobody watches; return their exit codes, their output, and their errors."""

    def call(how, folder, *, processes=2):
        script = folder / "script.py"
        script.write_text(textwrap.dedent(SCRIPT))
        shared = surroundings | {"FIELDWATCH_RANK_PATIENCE": str(PATIENCE)}
        started = [start_python(script, how, folder, environment=shared | rank) for rank in joined(processes)]
        printed = "".join("".join(process.communicate(timeout=120)) for process in started)
        errors = {int(path.stem[-1]): json.loads(path.read_text()) for path in folder.glob("error-*.json")}
        return [process.returncode for process in started], printed, errors

    return call


def kill_stopped(process, folder):
    """Kill the stopped rank once the other one has reported it, since torchrun would wait for it for 30 s."""
    while not (folder / "error-0.json").exists() and process.poll() is None:
        time.sleep(0.05)
    os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "message", "within"),
    [
        ("SIGKILL", "died at step 19", PATIENCE),
        ("SIGSTOP", "hangs at step 19", PATIENCE + 2 * POLL_INTERVAL.total_seconds() + ANSWER_SECONDS + 1.0),
        ("failure", "ValueError (no such photo)", PATIENCE + POLL_INTERVAL.total_seconds()),
    ],
)
def test_a_lost_rank_is_named_in_time_and_the_others_exit_with_3(tmp_path, how, message, within, torchrun):
    assert STARTUP_COLLECTIVES < 20
    code, printed, errors = torchrun(how, tmp_path)
    assert code != 0
    lost = errors[0]
    assert lost["kind"] == RankLost.__name__, printed
    assert lost["rank"] == 1
    assert lost["text"].startswith("rank 1 on host ")
    assert f"(pid {(tmp_path / 'pid-1').read_text()}) " in lost["text"]
    assert message in lost["text"]
    assert lost["took"] < within
    assert f"exitcode  : {EXIT_LOST_RANK} " in printed


def test_all_ranks_stop_with_a_rank_that_got_a_signal(tmp_path, together):
    codes, printed, errors = together("signal", tmp_path, processes=3)
    assert 0 not in codes, printed
    assert {rank: error["kind"] for rank, error in errors.items()} == {
        0: "Interrupted",
        1: "SystemExit",
        2: "Interrupted",
    }, printed
    assert {error["text"] for error in errors.values()} == {"143"}


def test_announced_work_of_the_first_rank_may_take_longer(tmp_path, together):
    codes, printed, errors = together("evaluation", tmp_path)
    assert (codes, errors) == ([0, 0], {}), printed
    assert json.loads((tmp_path / "sum-1.json").read_text()) == [2.0] * 3
