"""Camera paths: positions and view directions."""

import math

import pytest
import torch

from fieldwatch.recon.geometry import Camera, focus_point, look_at, ring, spiral, turntable


def proper(poses):
    turns = poses[..., :3, :3]
    same = torch.eye(3, dtype=torch.float64).expand_as(turns)
    return torch.allclose(turns @ turns.mT, same) and torch.allclose(
        torch.linalg.det(turns), torch.ones(len(poses), dtype=torch.float64)
    )


def cameras(poses):
    lens = {"width": 8, "height": 6, "fx": 9.0, "fy": 9.0, "cx": 3.0, "cy": 3.0}
    return [Camera(name=f"{i}", **lens, world_from_camera=pose) for i, pose in enumerate(poses)]


def test_a_camera_on_x_looks_back_with_z_up():
    pose = look_at((2.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    expected = [[0, 0, -1], [1, 0, 0], [0, -1, 0]]  # columns: right is y, down is -z, forward is -x
    assert torch.allclose(pose[:3, :3], torch.tensor(expected, dtype=torch.float64))


def test_looking_along_up_still_gives_a_rotation():
    assert proper(torch.stack([look_at((0.0, 0.0, z), (0.0, 0.0, 0.0)) for z in (3.0, -3.0)]))


def test_a_camera_in_its_target_is_refused():
    with pytest.raises(ValueError, match=r"got \(1\.0, 1\.0, 1\.0\) for both"):
        look_at((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))


def test_a_ring_is_even_level_and_looks_inwards():
    target = (1.0, -2.0, 0.5)
    poses = ring(12, radius=2.0, height=0.7, target=target, start=0.1)
    offsets = poses[:, :3, 3] - torch.tensor(target, dtype=torch.float64)
    assert proper(poses)
    assert torch.allclose(offsets[:, 2], torch.full((12,), 0.7, dtype=torch.float64))
    steps = (offsets - offsets.roll(1, 0)).norm(dim=-1)
    assert torch.allclose(steps, torch.full_like(steps, 2 * 2 * math.sin(math.pi / 12)))
    assert torch.allclose(focus_point(cameras(poses)), torch.tensor(target, dtype=torch.float64))


def test_a_spiral_climbs_over_a_sphere():
    poses = spiral(20, radius=3.0, lowest=10.0, highest=80.0, turns=2.5)
    places = poses[:, :3, 3]
    assert proper(poses)
    assert torch.allclose(places.norm(dim=-1), torch.full((20,), 3.0, dtype=torch.float64))
    assert bool((places[:, 2].diff() > 0).all())
    assert math.degrees(math.asin(float(places[-1, 2]) / 3)) == pytest.approx(80)


def test_a_turntable_goes_round_what_was_looked_at_in_a_world_of_any_up():
    lying = torch.tensor([[1.0, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], dtype=torch.float64)
    taken = cameras(lying @ ring(9, radius=2.0, height=1.0, target=(0.5, 0.0, 0.0)))
    film = turntable(taken, 30)
    places = torch.stack([camera.position for camera in film])
    assert [camera.name for camera in film[:2]] == ["turntable_0000", "turntable_0001"]
    assert torch.allclose(focus_point(film), focus_point(taken))
    assert torch.allclose(places[:, 1], torch.full((30,), -1.0, dtype=torch.float64))  # up is -y
    assert torch.allclose(
        film[3].world_from_camera[:3, 1] @ taken[0].world_from_camera[:3, 1], torch.tensor(1.0).double(), atol=0.4
    )
    with pytest.raises(ValueError, match=r"turntable.* one camera.*none"):
        turntable([], 3)


def test_cameras_that_look_the_same_way_still_have_a_point():
    poses = torch.eye(4, dtype=torch.float64).repeat(3, 1, 1)
    poses[:, 0, 3] = torch.tensor([-1.0, 0, 1])
    assert torch.allclose(focus_point(cameras(poses)), torch.tensor([0.0, 0, 1], dtype=torch.float64))
