"""Pixels of views of different sizes and lenses in flat tensors; the digest of a scene."""

from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.data import NormalSet, NormalView, ring_cameras, synthetic_normal_maps
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.normals.scene import Pixels

CPU = torch.device("cpu")


def camera_of(number, width, height, fx, cx):
    pose = ring_cameras(3, 24)[number].world_from_camera
    name = f"{number:03d}"
    return Camera(name=name, width=width, height=height, fx=fx, fy=1.1 * fx, cx=cx, cy=9.5, world_from_camera=pose)


@pytest.fixture(scope="module")
def mixed():
    cameras = [camera_of(0, 20, 16, 36.0, 10.0), camera_of(1, 12, 24, 30.0, 7.25), camera_of(2, 16, 16, 33.0, 8.0)]
    return synthetic_normal_maps(cameras=cameras)


def test_directions_are_those_of_the_cameras_rays(mixed):
    pixels = Pixels.of(list(mixed.views), CPU)
    assert len(pixels) == 3
    assert pixels.offsets.tolist() == [0, 320, 608]
    for number, view in enumerate(mixed.views):
        every = torch.arange(view.mask.numel())
        found = pixels.directions(torch.full_like(every, number), every)
        turned = found @ view.camera.world_from_camera[:3, :3].T.float()
        assert torch.allclose(turned, view.camera.rays()[1].reshape(-1, 3).float(), atol=1e-6)


def test_pixels_of_many_views_are_looked_up_together(mixed):
    pixels = Pixels.of(list(mixed.views), CPU)
    view = torch.tensor([2, 0, 1, 1])
    pixel = torch.tensor([17, 319, 0, 30])
    rows = [1, 15, 0, 2]
    columns = [1, 19, 0, 6]
    cameras = [mixed.views[number].camera for number in view.tolist()]
    wanted = torch.stack([c.directions()[r, k] for c, r, k in zip(cameras, rows, columns, strict=True)])
    found = pixels.directions(view, pixel)
    assert torch.allclose(found, (wanted / wanted.norm(dim=-1, keepdim=True)).float(), atol=1e-6)


def test_every_pixel_keeps_what_is_known_about_it(mixed):
    pixels = Pixels.of(list(mixed.views), CPU)
    for number, view in enumerate(mixed.views):
        own = slice(int(pixels.offsets[number]), int(pixels.offsets[number]) + view.mask.numel())
        assert torch.equal(pixels.normals[own], view.normals.reshape(-1, 3))
        assert torch.equal(pixels.mask[own], view.mask.reshape(-1))
        assert torch.equal(pixels.known[own], view.valid.reshape(-1))
        assert (int(pixels.heights[number]), int(pixels.widths[number])) == view.size


def test_distances_are_along_the_ray_where_depth_is_along_the_axis(mixed):
    pixels = Pixels.of(list(mixed.views), CPU)
    assert pixels.has_depth
    for number, view in enumerate(mixed.views):
        camera = view.camera
        own = pixels.distance[int(pixels.offsets[number]) :][: view.mask.numel()].view(view.size)
        seen = camera.unproject(view.depth.to(camera.world_from_camera))
        wanted = (seen - camera.position).norm(dim=-1)[view.mask]
        assert torch.allclose(own[view.mask], wanted.float(), rtol=1e-5)
        assert not bool(own[~view.mask].any())


def test_views_without_depth_have_no_distance(mixed):
    views = [replace(view, depth=None) for view in mixed.views]
    assert not Pixels.of(views, CPU).has_depth
    some = Pixels.of([*views[:2], mixed.views[2]], CPU)
    assert some.has_depth
    assert not bool(some.distance[: int(some.offsets[2])].any())


def blank(mask):
    height, width = mask.shape
    pose = ring_cameras(1, 24)[0].world_from_camera
    lens = {"fx": 20.0, "fy": 20.0, "cx": width / 2, "cy": height / 2}
    camera = Camera(name="0", width=width, height=height, **lens, world_from_camera=pose)
    return NormalView(name="0", camera=camera, normals=torch.zeros(height, width, 3), mask=mask)


def test_regions_are_the_mask_a_band_around_it_and_the_rest():
    mask = torch.zeros(50, 50, dtype=torch.bool)
    mask[20:30, 20:30] = True
    inside, near, far = Pixels.of([blank(mask)], CPU).regions[0]
    assert torch.equal(inside, torch.nonzero(mask.view(-1))[:, 0])
    row = near // 50
    column = near % 50
    away = torch.stack([(20 - row).clamp_min(row - 29), (20 - column).clamp_min(column - 29)]).clamp_min(0)
    assert float(away.float().norm(dim=0).max()) <= 2  # 0.04 of 50 pixels
    assert len(near) == 14**2 - 10**2 - 4 * 3  # of each corner's 4 pixels only 1 is within 2 pixels
    assert torch.equal(torch.cat([inside, near, far]).sort().values, torch.arange(2500))


@pytest.mark.parametrize("full", [True, False])
def test_regions_of_a_mask_that_fills_the_picture_or_is_one_pixel(full):
    mask = torch.full((6, 8), full)
    mask[2, 3] = True
    inside, near, far = Pixels.of([blank(mask)], CPU).regions[0]
    assert [len(inside), len(near), len(far)] == ([48, 0, 0] if full else [1, 4, 43])


def test_a_scene_takes_its_training_views_only(settings, scene_of, tiny_maps):
    scene = scene_of(settings(), test=(0, 2))
    assert torch.equal(scene.pixels.mask, torch.cat([tiny_maps.views[i].mask.reshape(-1) for i in (1, 3)]))
    assert scene.truth is None
    camera = scene.camera(2, torch.eye(4))
    known = tiny_maps.views[2].camera
    assert (camera.name, camera.width, camera.fx, camera.cy) == (known.name, known.width, known.fx, known.cy)
    assert torch.equal(camera.world_from_camera, torch.eye(4))


def test_the_digest_tells_maps_masks_and_cameras_apart(settings, scene_of, tiny_maps):
    def digest(**changes):
        view = replace(tiny_maps.views[1], **changes)
        return scene_of(settings(), NormalSet(views=(tiny_maps.views[0], view, *tiny_maps.views[2:]))).digest

    view = tiny_maps.views[1]
    mask = view.mask.clone()
    normals = view.normals.clone()
    mask[0, 0] = ~mask[0, 0]
    normals[12, 12] = torch.tensor([0.0, 0.0, -1.0])
    pose = view.camera.world_from_camera.clone()
    pose[0, 3] += 1e-6
    others = [
        {"mask": mask},
        {"normals": normals},
        {"camera": replace(view.camera, fx=view.camera.fx + 0.01)},
        {"camera": replace(view.camera, world_from_camera=pose)},
        {"name": "other"},
    ]
    digests = [digest(), *(digest(**other) for other in others)]
    assert len(set(digests)) == 6
    assert digest() == digests[0]
    assert all(len(one) == 16 for one in digests)
