"""Pinhole cameras: projection, and invariance under resizing."""

import math

import pytest
import torch

from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.geometry import (
    Camera,
    camera_extent,
    far_cameras,
    look_at,
    quaternion_to_matrix,
    rigid,
    similar_cameras,
)


def camera(width=64, height=48, seed=0):
    generator = torch.Generator().manual_seed(seed)
    turn = quaternion_to_matrix(torch.randn(4, generator=generator, dtype=torch.float64))
    pose = rigid(turn, torch.randn(3, generator=generator, dtype=torch.float64))
    return Camera(name="a.png", width=width, height=height, fx=50.0, fy=55.0, cx=30.5, cy=20.25, world_from_camera=pose)


def test_what_is_unprojected_projects_onto_pixel_centers():
    own = camera()
    depth = 1 + torch.rand(own.height, own.width, dtype=torch.float64)
    pixels, back = own.project(own.unproject(depth))
    assert torch.allclose(pixels, own.pixel_centers(), atol=1e-10)
    assert torch.allclose(back, depth)


def test_the_first_pixel_has_its_center_at_a_half():
    assert camera().pixel_centers()[0, 0].tolist() == [0.5, 0.5]


def test_directions_at_some_pixels_are_those_of_all():
    own = camera()
    some = torch.rand(own.height, own.width, generator=torch.Generator().manual_seed(1)) < 0.1
    assert torch.equal(own.directions_at(some), own.directions()[some])


def test_rays_have_length_one_and_pass_through_what_the_pixels_see():
    own = camera()
    origins, directions = own.rays()
    assert torch.allclose(directions.norm(dim=-1), torch.ones(own.height, own.width, dtype=torch.float64))
    pixels, depth = own.project(origins + 3 * directions)
    assert torch.allclose(pixels, own.pixel_centers(), atol=1e-9)
    assert bool((depth > 0).all())


def test_axes_are_right_down_and_forward():
    own = Camera(name="a", width=10, height=10, fx=10.0, fy=10.0, cx=5.0, cy=5.0, world_from_camera=torch.eye(4))
    pixels, depth = own.project(torch.tensor([[1.0, 0, 2], [0, 1, 2], [0, 0, -1]]))
    assert pixels[:2].tolist() == [[10, 5], [5, 10]]
    assert depth.tolist() == [2, 2, -1]


def test_the_matrix_says_what_project_does():
    own = camera()
    points = torch.randn(20, 3, dtype=torch.float64)
    seen = (points @ own.camera_from_world[:3, :3].T + own.camera_from_world[:3, 3]) @ own.K.T
    pixels, depth = own.project(points)
    assert torch.allclose(seen[:, :2] / seen[:, 2:], pixels)
    assert torch.allclose(seen[:, 2], depth)


@pytest.mark.parametrize("factor", [0.5, 0.37, 2.0, 0.001])
def test_scaling_moves_points_in_proportion_even_off_center(factor):
    own = camera()
    points = torch.randn(50, 3, dtype=torch.float64)
    smaller = own.scaled(factor)
    share = torch.tensor([smaller.width / own.width, smaller.height / own.height])
    assert torch.allclose(smaller.project(points)[0], own.project(points)[0] * share)
    assert min(smaller.width, smaller.height) >= 1


def test_a_point_in_the_camera_itself_gives_finite_numbers():
    pixels, depth = camera().project(camera().position[None])
    assert bool(torch.isfinite(pixels).all())
    assert abs(float(depth[0])) < 1e-12


def test_precision_can_be_chosen():
    own = camera().to(dtype=torch.float32)
    assert own.K.dtype == own.rays()[0].dtype == torch.float32


@pytest.mark.parametrize("change", [{"width": 0}, {"fx": 0.0}, {"fy": -1.0}, {"cx": math.nan}, {"cy": math.inf}])
def test_what_is_no_camera_is_refused(change):
    values = {"width": 4, "height": 4, "fx": 1.0, "fy": 1.0, "cx": 2.0, "cy": 2.0, **change}
    with pytest.raises(ValueError, match=rf"camera 'bad'.*focal lengths.* {values['width']}x4 pixels.* fx"):
        Camera(name="bad", **values, world_from_camera=torch.eye(4))


def test_a_pose_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match=r"camera 'bad'.*\(1\.0, 1\.0, 2\.0, 2\.0\).*pose.* not finite"):
        Camera(name="bad", width=4, height=4, fx=1.0, fy=1.0, cx=2.0, cy=2.0, world_from_camera=torch.eye(4) / 0)


def test_the_extent_is_the_largest_distance_from_the_middle_and_a_tenth():
    poses = [look_at((x, 0.0, 0.0), (0.0, 9.0, 0.0)) for x in (-3.0, 0.0, 3.0)]
    lens = {"name": "a", "width": 4, "height": 4, "fx": 1.0, "fy": 1.0, "cx": 2.0, "cy": 2.0}
    assert camera_extent([Camera(**lens, world_from_camera=pose) for pose in poses]) == pytest.approx(3.3)
    with pytest.raises(ValueError, match=r"extent of cameras.* one camera.*none"):
        camera_extent([])


def placed(*places):
    lens = {"width": 4, "height": 4, "fx": 4.0, "fy": 4.0, "cx": 2.0, "cy": 2.0}
    poses = [torch.eye(4, dtype=torch.float64) for _ in places]
    for pose, place in zip(poses, places, strict=True):
        pose[:3, 3] = torch.tensor(place, dtype=torch.float64)
    return [Camera(name=str(i), world_from_camera=pose, **lens) for i, pose in enumerate(poses)]


CORNERS = [(float(x), float(y), 0.0) for x in (-1, 0, 1) for y in (-1, 0, 1)]


def test_one_camera_far_away_does_not_set_the_scale():
    assert far_cameras(placed(*CORNERS)) == ()
    strayed = placed(*CORNERS, (1e6, 0.0, 0.0))
    assert far_cameras(strayed) == (9,)
    assert camera_extent(strayed) == camera_extent(placed(*CORNERS))


def test_cameras_that_many_others_stand_beside_are_not_far():
    two_places = placed(*CORNERS, *((500.0 + x, y, z) for x, y, z in CORNERS[:3]))
    assert far_cameras(two_places) == ()
    assert camera_extent(two_places) > 300
    assert far_cameras(placed((0.0, 0.0, 0.0), (1e6, 0.0, 0.0))) == ()


def test_similar_cameras_are_the_nearest_of_a_ring_and_never_the_camera_itself():
    cameras = solid_photos(views=9, size=16, points=10).cameras
    forward = torch.stack([camera.forward for camera in cameras])
    position = torch.stack([camera.position for camera in cameras])
    for index in range(9):
        apart = (position - position[index]).norm(dim=1) / 3 + (forward @ forward[index]).clamp(-1, 1).acos()
        apart[index] = torch.inf
        expected = apart.argsort()[:2].tolist()
        assert similar_cameras(cameras, index, range(9), count=2, size=3.0) == expected
    assert similar_cameras(cameras, 2, [2], count=2, size=3.0) == []
