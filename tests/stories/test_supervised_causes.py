"""Under ``--supervise``: what passes by itself is waited for, what the user has to mend is refused once."""

import json
import os
import shutil
import signal
import sys
import time

import pytest

from fieldwatch import Outputs, read_history
from fieldwatch.cli.supervise import limit_of, resume_arguments
from fieldwatch.monitor import GAVE_UP, Supervisor, SupervisorLink, last_checkpoint, read_black_box, read_channel
from fieldwatch.run import Run

LONG = "--epochs 10 --eval-freq 10 --pixel-loss-warmup-epochs 2 --checkpoint-epochs 2".split()
SHORT = "--epochs 2 --eval-freq 2 --pixel-loss-warmup-epochs 1 --checkpoint-epochs 1".split()

LOOP = """
import sys
from pathlib import Path
import torch
from torch import nn
from fieldwatch import Outputs, Run, Saving, Terms
from fieldwatch.monitor import supervisor_link

start = supervisor_link().attempt

def sinks(folder):
    if start == 1:
        raise OSError(28, "No space left on device", str(folder))
    return []

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
with Run(sys.argv[1], outputs=Outputs(sinks=sinks, rules=()), saving=Saving(every=5)) as run:
    run.track(model=model, optimizer=optimizer)
    run.resume()
    for step in run.steps(20):
        terms = Terms(fit=(1.0, model(torch.randn(8, 2)).square().mean()))
        optimizer.zero_grad()
        terms.total.backward()
        step.observe(terms)
        if start == 2 and step.index == 12:
            sys.exit(2)  # as a library would
        step.update(optimizer)
"""


def test_an_error_on_entering_and_a_librarys_exit_are_named_and_got_over(tmp_path):
    program = tmp_path / "loop.py"
    folder = tmp_path / "run"
    lines = list[str]()
    program.write_text(LOOP)
    supervisor = Supervisor(lambda _: [sys.executable, str(program), str(folder)], announce=lines.append, pause=0.01)
    assert supervisor.run() == 0, lines
    assert [one.cause for one in supervisor.attempts] == ["disk", "left", "finished"]
    assert "No space left" in lines[0]
    assert "sys.exit(2) was called" in lines[1]
    assert "loop.py" in lines[1]
    assert supervisor.attempts[1].last_checkpoint == 10
    assert read_history(folder)["Loss/total"].steps.tolist() == list(range(20))


def test_the_data_folder_of_a_run_is_waited_for(frames, tmp_path, start_anew, tiny):
    away = tmp_path / "away"
    data = tmp_path / "frames"
    folder = tmp_path / "run"
    shutil.copytree(frames, data)
    words = ["train", "video", "--data", data, "--out", folder, *tiny, *LONG, "--supervise"]
    first = start_anew(*words)
    deadline = time.monotonic() + 120
    while last_checkpoint(folder) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=120)
    assert first.returncode == 128 + signal.SIGTERM
    data.rename(away)
    supervisor = start_anew(*words)
    said = ""
    with supervisor:
        for line in supervisor.stderr:
            said += line
            if "restarting from" in line:
                break
        away.rename(data)
        _, rest = supervisor.communicate(timeout=240)
    assert supervisor.returncode in (0, 1), said + rest
    told = [json.loads(line) for line in (folder / "crash/attempts.jsonl").read_text().splitlines()]
    causes = [one["cause"] for one in told]
    assert causes[0] == "data"
    assert set(causes[:-1]) == {"data"}
    assert causes[-1] == "finished"
    assert str(data) in said


def test_a_mistyped_data_folder_is_refused_once(tmp_path, start, tiny):
    data = tmp_path / "typo"
    supervisor = start("train", "video", "--data", data, "--out", tmp_path / "run", *tiny, "--supervise")
    _, said = supervisor.communicate(timeout=120)
    assert supervisor.returncode == 2, said
    assert str(data) in said
    assert "restarting from" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [["--epochs", "0"], ["--epochz", "3"], ["--hang-timeout", "-1"]])
