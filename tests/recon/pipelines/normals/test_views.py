"""A rendered view of a ball shows the ball and nothing else."""

import math
from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.pipelines.normals.rendering import RADIUS, blend_samples, march_samples
from fieldwatch.recon.pipelines.normals.view_errors import angles_between
from fieldwatch.recon.pipelines.normals.views import render_view
from fieldwatch.recon.render import BoundedRays, Chunks

STEP = 0.004


@pytest.fixture(scope="module")
def made(ball):
    config = ball.config(views=3)
    scene = ball.scene(config, size=48)
    model = ball.model(config, scene)
    return config, scene.maps.views[0], model, render_view(model, scene.maps.views[0].camera, config.rendering, STEP)


def test_silhouette_depth_and_normals_are_those_of_the_ball(made):
    _, view, _, seen = made
    assert float((seen.mask == view.mask).float().mean()) > 0.995
    both = seen.mask & view.mask
    depth_off = (seen.depth - view.depth)[both].abs()
    assert float(depth_off.median()) < 5e-4
    angles = angles_between(seen.camera_normals[both], view.normals[both])
    assert float(angles.mean()) < 0.4
    assert float(angles.median()) < 0.1


def test_everything_beside_the_silhouette_is_zero_and_inside_normals_are_unit(made):
    _, _, _, seen = made
    for part in (seen.normals, seen.camera_normals, seen.distance, seen.depth):
        assert not bool(part[~seen.mask].any())
    lengths = seen.normals[seen.mask].norm(dim=-1)
    assert torch.allclose(lengths, torch.ones_like(lengths), atol=1e-6)


def test_both_frames_of_normals_and_both_distances_agree(made):
    _, view, _, seen = made
    turned = seen.camera_normals @ view.camera.world_from_camera[:3, :3].float().T
    assert torch.allclose(turned, seen.normals, atol=1e-5)
    along = view.camera.directions().norm(dim=-1).float()
    assert torch.allclose(seen.depth * along, seen.distance, atol=1e-5)


def test_it_is_what_training_renders(made):
    config, view, model, seen = made
    origins, directions = view.camera.to("cpu", torch.float32).rays()
    rays = BoundedRays.in_sphere(origins.reshape(-1, 3), directions.reshape(-1, 3), RADIUS)
    with torch.no_grad():
        opacity, _, distance, _ = blend_samples(model, rays, march_samples(model, rays, STEP), config.rendering)
    assert torch.allclose(opacity.view(view.size), seen.opacity, atol=0.02)
    middle = opacity.view(view.size) > 0.9
    gap = (distance.view(view.size) / opacity.view(view.size).clamp_min(0.1) - seen.distance)[middle]
    assert float(gap.abs().max()) < 2e-3


def test_looking_twice_is_the_same_and_draws_nothing(made):
    config, view, model, seen = made
    state = torch.random.get_rng_state()
    again = render_view(model, view.camera, config.rendering, STEP, chunks=Chunks(700))
    assert torch.equal(again.opacity, seen.opacity)
    assert torch.equal(again.normals, seen.normals)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_most_of_space_is_passed_over(made):
    config, view, model, _ = made
    model.sdf.points = 0
    render_view(model, view.camera, config.rendering, STEP)
    every_sample = view.mask.numel() * 2 / STEP
    assert model.sdf.points < 0.1 * every_sample


def test_a_grid_that_lost_the_surface_hides_nothing(made):
    config, view, model, seen = made
    model.grid.occupied.zero_()
    again = render_view(model, view.camera, config.rendering, STEP)
    model.grid.rebuild(model.sdf)
    assert torch.equal(again.opacity, seen.opacity)


def test_what_stands_behind_a_gap_is_seen(ball):
    config = ball.config(views=3)
    scene = ball.scene(config, size=32)
    camera = scene.maps.views[0].camera
    forward = camera.forward.double()
    side = camera.world_from_camera[:3, 0].double()
    near, far = (tuple((shift * forward + aside * side).tolist()) for shift, aside in ((-0.5, 0.35), (0.4, 0.0)))
    model = ball.model(config, scene, (near, 0.15), (far, 0.4))
    seen = render_view(model, camera, config.rendering, STEP)
    distance = seen.distance[seen.mask]
    reach = float(camera.position.double().norm())
    assert math.isclose(
        float(distance.min()), (camera.position.double() - torch.tensor(near)).norm() - 0.15, abs_tol=1e-2
    )
    assert math.isclose(float(seen.distance[16, 16]), reach + 0.4 - 0.4, abs_tol=2e-2)


def test_nothing_is_seen_of_an_empty_field(made, ball):
    config, view, _, _ = made
    scene = ball.scene(config)
    model = ball.model(config, scene, ((0.0, 0.0, 0.0), -0.3))
    seen = render_view(model, view.camera, config.rendering, STEP)
    assert not bool(seen.mask.any())
    assert float(seen.opacity.max()) < 1e-3


def test_samples_below_the_threshold_of_opacity_do_not_count(made):
    config, view, model, seen = made
    options = replace(config.rendering, alpha_threshold=0.9)
    thinner = render_view(model, view.camera, options, STEP)
    assert float(thinner.opacity.sum()) < 0.9 * float(seen.opacity.sum())
