"""A photo that holds NaN: its updates are refused, it is named, and the others are trained on."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from fieldwatch import Checkpoints, read_history
from fieldwatch.cli import main
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.record import read_events, read_manifest

BAD = "view_005.png"
STEPS = 60


@pytest.fixture
def poisoned(monkeypatch):
    """One pixel of one photo is NaN, each time it is shown."""
    original = Scene.photo_view

    def photo_view(self, index):
        made = original(self, index)
        if made.name == BAD:
            image = made.image.clone()
            image[3, 4, 1] = np.nan
            made = dataclasses.replace(made, image=image)
        return made

    monkeypatch.setattr(Scene, "photo_view", photo_view)


@pytest.mark.usefixtures("poisoned")
def test_a_nan_in_one_photo_is_refused_and_the_photo_is_named(photos, tmp_path, small, capsys):
    folder = tmp_path / "run"
    words = f"--schedule-scale 1 --growth none -r none --coarse-iterations {STEPS}".split()
    code = main(["train", "splats", "--data", str(photos), "--out", str(folder), *small, *words])
    printed = capsys.readouterr()
    found = [event for event in read_events(folder) if event["kind"] == "finding" and event["severity"] == "error"]
    # So few steps may end worse than the mean color, and nothing else is an error.
    assert {event["rule"] for event in found} <= {"WorseThanNothing"}
    assert code == int(bool(found)), printed.err
    assert re.search(rf"(RefusedUpdates|NonFinite).*{re.escape(BAD)}", " ".join(printed.out.split())), printed.out

    refusals = [event for event in read_events(folder) if event["kind"] == "refusal"]
    assert {name for event in refusals for name in event["samples"]} == {BAD}
    refused = {event["step"] for event in refusals}
    assert 5 < len(refused) < STEPS / 2  # one photo of six, in every round
    assert read_manifest(folder).state == "finished"

    state = Checkpoints(folder / "checkpoints").read("last")["gaussians"]
    assert all(bool(torch.isfinite(values).all()) for values in state.values())
    loss = read_history(folder)["Loss/total"]
    others = loss.values[~np.isin(loss.steps, sorted(refused))]
    assert np.isfinite(others).all()
    assert others[-10:].mean() < 0.9 * others[:10].mean()