def test_a_bad_flag_is_refused_once(frames, tmp_path, start, tiny, wrong):
    supervisor = start("train", "video", "--data", frames, "--out", tmp_path / "run", *tiny, *wrong, "--supervise")
    _, said = supervisor.communicate(timeout=120)
    assert supervisor.returncode == 2, said
    assert "restarting from" not in said


def test_a_config_that_does_not_fit_the_run_is_refused_once(frames, tmp_path, start, tiny):
    words = ["train", "video", "--data", frames, "--out", tmp_path / "run", *tiny, "--supervise"]
    first = start(*words, *SHORT)
    _, said = first.communicate(timeout=120)
    assert first.returncode in (0, 1), said
    second = start(*words, *SHORT, "--seed", "7")
    _, said = second.communicate(timeout=120)
    assert second.returncode == 2, said
    assert "restarting from" not in said


@pytest.fixture
def channel(monkeypatch):
    """The supervisor's end of a pipe into which this process speaks, as its child would."""
    mine, theirs = os.pipe()
    os.set_blocking(mine, False)
    said = SupervisorLink(supervisor=os.getppid(), attempt=1, channel=theirs)
    monkeypatch.setenv(*next(iter(said.environment().items())))
    yield lambda: read_channel(os.read(mine, 65536).split(b"\n"))
    os.close(mine)
    os.close(theirs)


def test_an_error_in_entering_a_run_carries_its_reason(channel, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), Run(tmp_path / "file" / "run", outputs=Outputs(sinks=())):
        pass
    _, words = channel()
    assert (words.cause, words.missing) == ("exception", True)
    assert str(tmp_path / "file") in words.detail


@pytest.mark.parametrize(
    ("code", "ending", "cause"),
    [(2, "failed", "left"), ("no license", "failed", "left"), (None, "interrupted", "interrupted"),
     (143, "interrupted", "interrupted")],
)  # fmt: skip
def test_how_a_loop_exits_says_whether_it_was_asked_to(tmp_path, code, ending, cause):
    with pytest.raises(SystemExit), Run(tmp_path, outputs=Outputs(sinks=(), rules=())) as run:
        run.track()
        run.resume()
        sys.exit(code)
    beat = read_black_box(tmp_path)
    assert (beat.ending, beat.cause.partition(":")[0]) == (ending, cause)


def test_a_run_that_had_a_checkpoint_is_continued_or_refused_and_never_begun_anew(tmp_path):
    words = ["--data", "frames", "--resume", "auto"]
    assert resume_arguments(words, tmp_path, must=True)[-4:] == ["--resume", "must", "--out", str(tmp_path)]
    assert resume_arguments(words, tmp_path)[-4:] == ["--resume", "auto", "--out", str(tmp_path)]


def test_the_limit_per_hour_is_read_however_it_is_written():
    assert limit_of(["--restarts-per-hour", "3"]) == limit_of(["--restarts_per_hour=3"]) == 3
    assert limit_of(["--restarts-per-hour", "many"]) == limit_of([]) == 10


def test_damaged_checkpoints_end_supervision_before_anything_begins_at_0(frames, tmp_path, start, tiny):
    folder = tmp_path / "run"
    supervisor = start("train", "video", "--data", frames, "--out", folder, *tiny, *LONG, "--supervise")
    deadline = time.monotonic() + 120
    while last_checkpoint(folder) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = read_black_box(folder).pid
    os.kill(pid, signal.SIGSTOP)  # no further checkpoint
    for file in (folder / "checkpoints").glob("*/*"):
        file.write_bytes(file.read_bytes()[:-9])
    os.kill(pid, signal.SIGKILL)
    _, said = supervisor.communicate(timeout=240)
    assert supervisor.returncode in (2, 3, GAVE_UP), said
    history = read_history(folder)
    assert history["Loss/total"].steps[-1] > 0
    starts = json.loads((folder / "run.json").read_text())["segments"]
    assert [one["step"] for one in starts] == [0]  # only the first start began at 0
