"""Two processes train one network: one of them is killed, the other says who it was, and both go on to the same end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fieldwatch import read_history
from fieldwatch.cli import main

ROOT = Path(__file__).parents[2]
STEPS = 12 * 7


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_second(folder, process, after):
    """Kill rank 1 once it has recorded so much; returns its pid and when that was."""
    record = folder / "ranks" / "1"
    deadline = time.monotonic() + 120
    while lines(record / "journal.jsonl") < after and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    pid = json.loads((record / "run.json").read_text())["segments"][-1]["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid, time.time()


def test_a_killed_rank_is_named_and_both_go_on_to_the_loss_of_one_process(frames, tmp_path, tiny, capsys):
    options = "--epochs 12 --eval-freq 6 --pixel-loss-warmup-epochs 3 --checkpoint-epochs 2 --threads 1 --device cpu"
    words = ["train", "video", "--data", str(frames), *tiny, *options.split()]
    assert main([*words, "--out", str(tmp_path / "one")]) in (0, 1)
    capsys.readouterr()

    folder = tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*torchrun, "-m", "fieldwatch", *words, "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    pid, killed = kill_second(folder, process, after=30)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 0, printed

    (crash,) = (folder / "crash").iterdir()
    report = json.loads((crash / "crash.json").read_text())
    assert report["error"].startswith("RankLost: rank 1 on host ")
    assert f"(pid {pid}) died at step " in report["error"]
    assert (crash / "crash.json").stat().st_mtime - killed < 30
    segments = json.loads((folder / "run.json").read_text())["segments"]
    assert len(segments) == 2
    assert segments[1]["step"] == report["last_checkpoint"] > 0

    one = read_history(tmp_path / "one")["Loss/total"]
    two = read_history(folder)["Loss/total"]
    assert two.steps.tolist() == one.steps.tolist() == list(range(STEPS))
    assert two.values.tolist() == pytest.approx(one.values.tolist(), rel=1e-5)
    assert read_history(folder / "ranks" / "1")["Loss/total"].values.tolist() == two.values.tolist()
