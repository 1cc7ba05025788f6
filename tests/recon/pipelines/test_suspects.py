"""Samples that rules suspect at the end of training, and the cameras that see nearly the same."""

import torch

from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.pipelines.splats.rules import WrongPhoto
from fieldwatch.recon.pipelines.suspects import neighbors, suspects


def test_the_named_samples_are_found_before_the_run_has_ended(run_with_losses, tmp_path):
    names = [f"view_{i}" for i in range(9)]
    found, _ = run_with_losses(tmp_path, names, {"view_4"}, lambda run: suspects(run, WrongPhoto(), names))
    assert found == [4]


def test_a_run_without_a_wrong_sample_has_no_suspects(run_with_losses, tmp_path):
    names = [f"view_{i}" for i in range(9)]
    found, _ = run_with_losses(tmp_path, names, (), lambda run: suspects(run, WrongPhoto(), names))
    assert found == []


def test_neighbors_are_the_nearest_of_a_ring_and_never_the_camera_itself():
    cameras = solid_photos(views=9, size=16, points=10).cameras
    forward = torch.stack([camera.forward for camera in cameras])
    position = torch.stack([camera.position for camera in cameras])
    for index in range(9):
        apart = (position - position[index]).norm(dim=1) / 3 + (forward @ forward[index]).clamp(-1, 1).acos()
        expected = apart.argsort()[1:3].tolist()
        assert neighbors(cameras, index, range(9), 3.0) == expected
    assert neighbors(cameras, 2, [2], 3.0) == []
