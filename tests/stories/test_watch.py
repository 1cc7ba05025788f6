"""A training in one process, watched from real terminals: while it runs, while it waits, and when it has ended."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
TMUX = shutil.which("tmux")
STEPS = 80
HELD = 60
LOOP = f"""
import sys, time
from pathlib import Path
import torch
from fieldwatch import Outputs, Run, Saving, Terms

torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(64, 4)
targets = inputs @ torch.randn(4, 3)
with Run(sys.argv[1], outputs=Outputs(rules=()), saving=Saving(every=20)) as run:
    run.track(model=model, optimizer=optimizer)
    run.resume()
    for step in run.steps({STEPS}):
        while step.index == {HELD} and not Path(sys.argv[2]).exists():
            time.sleep(0.02)
        error = model(inputs) - targets
        terms = Terms(color=(1.0, error.square().mean()), small=(0.01, model.weight.abs().mean()))
        optimizer.zero_grad()
        terms.total.backward()
        step.observe(terms)
        step.update(optimizer)
        step.record({{"Train/PSNR": -10 * error.detach().square().mean().log10()}})
"""
WHERE = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}  # terminals know better
ENVIRONMENT = WHERE | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}


class Terminals:
    """Terminals of any size, by tmux, on a server of their own."""

    def __init__(self, socket):
        self._tmux = [TMUX, "-u", "-f", "/dev/null", "-S", socket]

    def __call__(self, *words):
        return subprocess.run([*self._tmux, *words], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout

    def open(self, name, width, height, *command):
        words = " ".join(map(str, (sys.executable, "-m", "fieldwatch", *command)))
        line = f"{words}; echo EXIT $?; sleep 600"
        self("new-session", "-d", "-s", name, "-x", str(width), "-y", str(height), line)

    def shows(self, name, pattern):
        """Wait until the terminal shows something; returns all it shows."""
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            screen = self("capture-pane", "-p", "-t", name)
            if re.search(pattern, screen):
                return screen
            time.sleep(0.1)
        pytest.fail(f"the terminal {name} never showed {pattern!r}; it shows\n{screen}")


@pytest.fixture
def terminals():
    if TMUX is None:
        pytest.skip("no tmux on this machine: a real terminal cannot be looked into (apt-get install tmux)")
    with tempfile.TemporaryDirectory(prefix="fw") as folder:  # a socket's path must be short
        tmux = Terminals(f"{folder}/s")
        try:
            yield tmux
        finally:
            subprocess.run([TMUX, "-S", f"{folder}/s", "kill-server"], capture_output=True, check=False)


@pytest.fixture
def start():
    """Start the training; whatever happens, it is not left running."""
    running = []

    def begin(*arguments):
        running.append(subprocess.Popen([sys.executable, "-c", LOOP, *arguments], env=ENVIRONMENT))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def test_a_training_is_watched_from_two_terminals_until_it_ends(terminals, start, tmp_path):
    folder = tmp_path / "run"
    terminals.open("small", 80, 24, "watch", folder, "--wait", "--interval", "0.2")
    terminals.open("large", 160, 50, "watch", folder, "--wait", "--interval", "0.2")
    terminals.shows("small", "NOT STARTED")
    go = tmp_path / "go"
    training = start(folder, go)
    held = rf"step {HELD} of {STEPS}[^\n]* 75%(?=[\s\S]*memory)(?=[\s\S]*speed)"  # a screen may be caught half drawn
    small = terminals.shows("small", held)
    large = terminals.shows("large", rf"{held}[\s\S]*checkpoint  step 40")
    for screen in (small, large):
        assert screen.startswith("RUNNING")
        assert {"color", "small", "gradients", "Train/PSNR", "memory", "speed"} <= set(re.findall(r"[\w/]+", screen))
        assert re.search(r"Loss/total +\d\S* +█", screen)
    assert max(map(len, small.splitlines())) <= 80
    assert re.search(r"Loss/total .* Train/PSNR", large), large

    terminals("resize-window", "-t", "large", "-x", "60", "-y", "14")
    resized = terminals.shows("large", r"(?m)^Loss/total[^\n]{20,50}$")
    assert max(map(len, resized.splitlines())) <= 60

    terminals("send-keys", "-t", "large", "C-c")
    assert "RUNNING" in terminals.shows("large", "EXIT 0")
    assert training.poll() is None
    go.touch()
    assert training.wait(60) == 0
    ended = terminals.shows("small", f"FINISHED[\\s\\S]*step {STEPS} of {STEPS}")
    assert "100%" in ended
    terminals("send-keys", "-t", "small", "C-c")
    terminals.shows("small", "EXIT 0")
    terminals.open("after", 80, 24, "watch", folder)
    left = terminals.shows("after", "EXIT 0")
    assert "FINISHED" in left
    assert "Loss/total" in left
