"""examples/slurm.sh, without Slurm: it is sent the signals that Slurm sends, and `scontrol` notes what it is asked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm.sh"
TRAINING = """
import os, time, torch, sys
from fieldwatch import Outputs, Run, Saving, Terms
torch.manual_seed(0)
weight = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.Adam([weight], lr=0.1)
with Run("run", saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
    run.track(weight=weight, optimizer=optimizer)
    run.resume()
    for step in run.steps(60):
        terms = Terms(fit=(1.0, (weight - torch.rand(3)).square().sum()))
        optimizer.zero_grad()
        terms.total.backward()
        step.observe(terms)
        step.update(optimizer)
        if step.index == 30 and sys.argv[1:]:
            open("ready", "w").close()
            while not os.path.exists("go"):  # a step that is in progress when the signal arrives
                time.sleep(0.01)
print(weight.tolist())
"""


@pytest.fixture
def job(tmp_path):
    """Start the script with a command; `scontrol` writes its arguments to the file `asked`."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text('#!/bin/sh\necho "$@" >asked\n')
    scontrol.chmod(0o755)
    environment = {**os.environ, "PATH": f"{scontrol.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}

    started = []

    def start(*command):
        arguments = ["bash", SCRIPT, *command]
        started.append(subprocess.Popen(arguments, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.stdout.close()


def wait_for(path):
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.01)


def test_a_job_whose_time_is_up_goes_back_to_the_queue_and_resumes_exactly(job, tmp_path):
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    expected = subprocess.run(
        [sys.executable, "-c", TRAINING], cwd=undisturbed, capture_output=True, text=True, check=True
    ).stdout
    first = job(sys.executable, "-c", TRAINING, "wait")
    wait_for(tmp_path / "ready")
    first.send_signal(signal.SIGUSR1)
    time.sleep(0.1)
    (tmp_path / "go").touch()
    out, _ = first.communicate(timeout=60)
    assert "(143)" in out
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
    assert first.returncode == 0
    second = job(sys.executable, "-c", TRAINING)
    out, _ = second.communicate(timeout=60)
    assert (second.returncode, out) == (0, expected)


SLOW_TO_STOP = "trap 'sleep 0.3; exit 143' TERM; touch ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM]])
def test_a_preempted_job_waits_for_its_training_and_leaves_the_queue_to_slurm(job, tmp_path, signals):
    running = job("bash", "-c", SLOW_TO_STOP)
    wait_for(tmp_path / "ready")
    for each in signals:
        running.send_signal(each)
        time.sleep(0.1)
    assert running.wait(timeout=60) == 143
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("code", [0, 2])
def test_a_job_that_ends_by_itself_has_the_code_of_its_training(job, tmp_path, code):
    assert job("bash", "-c", f"exit {code}").wait(timeout=60) == code
    assert not (tmp_path / "asked").exists()
