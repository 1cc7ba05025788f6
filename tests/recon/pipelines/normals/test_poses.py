"""Initial poses of the cameras, and their optimization."""

import math

import pytest
import torch

from fieldwatch.recon.data import NormalView, ring_cameras
from fieldwatch.recon.geometry import exponential
from fieldwatch.recon.pipelines.normals.batches import RaySource
from fieldwatch.recon.pipelines.normals.config import PoseOptions, RayOptions
from fieldwatch.recon.pipelines.normals.poses import Poses, ring_poses, starting_poses
from fieldwatch.recon.pipelines.normals.rendering import rays_in_scene
from fieldwatch.recon.render import points_along

LEARNED = PoseOptions(learn_rotation=True, learn_translation=True)
RING = torch.stack([camera.world_from_camera for camera in ring_cameras(3, 24)]).double()


def seen_by(cameras, mask=None):
    """Return views of these cameras; without a mask they are empty."""
    size = (cameras[0].height, cameras[0].width)
    mask = torch.zeros(size, dtype=torch.bool) if mask is None else mask
    return [NormalView(name=one.name, camera=one, normals=torch.zeros(*size, 3), mask=mask) for one in cameras]


def turned(matrices):
    """Angles of rotations, radians."""
    return ((matrices.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2).clamp(-1, 1).acos()


def test_nothing_has_moved_at_the_start():
    poses = Poses(RING, LEARNED)
    assert torch.equal(poses(), RING.float())
    assert torch.equal(poses(torch.tensor([2, 0])), RING.float()[[2, 0]])
    assert poses.changes().tolist() == [0, 0]


@pytest.mark.parametrize(("rotation", "translation"), [(False, False), (True, False), (False, True), (True, True)])
def test_what_is_learned_is_what_was_asked_for(rotation, translation):
    poses = Poses(RING, PoseOptions(learn_rotation=rotation, learn_translation=translation))
    wanted = ([poses.rotations] if rotation else []) + ([poses.translations] if translation else [])
    assert [id(one) for one in poses.learned_parameters()] == [id(one) for one in wanted]
    assert set(poses.state_dict()) == {"start", "rotations", "translations"}


def test_poses_that_are_not_learned_are_moved_once_and_again_after_a_change():
    poses = Poses(RING, PoseOptions())
    moved = poses()
    assert poses() is moved
    assert not moved.requires_grad
    learned = Poses(RING, LEARNED)
    with torch.no_grad():
        learned.rotations[1] = torch.tensor([0.0, 0.0, math.pi / 2])
        learned.translations[2] = 0.5
    poses.load_state_dict(learned.state_dict())
    assert torch.equal(poses(), learned())
    assert not torch.equal(poses(), moved)


def test_turns_are_about_the_origin_of_the_scene_and_shifts_follow():
    poses = Poses(RING, LEARNED)
    with torch.no_grad():
        poses.rotations[1] = torch.tensor([0.0, 0.0, math.pi / 2])
        poses.translations[1] = torch.tensor([0.0, 0.0, 0.25])
    x, y, z = RING[1, :3, 3].tolist()
    assert poses()[1, :3, 3].tolist() == pytest.approx([-y, x, z + 0.25], abs=1e-6)
    looks = RING[1, :3, 2].tolist()
    assert poses()[1, :3, 2].tolist() == pytest.approx([-looks[1], looks[0], looks[2]], abs=1e-6)
    assert torch.equal(poses()[[0, 2]], RING.float()[[0, 2]])
    distance = math.sqrt(2 * (x * x + y * y) + 0.25**2)
    assert poses.changes().tolist() == pytest.approx([30, distance / 3], rel=1e-5)


def seen_at(start, rotations, translations, batch):
    """Float64 points along a batch's rays, one unit from the origin's side of the camera."""
    own = (exponential(rotations), translations, start)
    turn = own[0] @ own[2][:, :3, :3]
    place = (own[0] @ own[2][:, :3, 3:])[..., 0] + own[1]
    return place[batch.view] + 3.5 * torch.einsum("nij,nj->ni", turn[batch.view], batch.directions.double())


@pytest.mark.parametrize("size", [0.0, 0.3])
def test_gradients_through_rays_are_those_of_finite_differences(size, settings, scene_of):
    scene = scene_of(settings())
    batch = RaySource(scene.pixels, RayOptions(rays=16, views_per_graph=4)).draw(16)[0]
    poses = Poses(scene.starting_poses, LEARNED)
    with torch.no_grad():
        for one in poses.learned_parameters():
            one.copy_(size * torch.randn_like(one))
    aims = torch.randn(len(batch), 3)
    rays = rays_in_scene(batch, poses())
    points = points_along(rays, torch.full((len(batch),), 3.5), torch.arange(len(batch)))
    (points - aims).square().sum().backward()
    for number, parameter in enumerate(poses.learned_parameters()):
        found = torch.empty_like(parameter, dtype=torch.float64)
        for view in range(len(poses.start)):
            for axis in range(3):
                ends = []
                for shift in (1e-5, -1e-5):
                    moved = [one.detach().double() for one in poses.learned_parameters()]
                    moved[number][view, axis] += shift
                    at = seen_at(scene.starting_poses, *moved, batch)
                    ends.append(float((at - aims.double()).square().sum()))
                found[view, axis] = (ends[0] - ends[1]) / 2e-5
        assert torch.allclose(parameter.grad.double(), found, rtol=1e-4, atol=1e-3)
        assert float(found.abs().max()) > 0.1


def test_poses_of_the_data_are_kept_to_the_bit():
    cameras = seen_by(ring_cameras(3, 24))
    assert torch.equal(starting_poses(cameras, PoseOptions(), seed=0), RING)


def test_noise_is_of_the_stated_size_and_reproducible():
    cameras = seen_by(ring_cameras(200, 4))
    options = PoseOptions(pose_start="noisy", rotation_noise=3.0, translation_noise=0.1, centered=False)
    noisy = starting_poses(cameras, options, 5)
    exact = starting_poses(cameras, PoseOptions(), 5)
    assert torch.equal(noisy, starting_poses(cameras, options, 5))
    assert not torch.equal(noisy, starting_poses(cameras, options, 6))
    shift = noisy[:, :3, 3] - exact[:, :3, 3]
    assert shift.std(0).tolist() == pytest.approx([0.1] * 3, rel=0.15)
    assert shift.mean(0).tolist() == pytest.approx([0] * 3, abs=0.03)
    turn = noisy[:, :3, :3] @ exact[:, :3, :3].mT
    per_axis = torch.rad2deg(turned(turn).square().mean().sqrt() / math.sqrt(3))
    assert float(per_axis) == pytest.approx(3, rel=0.1)
    eye = torch.eye(3, dtype=torch.float64).expand(200, 3, 3)
    assert torch.allclose(noisy[:, :3, :3] @ noisy[:, :3, :3].mT, eye, atol=1e-6)


def test_no_noise_changes_nothing():
    options = PoseOptions(pose_start="noisy", rotation_noise=0.0, translation_noise=0.0)
    assert torch.equal(starting_poses(seen_by(ring_cameras(3, 24)), options, 1), RING)


def test_a_ring_knows_nothing_of_the_data():
    cameras = ring_cameras(7, 24, distance=3.0, elevations=(25.0,))
    wanted = torch.stack([camera.world_from_camera for camera in cameras]).double()
    other = ring_cameras(7, 24, elevations=(-50.0, 10.0))
    found = starting_poses(seen_by(other), PoseOptions(pose_start="ring", ring_radius=3.0, ring_angle=25.0), 0)
    assert found.dtype == torch.float64
    assert torch.allclose(found, wanted, atol=1e-6)


def test_clockwise_is_the_other_way_around():
    there = ring_poses(8, 4.0, 10.0)
    back = ring_poses(8, 4.0, 10.0, clockwise=True)
    assert torch.allclose(there[0], back[0])
    assert torch.allclose(there[1:], back.flip(0)[:-1], atol=1e-6)
    around = torch.atan2(there[:, 1, 3], there[:, 0, 3])
    assert float(around[1]) == pytest.approx(math.pi / 4)
    assert there[:, 2, 3].tolist() == pytest.approx([4 * math.sin(math.radians(10))] * 8)
    assert torch.allclose(there[:, :3, 2], -there[:, :3, 3] / 4, atol=1e-6)


def test_centered_cameras_look_at_the_origin_through_the_middle_of_their_mask():
    mask = torch.zeros(24, 24, dtype=torch.bool)
    mask[4:9, 14:20] = True
    views = seen_by(ring_cameras(3, 24), mask)
    options = PoseOptions(pose_start="noisy", rotation_noise=5.0, translation_noise=0.1)
    found = starting_poses(views, options, 2)
    loose = starting_poses(views, PoseOptions(pose_start="noisy", centered=False), 2)
    assert torch.equal(found[:, :3, :3], loose[:, :3, :3])
    camera = views[0].camera
    through = torch.tensor([(17 - camera.cx) / camera.fx, (6.5 - camera.cy) / camera.fy, 1.0]).double()
    for pose, before in zip(found, loose, strict=True):
        ray = pose[:3, :3] @ through
        assert torch.allclose(-pose[:3, 3] / pose[:3, 3].norm(), ray / ray.norm(), atol=1e-6)
        moved = pose[:3, 3] - before[:3, 3]
        assert abs(float(moved @ ray)) < 1e-6  # across the view only: the distance is not known better


def test_a_view_that_sees_nothing_is_not_shifted():
    views = seen_by(ring_cameras(3, 24))
    options = PoseOptions(pose_start="noisy")
    assert torch.equal(
        starting_poses(views, options, 2), starting_poses(views, PoseOptions(pose_start="noisy", centered=False), 2)
    )


def test_poses_that_are_held_have_no_gradient_and_learn_on_later():
    poses = Poses(RING, LEARNED)
    poses.freeze(frozen=True)
    assert not poses().requires_grad
    assert len(poses.learned_parameters()) == 2
    poses.freeze(frozen=False)
    assert poses().requires_grad
    fixed = Poses(RING, PoseOptions(learn_rotation=True))
    fixed.freeze(frozen=False)
    assert not fixed.translations.requires_grad
