"""Killed without warning, at any moment, a run goes on to the very same weights."""

import random
import signal
import time

import torch

from fieldwatch import Checkpoints, read_history

EPOCHS = 36
STEPS_PER_EPOCH = 7
TOTAL = EPOCHS * STEPS_PER_EPOCH


def arguments(frames, out, tiny):
    options = f"--epochs {EPOCHS} --eval-freq 20 --pixel-loss-warmup-epochs 10 --checkpoint-epochs 3"
    return ["train", "video", "--data", frames, "--out", out, *tiny, *options.split()]


def weights(folder):
    return Checkpoints(folder / "checkpoints").read("last")["model"]


def steps_written(folder):
    path = folder / "journal.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(process, folder, lines):
    deadline = time.monotonic() + 120
    while steps_written(folder) < lines and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode


def test_five_kills_at_random_points_end_in_the_same_weights(frames, tmp_path, start, finish, tiny):
    code, _, errors = finish(*arguments(frames, tmp_path / "whole", tiny))
    assert code in (0, 1), errors  # so small a network may earn findings
    chance = random.Random(20)
    folder = tmp_path / "killed"
    kills = 0
    for part in range(5):
        command = arguments(frames, folder, tiny) if part == 0 else ["resume", folder]
        kills += kill_after(start(*command), folder, steps_written(folder) + chance.randint(20, 60)) == -signal.SIGKILL
    assert kills == 5
    code, _, errors = finish("resume", folder)
    assert code in (0, 1), errors  # so small a network may earn findings

    one = weights(tmp_path / "whole")
    other = weights(folder)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    history = read_history(folder)
    assert history["Loss/total"].steps.tolist() == list(range(TOTAL))
    assert history["Loss/total"].values.tolist() == read_history(tmp_path / "whole")["Loss/total"].values.tolist()


def test_sigterm_saves_and_exits_143_and_the_same_command_goes_on(frames, tmp_path, start, finish, tiny):
    folder = tmp_path / "run"
    process = start(*arguments(frames, folder, tiny))
    deadline = time.monotonic() + 120
    while steps_written(folder) < 40 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    code, out, errors = finish(*arguments(frames, folder, tiny))
    assert code in (0, 1), errors  # so small a network may earn findings
    assert "run folder" in out
    assert read_history(folder)["Loss/total"].steps.tolist() == list(range(TOTAL))
