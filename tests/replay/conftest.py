"""A stranger's loop with faults that can be planted at a known step, and runs trained by it."""

import hashlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from fieldwatch.cli import main
from fieldwatch.replay import places

ROOT = Path(__file__).parents[2]
BAD = 17
LOOP = """
import os, signal, sys
import torch
from torch import nn
import fieldwatch as fw
from fieldwatch.run import Saving

folder, fault = sys.argv[1:3]


class Density(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 8)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, bad):
        hidden = self.inner(x).relu()
        if bad and fault == "log":
            hidden = hidden + torch.log(-self.scale)  # LOG
        if bad and fault == "half":
            hidden = (hidden.half() * 300 + 300).square().float()  # HALF
        if bad and fault == "sqrt":
            hidden = hidden + torch.sqrt(self.scale - self.scale.detach())  # SQRT
        if bad and fault == "raise":
            torch.linalg.cholesky(-torch.eye(2) * self.scale)  # RAISE
        if bad and fault == "mask":
            hidden = hidden + torch.zeros(8).masked_fill(torch.arange(8) > 3, -torch.inf).exp()
        if bad and fault == "native":
            import ctypes
            table = torch.empty(8)  # NATIVE
            ctypes.memset(table.data_ptr(), 0xFF, 32)
            hidden = hidden + table
        return hidden


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.heads = nn.ModuleDict({"density": Density()})
        self.last = nn.Linear(8, 1)

    def forward(self, x, bad):
        return self.last(self.heads["density"](self.first(x), bad))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
names = [f"view {k}" for k in range(16)]


def objective(points):
    error = (model(points, run.step_index == 17).squeeze() - points.prod(dim=1)).square()
    terms = fw.Terms(fit=(1.0, error.mean()), small=(0.01, model.last.weight.square().sum()))
    return fw.StepOutput(terms=terms, sample_loss=error.detach())


saving = Saving(every=10, keep=fw.Retention(every=10))
with fw.Run(folder, saving=saving) as run:
    run.track(model=model, optimizer=optimizer)
    run.resume()
    for step in run.steps(30):
        step.backward(objective, torch.rand(16, 2), samples=names)
        step.update(optimizer)
        if fault == "kill" and step.index == 25 and "die" in sys.argv:
            run.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if step.every(5):
            with run.evaluation("test"):
                step.record({"Eval/fit": float(model(torch.rand(8, 2), False).mean())})
"""


@pytest.fixture(autouse=True)
def _without_checks(monkeypatch):
    """Leave the checks of the tests, which wrap every function of the toolkit, out of the stacks."""
    hidden = (*places._HIDDEN_FILES, str(ROOT / "tests" / "conftest.py"))
    monkeypatch.setattr(places, "_HIDDEN_FILES", hidden)
    places.is_hidden.cache_clear()


@pytest.fixture
def loop(tmp_path) -> Path:
    """A script; its lines with a fault end with the fault's name."""
    path = tmp_path / "my_loop.py"
    path.write_text(LOOP.lstrip())
    return path


@pytest.fixture
def train(loop, tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Train with a fault, in this process."""

    def call(fault: str) -> Path:
        folder = tmp_path / "runs" / fault
        monkeypatch.setattr(sys, "argv", [str(loop), str(folder), fault])
        runpy.run_path(str(loop), run_name="__main__")
        return folder

    return call


@pytest.fixture
def train_and_die(loop, tmp_path, python) -> Callable[[], Path]:
    """Train in a process that is killed with SIGKILL after step 25."""

    def call() -> Path:
        folder = tmp_path / "runs" / "killed"
        done = python(loop, folder, "kill", "die")
        assert done.returncode == -9, done.stderr
        return folder

    return call


@pytest.fixture
def replay(tmp_path, capsys) -> Callable[..., dict]:
    """Run `fieldwatch replay ... --out` and return what it wrote."""

    def call(*words: object) -> dict:
        out = tmp_path / "out"
        at = words.index("--") if "--" in words else len(words)
        line = [*words[:at], "--out", out, *words[at:]]
        code = main(["replay", *map(str, line)])
        assert code == 0, capsys.readouterr().err
        assert (out / "replay.html").exists()
        return orjson.loads((out / "replay.json").read_bytes())

    return call


@pytest.fixture
def digest() -> Callable[[Path], dict[str, str]]:
    """Return the hashes of all files of a folder."""

    def call(folder: Path) -> dict[str, str]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return call
