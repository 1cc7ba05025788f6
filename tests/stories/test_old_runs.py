"""A run of an earlier version that was killed: it is reported, examined, resumed and finished by this one."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch

from fieldwatch import Checkpoints, read_history
from fieldwatch.checkpoint.folder import read_manifest
from fieldwatch.checkpoint.layout import LAYOUTS
from fieldwatch.cli import main

FIXTURES = Path(__file__).parents[1] / "fixtures" / "old_runs"
SCRIPT = runpy.run_path(str(FIXTURES / "train_and_die.py"))
VERSIONS = sorted(path.name for path in FIXTURES.iterdir() if (path / "run.json").is_file())
LAST = 6
MIDDLE = 3


@pytest.fixture(params=VERSIONS)
def killed(request, tmp_path, monkeypatch):
    """A copy of the folder of a killed run, and the frames it was trained on, in the current folder."""
    monkeypatch.chdir(tmp_path)
    SCRIPT["write_frames"](tmp_path / "frames")
    return Path(shutil.copytree(FIXTURES / request.param, "run"))


def test_there_are_runs_of_earlier_versions():
    assert {"1dd8b72", "4e344f1"} <= set(VERSIONS)


def test_it_is_reported_and_examined(killed, capsys):
    assert main(["report", str(killed), "--json"]) == 0
    account = json.loads(capsys.readouterr().out)
    assert account["run"]["pipeline"] == "video"
    assert account["series"]["Loss/total"]
    assert main(["report", str(killed)]) == 0
    assert (killed / "report.html").is_file()
    capsys.readouterr()
    assert main(["health", str(killed), "--json"]) in (0, 3)  # 3 where it can be seen that its process is gone
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_it_is_resumed_and_finished(killed, capsys):
    stored = Checkpoints(killed / "checkpoints").read(MIDDLE)["model"]
    assert main(["resume", str(killed), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["metrics"]["Eval/Pooled/val_psnr"] > 5
    manifest = json.loads((killed / "run.json").read_text())
    assert manifest["state"] == "finished"
    assert [segment["step"] for segment in manifest["segments"]] == [0, MIDDLE]
    assert read_history(killed)["Loss/total"].steps.tolist() == list(range(LAST))
    checkpoints = Checkpoints(killed / "checkpoints")
    assert read_manifest(checkpoints.find(LAST).path).version == max(LAYOUTS)
    assert not all(torch.equal(value, stored[name]) for name, value in checkpoints.read(LAST)["model"].items())
    assert main(["report", str(killed)]) == 0
    assert main(["health", str(killed)]) in (0, 1)
