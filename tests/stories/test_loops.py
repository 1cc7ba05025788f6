"""Every recipe of docs/loops.md is run as it stands: undisturbed, stopped in its middle and resumed, and killed."""

import importlib.util
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from fieldwatch import Interrupted, read_history
from fieldwatch.run.session import Session

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "loops.md").read_text()
SETUP = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
RECIPES = dict(re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
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


def test_a_killed_process_resumes_exactly(tmp_path, monkeypatch, python):
    """The recipe that saves at every tenth step, killed at the 26th."""
    recipe = "Epochs"
    (tmp_path / "undisturbed").mkdir()
    monkeypatch.chdir(tmp_path / "undisturbed")
    _, expected = trained(recipe)
    killed = RECIPES[recipe].replace(
        "            run.end_step()",
        "            step.index == 25 and os.kill(os.getpid(), 9)\n            run.end_step()",
    )
    assert killed != RECIPES[recipe]
    done = python("-c", f"import os\n{SETUP}{killed}", folder=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    monkeypatch.chdir(tmp_path)
    _, weights = trained(recipe)
    assert_same(weights, expected)
