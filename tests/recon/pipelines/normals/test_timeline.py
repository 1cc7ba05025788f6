"""The pose timeline: changes between entries; a resumed run rewrites it."""

import math

import numpy as np
import pytest
import torch

from fieldwatch.recon.geometry import exponential, rigid
from fieldwatch.recon.pipelines.normals.timeline import add_poses, pose_file, read_timeline

NAMES = ("a", "b")
START = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)


def moved(degrees, distance):
    turn = exponential(torch.tensor([[0.0, 0.0, math.radians(degrees)]], dtype=torch.float64))
    shift = torch.tensor([[distance, 0.0, 0.0]], dtype=torch.float64)
    return rigid(turn, shift) @ START


def add(folder, iteration, poses):
    return add_poses(folder, iteration, poses, start=START, names=NAMES)


def test_changes_are_from_the_entry_before_and_from_the_start(tmp_path):
    add(tmp_path, 0, START)
    add(tmp_path, 100, moved(2.0, 0.1))
    entry = add(tmp_path, 200, moved(5.0, 0.3))
    assert entry.rotation_change == pytest.approx(3.0)
    assert entry.translation_change == pytest.approx(0.2)
    assert entry.rotation_from_start == pytest.approx(5.0)
    assert entry.translation_from_start == pytest.approx(0.3)
    assert [one.iteration for one in read_timeline(tmp_path)] == [0, 100, 200]
    stored = np.load(pose_file(tmp_path, 200))
    assert stored.dtype == np.float64
    assert np.allclose(stored, moved(5.0, 0.3).numpy())
    assert not list((tmp_path / "poses").glob(".*"))


def test_a_run_that_went_back_writes_its_entries_again(tmp_path):
    for iteration, degrees in ((0, 0.0), (100, 1.0), (200, 2.0)):
        add(tmp_path, iteration, moved(degrees, 0.0))
    entry = add(tmp_path, 100, moved(4.0, 0.0))
    assert entry.rotation_change == pytest.approx(4.0)
    assert [one.iteration for one in read_timeline(tmp_path)] == [0, 100]


def test_a_damaged_timeline_is_told(tmp_path):
    add(tmp_path, 0, START)
    (tmp_path / "poses" / "timeline.json").write_text('{"entries": [{"iter')
    with pytest.raises(ValueError, match=r"/timeline\.json is not .*pose timeline \("):
        add(tmp_path, 100, START)


def test_no_timeline_is_empty(tmp_path):
    assert read_timeline(tmp_path) == ()
