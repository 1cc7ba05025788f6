"""Every recipe of docs/loops.md is run as it stands: undisturbed, stopped in its middle and resumed, and killed."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from endings import signal_that_ended
from fieldwatch import Interrupted, read_history
from fieldwatch.record import read_manifest
from fieldwatch.run.session import Session

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "loops.md").read_text()
SETUP = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
RECIPES = dict(re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
KILLED = """
import os
from fieldwatch.run.session import Session
end_step = Session.end_step
def end(session):
    if session.log.step_index == {step}:
        os.kill(os.getpid(), 9)
    end_step(session)
    if session.log.step_index == {step} - 2:
        session.save()
Session.end_step = end
"""
TORCHDATA = "torchdata's StatefulDataLoader"
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 calls it


def trained(recipe):
    """Run a recipe in the current folder; return its run, and the state of its modules."""
    names = {}
    exec(compile(SETUP + RECIPES[recipe], "loops.md", "exec"), names)  # noqa: S102  the page's own code
    modules = {name: value for name, value in names.items() if isinstance(value, nn.Module)}
    return names["run"], {f"{name}.{key}": t for name, m in modules.items() for key, t in m.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


@pytest.fixture
def signal_after(monkeypatch):
    """Send SIGTERM to this process when the step of an index ends."""
    end_step = Session.end_step

    def install(step):
        def end(session):
            if session.log.step_index == step:
                monkeypatch.setattr(Session, "end_step", end_step)
                os.kill(os.getpid(), signal.SIGTERM)
            end_step(session)

        monkeypatch.setattr(Session, "end_step", end)

    return install


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_resumes_exactly_and_finds_nothing(recipe, tmp_path, monkeypatch, signal_after):
    if recipe == TORCHDATA and not importlib.util.find_spec("torchdata"):
        pytest.skip("torchdata is not installed")
    folders = [tmp_path / name for name in ("undisturbed", "stopped")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.chdir(folders[0])
    run, expected = trained(recipe)
    assert run.findings == []
    last = run.step_index
    monkeypatch.chdir(folders[1])
    signal_after(last // 2 + 1)
    with pytest.raises(Interrupted):
        trained(recipe)
    run, weights = trained(recipe)
    assert run.step_index == last
    assert_same(weights, expected)
    one, other = (read_history(next((folder / "runs").iterdir())) for folder in folders)
    assert one["Loss/total"].values.tolist() == other["Loss/total"].values.tolist()


def test_the_page_has_all_kinds_of_loops():
    assert len(RECIPES) == PAGE.count("\n## ") >= 13


def killed(recipe, step):
    """Run a recipe in a process that ends at once at the end of a step; return the signal that ended it."""
    code = KILLED.format(step=step) + SETUP + RECIPES[recipe]
    # Torch's workers break in a fork of a process that has had some.
    if "num_workers" in RECIPES[recipe]:
        return -subprocess.run([sys.executable, "-c", code], check=False).returncode
    return signal_that_ended(lambda: exec(compile(code, "loops.md", "exec"), {}))  # noqa: S102  the page's own code


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_killed_process_resumes_exactly(recipe, tmp_path, monkeypatch):
    if recipe == TORCHDATA and not importlib.util.find_spec("torchdata"):
        pytest.skip("torchdata is not installed")
    (tmp_path / "undisturbed").mkdir()
    monkeypatch.chdir(tmp_path / "undisturbed")
    run, expected = trained(recipe)
    monkeypatch.chdir(tmp_path)
    assert killed(recipe, run.step_index // 2 + 3) == signal.SIGKILL
    resumed, weights = trained(recipe)
    assert resumed.step_index == run.step_index
    assert [segment["step"] > 0 for segment in read_manifest(resumed.folder).segments] == [False, True]
    assert_same(weights, expected)
