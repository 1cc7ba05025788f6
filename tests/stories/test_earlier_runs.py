"""A loop of a user that worked on Monday: what the verdict of Tuesday says of what was changed since."""

import functools
import json
import os
import shutil
from pathlib import Path

import pytest

from fieldwatch import read_history
from fieldwatch.cli import main
from fieldwatch.record.source_code import SOURCE, read_source_code

ROOT = Path(__file__).parents[2]
SCRIPT = """
import argparse
import torch
import fieldwatch as fw
from net import make
from fieldwatch.run import Outputs, Saving

words = argparse.ArgumentParser()
words.add_argument("--out")
words.add_argument("--lr", type=float, default=0.01)
words.add_argument("--steps", type=int, default=300)
words.add_argument("--alone", action="store_true")
words = words.parse_args()
torch.manual_seed(0)
points = torch.rand(600, 2) * 2 - 1
targets = (points[:, :1] * points[:, 1:] * 3).tanh()
net = make()
optimizer = torch.optim.Adam(net.parameters(), lr=words.lr)


def objective(batch):
    return fw.Terms(fit=(1.0, (net(points[batch]) - targets[batch]).square().mean()))


outputs = Outputs(compare_earlier=False, keep_code=False) if words.alone else Outputs()
with fw.Run(words.out, config={"lr": words.lr}, outputs=outputs, saving=Saving(every=100)) as run:
    run.track(net=net, optimizer=optimizer)
    run.resume()
    for step in run.steps(words.steps):
        step.backward(objective, torch.randint(0, 500, (64,)))
        step.update(optimizer)
        if step.every(50):
            with run.evaluation("held out"):
                step.record({"Eval/mse": objective(torch.arange(500, 600))["fit"].value})
"""
NET = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
"""


def trained(forks, project, name, *words, code=0):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = forks.start(["train.py", "--out", f"runs/{name}", *words], environment, project)
    _, err = process.communicate()
    assert process.returncode == code, err
    return project / "runs" / name


@pytest.fixture(scope="module")
def monday(forks, tmp_path_factory):
    """A project with one good run, on which the tests build."""
    folder = tmp_path_factory.mktemp("monday") / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "net.py").write_text(NET)
    trained(forks, folder, "monday")
    return folder


@pytest.fixture
def project(monday, tmp_path):
    return shutil.copytree(monday, tmp_path / "project")


@pytest.fixture
def train(forks, project):
    return functools.partial(trained, forks, project)


@pytest.fixture
def verdict(capsys):
    def of(run):
        capsys.readouterr()
        main(["health", str(run), "--json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        # A busy machine is noted: its steps are slower than others.
        return {each["rule"]: each for each in findings if each["rule"] != "StepOutlier"}

    return of


def test_the_line_and_the_setting_that_were_changed_are_named(project, train, verdict):
    good = project / "runs" / "monday"
    assert verdict(good) == {}
    assert read_source_code(good).files == {"net.py": NET, "train.py": SCRIPT}
    before = {path: path.read_bytes() for path in good.rglob("*") if path.is_file()}
    broken = "targets[batch]).square()"
    (project / "train.py").write_text(SCRIPT.replace(broken, "targets[batch - 1]).square()"))
    found = verdict(train("tuesday", "--lr", "0.02"))["WorseSinceChange"]
    place = f"train.py:{SCRIPT[: SCRIPT.index(broken)].count(chr(10)) + 1}"
    assert found["severity"] == "warning"
    for word in ("monday", place, "targets[batch]", "targets[batch - 1]", "lr (0.01 there, 0.02 here)"):
        assert word in found["message"]
    assert place in found["remedy"]
    assert "lr to 0.01" in found["remedy"]
    assert {path: path.read_bytes() for path in good.rglob("*") if path.is_file()} == before


def test_a_resumed_run_is_compared_at_its_end_and_keeps_both_versions_of_its_code(project, train, verdict):
    stop = "        if step.every(50):\n"
    (project / "net.py").write_text(NET.replace("torch.nn.Tanh()", "torch.nn.Identity()"))
    (project / "train.py").write_text(SCRIPT.replace(stop, f"        assert step.index < 120\n{stop}"))
    run = train("tuesday", code=1)
    assert not read_history(run).events("earlier_run")
    assert read_source_code(run).files["train.py"] != SCRIPT
    (project / "train.py").write_text(SCRIPT)
    found = verdict(train("tuesday"))["WorseSinceChange"]
    assert read_source_code(run).files["train.py"] == SCRIPT
    assert [each.name for each in run.glob("code_until_*.zip")] == ["code_until_0000000100.zip"]
    # The script is the same again; the module is not.
    assert "net.py:5" in found["message"]
    assert "train.py" not in found["message"]


def test_both_can_be_turned_off(project, train, verdict):
    (project / "net.py").write_text(NET.replace("torch.nn.Tanh()", "torch.nn.Identity()"))
    run = train("tuesday", "--alone")
    assert not {"WorseThanEarlier", "WorseSinceChange"} & verdict(run).keys()
    assert not (run / SOURCE).exists()


def test_damage_to_an_earlier_run_does_not_harm_a_later_one(project, train, verdict):
    good = project / "runs" / "monday"
    (good / SOURCE).write_bytes(b"not an archive")
    (good / "journal.jsonl").write_bytes((good / "journal.jsonl").read_bytes()[:3000] + b"\0\n")
    (good / "events.jsonl").unlink()
    assert verdict(train("tuesday", "--lr", "0.011")) == {}
