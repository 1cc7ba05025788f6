"""Depth from normals on spheres, planes and steps of known depth."""

from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.data import integrate_normals, synthetic_normal_maps
from fieldwatch.recon.data.normal_maps import NormalMapError
from fieldwatch.recon.geometry import Camera


def camera(size, height=None, **lens):
    lens = {"fx": 1.2 * size, "fy": 1.2 * size, "cx": size / 2, "cy": size / 2, **lens}
    return Camera(
        name="c", width=size, height=height or size, **lens, world_from_camera=torch.eye(4, dtype=torch.float64)
    )


def ball(size, radius=0.9, away=3.0):
    """Return a camera, and normals, mask and depth of a ball in front of it."""
    eye = camera(size)
    rays = eye.directions()
    a = rays.square().sum(-1)
    b = away * rays[..., 2]
    root = b * b - a * (away**2 - radius**2)
    mask = root > 0
    depth = torch.where(mask, (b - root.clamp_min(0).sqrt()) / a, torch.zeros_like(a))
    normals = (depth[..., None] * rays - torch.tensor([0, 0, away])) / radius
    return eye, torch.where(mask[..., None], normals, torch.zeros(())), mask, depth


def plane(eye, normal, offset):
    """Return normals and depth of the plane `normal . x = -offset`, whose normal faces the camera."""
    unit = torch.nn.functional.normalize(torch.tensor(normal, dtype=torch.float64), dim=0)
    depth = -offset / (eye.directions() @ unit)
    return unit.expand(*depth.shape, 3), depth


def relative(found, depth, mask):
    """Return the relative depth error after alignment by one scale."""
    ratio = (found / depth)[mask]
    return ratio / ratio.mean() - 1


@pytest.mark.parametrize(("size", "most"), [(64, 0.003), (129, 0.0012)])
def test_a_sphere_comes_out_within_half_a_percent(size, most):
    eye, normals, mask, depth = ball(size)
    found = integrate_normals(normals, mask, eye)
    assert found.dtype == torch.float64
    assert float(relative(found, depth, mask).square().mean().sqrt()) < most
    assert bool((found[~mask] == 0).all())


@pytest.mark.parametrize("normal", [(0.0, 0.0, -1.0), (0.4, -0.3, -1.0)])
def test_a_plane_comes_out_flat_through_any_lens(normal):
    eye = camera(40, 33, fx=70.0, fy=55.0, cx=11.0, cy=25.0)
    normals, depth = plane(eye, normal, 2.0)
    mask = torch.ones(33, 40, dtype=torch.bool)
    found = integrate_normals(normals, mask, eye, solver_tolerance=1e-8)
    assert float(relative(found, depth, mask).abs().max()) < 3e-3
    assert float(found.median()) == pytest.approx(1)


def steps(size, slope=0.6):
    """A wall whose lower right quarter leans toward the camera, with a step that grows from 0."""
    eye = camera(size)
    rays = eye.directions()
    leaning = (rays[..., 0] > 0) & (rays[..., 1] > 0)
    straight, wall = plane(eye, (0, 0, -1), 3.0)
    tilted, ramp = plane(eye, (0, -slope, -1), 3.0 / (1 + slope**2) ** 0.5)
    normals = torch.where(leaning[..., None], tilted, straight)
    return eye, normals, torch.ones(size, size, dtype=torch.bool), torch.where(leaning, ramp, wall)


def test_a_step_stays_a_step():
    eye, normals, mask, depth = steps(48)
    smooth, sharp = (integrate_normals(normals, mask, eye, sharpness=k) for k in (0.0, 2.0))
    errors = [float(relative(found, depth, mask).square().mean().sqrt()) for found in (smooth, sharp)]
    assert errors[0] > 0.03
    assert errors[1] < 0.006
    across = [float((f[-3, 22] - f[-3, 25]) / f[-3, 22]) for f in (smooth, sharp, depth)]
    assert across[0] < 0.5 * across[2]
    assert across[1] == pytest.approx(across[2], rel=0.08)


def test_parts_that_do_not_touch_have_a_scale_each_and_the_same_median():
    eye, normals, mask, depth = ball(48)
    mask[:, 22:26] = False
    found = integrate_normals(normals, mask, eye, median=2.5)
    for half in (slice(None, 22), slice(26, None)):
        part = torch.zeros_like(mask)
        part[:, half] = mask[:, half]
        assert float(found[part].median()) == pytest.approx(2.5, rel=2e-3)
        assert float(relative(found, depth, part).square().mean().sqrt()) < 0.005


def test_a_lone_pixel_and_missing_normals_are_no_obstacle():
    eye, normals, mask, depth = ball(32)
    mask[0, 0] = True
    normals[0, 0] = torch.tensor([0.0, 0.0, -1.0])
    normals[14, 14] = 0
    found = integrate_normals(normals, mask, eye)
    assert float(found[0, 0]) == pytest.approx(1)
    assert float(found[14, 14]) == 0
    seen = mask & (found > 0)
    seen[0, 0] = False
    assert float(relative(found, depth, seen).square().mean().sqrt()) < 0.01


def test_maps_of_another_size_than_the_camera_or_facing_away_are_refused():
    eye, normals, mask, _ = ball(24)
    with pytest.raises(NormalMapError, match=r"\(24, 24\).*\(25, 25\)"):
        integrate_normals(normals, mask, camera(25))
    with pytest.raises(NormalMapError, match="camera 'c': 100%"):
        integrate_normals(normals * torch.tensor([1, -1, -1]), mask, eye)
    with pytest.raises(NormalMapError, match="camera 'c': no pixel"):
        integrate_normals(normals, torch.zeros_like(mask), eye)


@pytest.mark.parametrize("change", [{"sharpness": -1.0}, {"rounds": 0}, {"solver_steps": 0}, {"median": 0.0}])
def test_settings_that_make_no_sense_are_refused(change):
    eye, normals, mask, _ = ball(16)
    with pytest.raises(NormalMapError, match="expected sharpness"):
        integrate_normals(normals, mask, eye, **change)


def test_equations_that_are_not_solved_are_an_error():
    eye, normals, mask, _ = ball(32)
    with pytest.raises(NormalMapError, match=r"124 depths.*2 steps.*solver_tolerance"):
        integrate_normals(normals, mask, eye, solver_steps=2, solver_tolerance=1e-9)


def test_integrated_depth_of_a_made_up_view_follows_its_normals():
    exact = synthetic_normal_maps(views=1, size=48).views[0]
    found = integrate_normals(exact.normals, exact.mask, replace(exact.camera, name="again"))
    made = synthetic_normal_maps(views=1, size=48, depth="integrated").views[0]
    assert torch.allclose(found.float(), made.depth, rtol=1e-3)
    assert float(relative(found, exact.depth.double(), exact.mask).abs().median()) < 0.05
