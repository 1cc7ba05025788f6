"""A training of a pipeline that overflows early: the replay names the operation, though no checkpoint is that old."""

import json
import re
from pathlib import Path

import pytest

from fieldwatch import recon

PACKAGE = Path(recon.__file__).parent
NORMALS = "--views 4 --size 32 --steps 30 --no-doctor --rebuilds 0 --rollbacks 0".split()
SPLATS = "-r none --coarse-iterations 1000 --schedule-scale 0.02".split()


@pytest.fixture
def overflowing(frames, photos, tiny, small):
    """Words that begin a training whose rate is so high that values overflow within a few steps."""
    return {
        "normals": ["normals", *NORMALS, "--lr", "1e30"],
        "splats": ["splats", "--data", photos, *small, *SPLATS, "--lr-scales", "1e4"],
        "video": ["video", "--data", frames, *tiny, "--epochs", "3", "--lr", "1e20"],
    }


@pytest.mark.parametrize("pipeline", ["normals", "splats", "video"])
def test_the_operation_that_overflows_is_named_with_its_line(pipeline, overflowing, tmp_path, finish):
    folder = tmp_path / "run"
    code, out, errors = finish("train", *overflowing[pipeline], "--out", folder)
    assert code in (1, 3), errors
    command = re.search(r"fieldwatch replay \S+ --step (\d+)", out + errors)
    assert command, out + errors
    step = command[1]
    code, out, errors = finish("replay", folder, "--step", step, "--out", tmp_path / "seen", "--json")
    assert code == 0, errors
    found = json.loads(out)
    assert not found["from_checkpoint"]
    assert found["equality"]["equal"]
    assert found["repeats"]["differing"] == []
    first = found["trace"]["first"]
    assert any(name.startswith("gradient of ") for name in first["reached"])
    place = first["stack"][0]
    assert Path(place["file"]).is_relative_to(PACKAGE)
    assert place["line"] > 1
