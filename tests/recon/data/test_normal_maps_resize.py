"""Downscaled normal maps: planes are preserved, cameras match, unknown values are not averaged."""

from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.data import NormalView, scaled_normal_view, synthetic_normal_maps
from fieldwatch.recon.data.normal_maps import NormalMapError
from fieldwatch.recon.geometry import Camera, look_at

NORMAL = torch.nn.functional.normalize(torch.tensor([0.3, -0.2, -1.0]), dim=0)


def plane(width=24, height=16):
    """Return a plane at depth 3 that fills the image."""
    pose = look_at((0.0, 4.0, 0.0), (0.0, 0.0, 0.0))
    camera = Camera(
        name="7", width=width, height=height, fx=60.0, fy=50.0, cx=11.0, cy=9.0, world_from_camera=pose.float()
    )
    towards = camera.directions() @ NORMAL
    depth = (3 * NORMAL[2] / towards).float()
    normals = NORMAL.expand(height, width, 3).clone()
    return NormalView(name="7", camera=camera, normals=normals, mask=torch.ones(height, width).bool(), depth=depth)


@pytest.mark.parametrize("factor", [0.5, 0.25])
def test_a_plane_stays_that_plane(factor):
    view = plane()
    small = scaled_normal_view(view, factor)
    assert small.size == (round(16 * factor), round(24 * factor))
    assert torch.allclose(small.normals, NORMAL.expand_as(small.normals), atol=1e-6)
    assert bool(small.mask.all())
    wanted = 3 * NORMAL[2] / (small.camera.directions() @ NORMAL)
    assert torch.allclose(small.depth, wanted, rtol=5e-4)
    camera = small.camera
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (60 * factor, 50 * factor, 11 * factor, 9 * factor)
    assert torch.equal(camera.world_from_camera, view.camera.world_from_camera)
    assert small.name == "7"


def test_a_factor_of_one_changes_nothing():
    view = synthetic_normal_maps(views=1, size=24).views[0]
    same = scaled_normal_view(view, 1.0)
    assert torch.allclose(same.normals, view.normals, atol=1e-6)
    assert torch.equal(same.mask, view.mask)
    assert torch.allclose(same.depth, view.depth)


def test_what_is_unknown_is_left_out_of_means():
    view = plane(4, 2)
    normals = view.normals.clone()
    depth = view.depth.clone()
    mask = view.mask.clone()
    # a quarter of the first pixel
    normals[0, 0] = 0
    depth[0, 0] = 0
    # half of the second
    normals[:, 2] = 0
    depth[:, 2] = 0
    mask[:, 2] = False
    small = scaled_normal_view(replace(view, normals=normals, depth=depth, mask=mask), 0.5)
    assert torch.allclose(small.normals[0], NORMAL.expand(2, 3), atol=1e-6)
    assert small.depth[0].tolist() == pytest.approx(
        [float(view.depth[[0, 1, 1], [1, 0, 1]].mean()), float(view.depth[:, 3].mean())], rel=1e-5
    )
    assert small.mask.tolist() == [[True, True]]


def test_mostly_unknown_is_unknown():
    view = plane(4, 2)
    normals, depth, mask = (part.clone() for part in (view.normals, view.depth, view.mask))
    for row, column in ((0, 0), (0, 1), (1, 0)):
        normals[row, column] = 0
        depth[row, column] = 0
        mask[row, column] = False
    small = scaled_normal_view(replace(view, normals=normals, depth=depth, mask=mask), 0.5)
    assert small.mask.tolist() == [[False, True]]
    assert small.normals[0, 0].tolist() == [0, 0, 0]
    assert small.depth[0, 0] == 0


def test_normals_that_cancel_are_none():
    view = plane(2, 2)
    normals = view.normals.clone()
    normals[0] = torch.tensor([0.98, 0.0, -0.199])
    normals[1] = torch.tensor([-0.98, 0.0, -0.199])
    assert scaled_normal_view(replace(view, normals=normals), 0.5).normals.tolist() == [[[0, 0, 0]]]


def test_views_without_depth_stay_without():
    assert scaled_normal_view(replace(plane(), depth=None), 0.5).depth is None


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.01, float("nan")])
def test_other_factors_are_refused(factor):
    with pytest.raises(NormalMapError, match=f"greater than 0 and at most 1, got {factor}"):
        scaled_normal_view(plane(), factor)
