"""Rays of an exact sphere: opacity, normals and distances in closed form, and no visible section is lost."""

import math
from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.data import NormalView, ring_cameras
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.losses import mask_error
from fieldwatch.recon.pipelines.normals.batches import RayBatch, RaySource
from fieldwatch.recon.pipelines.normals.config import RayOptions, RenderOptions
from fieldwatch.recon.pipelines.normals.rays import Rays
from fieldwatch.recon.pipelines.normals.rendering import (
    blend_samples,
    march_samples,
    rays_in_scene,
    render,
    search_samples,
    visible_samples,
)
from fieldwatch.recon.pipelines.normals.scene import Pixels
from fieldwatch.recon.render import BoundedRays, PackedSamples, points_along

POSE = ring_cameras(1, 24)[0].world_from_camera[None].double()
PLAIN = RenderOptions(empty_samples=8, unseen=0.0)


def shifts():
    """A source of jitter and noise; its pixels are not used."""
    camera = Camera(name="0", width=2, height=2, fx=1.0, fy=1.0, cx=1.0, cy=1.0, world_from_camera=POSE[0])
    mask = torch.tensor([[True, True], [False, False]])
    view = NormalView(name="0", camera=camera, normals=torch.zeros(2, 2, 3), mask=mask)
    return RaySource(Pixels.of([view], torch.device("cpu")), RayOptions(), seed=4)


@torch.no_grad()
def looked(model, batch, step, options, most=None):
    """Render without gradients, with the same random numbers at every call."""
    return render(model, Rays(batch, shifts()), step, options, most)


def aimed(passing, inside=None):
    """Return rays of the only camera that pass the origin at given distances, each on another side."""
    distance = float(POSE[0, :3, 3].norm())
    passing = torch.as_tensor(passing)
    across = passing / distance
    around = 2.4 * torch.arange(len(passing))
    flat = torch.stack([across * around.cos(), across * around.sin()], -1)
    directions = torch.cat([flat, (1 - across.square()).sqrt()[:, None]], -1)
    rays = len(passing)
    return RayBatch(
        view=torch.zeros(rays, dtype=torch.int64),
        pixel=torch.arange(rays),
        directions=directions.float(),
        normals=torch.zeros(rays, 3),
        mask=passing < 0.6 if inside is None else inside,
        known=torch.ones(rays, dtype=torch.bool),
        distance=torch.zeros(rays),
        weights=torch.ones(rays),
    )


def test_rays_of_a_batch_are_those_of_its_views(settings, scene_of):
    scene = scene_of(settings())
    (batch,) = RaySource(scene.pixels, RayOptions(views_per_graph=4)).draw(48)
    rays = rays_in_scene(batch, scene.starting_poses.float())
    for view in range(4):
        own = batch.view == view
        origins, directions = (part.reshape(-1, 3).float() for part in scene.maps.views[view].camera.rays())
        assert torch.allclose(rays.directions[own], directions[batch.pixel[own]], atol=1e-6)
        assert torch.allclose(rays.origins[own], origins[batch.pixel[own]], atol=1e-6)
    assert float(points_along(rays, rays.far, torch.arange(48)).norm(dim=-1)[rays.far > rays.near].max()) < 1


@pytest.mark.parametrize("method", ["ad", "fd"])
def test_a_sphere_is_seen_as_it_is(sphere_model, method):
    model = sphere_model(POSE, sharpness=1000.0)
    passing = torch.cat([torch.linspace(0, 0.55, 40), torch.linspace(0.65, 0.9, 20)])
    batch = aimed(passing)
    seen_by = looked(model, batch, 4e-3, replace(PLAIN, gradient_method=method))
    assert seen_by.ray_count == 60
    assert torch.allclose(seen_by.opacity[:40], torch.ones(40), atol=1e-5)
    assert float(seen_by.opacity[40:].max()) < 1e-5
    rays = rays_in_scene(batch, model.poses())
    middle = -(rays.origins * rays.directions).sum(-1)
    exact = middle[:40] - (0.36 - passing[:40].square()).sqrt()
    assert torch.allclose(seen_by.distance[:40], exact, atol=2e-3)
    points = points_along(rays, exact, torch.arange(40))
    cosines = torch.nn.functional.cosine_similarity(seen_by.normal[:40], points, dim=-1)
    assert float(torch.rad2deg(cosines.clamp(-1, 1).acos()).max()) < 0.3
    assert torch.allclose(seen_by.normal[:40].norm(dim=-1), torch.ones(40), atol=1e-3)
    assert torch.allclose(seen_by.gradients.norm(dim=-1), torch.ones(len(seen_by.gradients)), atol=1e-3)


def test_opacity_at_the_silhouette_is_that_of_a_blurred_edge(sphere_model):
    model = sphere_model(POSE, sharpness=200.0)
    passing = 0.6 + torch.tensor([-0.01, 0.0, 0.01, 0.02])
    seen_by = looked(model, aimed(passing), 2e-3, PLAIN)
    at_closest = torch.sigmoid(200 * (passing - 0.6))  # all that is lost on the way in, from S = 1
    assert torch.allclose(seen_by.opacity, 1 - at_closest, atol=5e-3)


REACH = {20.0: 2.0, 148.0: 3.0, 400.0: 3.0, 1500.0: 3.0}
"""Width of a surface in 1 / s; at 20 the grid ends at 2.2 / s, where its occupancy falls to the threshold."""


def places(samples):
    """Rays and middles as one sorted row of numbers."""
    return 10.0 * samples.ray_index.double() + samples.midpoints.double()


@pytest.mark.parametrize("grid", [16, 64])
@pytest.mark.parametrize(("sharpness", "step"), [(20.0, 6e-3), (148.0, 6e-3), (400.0, 4e-3), (1500.0, 2e-3)])
def test_strides_lose_no_section_near_the_surface(sphere_model, grid, sharpness, step):
    options = RenderOptions(grid_resolution=grid)
    model = sphere_model(POSE, sharpness=sharpness, rendering=options)
    rays = rays_in_scene(aimed(torch.linspace(0, 0.95, 60)), model.poses())
    jitter = shifts().jitter(60)
    parts = max(int(0.75 * 2 / grid / step), 1)
    begun = replace(rays, near=rays.near + jitter * step * parts)  # so that single steps fall on those of the strides
    single = model.grid.march(begun, step)
    found = march_samples(model, rays, step, jitter=jitter)
    near = model.sdf(points_along(rays, single.midpoints, single.ray_index)).abs() < REACH[sharpness] / sharpness
    wanted = single.selected(near & (single.t_end < rays.far[single.ray_index]))
    assert len(wanted) > 60
    at = places(found)
    after = torch.searchsorted(at, places(wanted)).clamp(1, len(at) - 1)
    off = torch.minimum((at[after] - places(wanted)).abs(), (at[after - 1] - places(wanted)).abs())
    assert float(off.max()) < 0.02 * step
    if sharpness > 100 and parts > 1:
        assert len(found) < 0.6 * len(single)


def test_samples_of_neighboring_strides_follow_on_one_another(sphere_model):
    model = sphere_model(POSE, sharpness=100.0)
    rays = rays_in_scene(aimed([0.0, 0.3]), model.poses())
    samples = march_samples(model, rays, 5e-3)
    gaps = (samples.t_start[1:] - samples.t_end[:-1])[samples.ray_index[1:] == samples.ray_index[:-1]]
    assert bool(((gaps == 0) | (gaps > 5e-3)).all())
    assert len(samples.sections().distances) < 1.2 * len(samples)


@pytest.mark.parametrize("sharpness", [20.0, 400.0])
@pytest.mark.parametrize("step", [0.02, 0.09])
def test_a_full_grid_samples_nothing_outside_of_the_field(sphere_model, sharpness, step):
    """The radius is such that the surface is near the box everywhere."""
    model = sphere_model(POSE, radius=0.97, sharpness=sharpness, full=True)
    directions = torch.nn.functional.normalize(torch.cat([torch.eye(3), -torch.eye(3)]).repeat(8, 1), dim=-1)
    rays = BoundedRays.in_sphere(-3 * directions, directions, 0.999)
    samples = march_samples(model, rays, step, jitter=shifts().jitter(48))
    assert len(samples) > 0
    ends = samples.sections()
    assert float(points_along(rays, ends.distances, ends.ray_index).abs().max()) <= 1
    batch = aimed(torch.linspace(0, 0.9, 30))
    seen_by = looked(model, batch, step, replace(PLAIN, gradient_method="fd"))
    assert bool(torch.isfinite(seen_by.opacity).all())


def test_rays_whose_samples_are_too_many_are_left_out(sphere_model):
    model = sphere_model(POSE, full=True)
    batch = aimed(torch.linspace(0, 0.5, 30))
    everything = looked(model, batch, 1e-2, PLAIN)
    assert everything.ray_count == 30
    cut = looked(model, batch, 1e-2, PLAIN, most=2000)
    assert 0 < cut.ray_count < 30
    assert len(cut.samples) <= 2000
    assert len(batch.first(cut.ray_count)) == len(cut.opacity) == len(cut.normal) == len(cut.distance) == cut.ray_count
    assert torch.allclose(cut.opacity, everything.opacity[: cut.ray_count], atol=1e-4)
    none = looked(model, batch, 1e-2, PLAIN, most=1)
    assert (none.ray_count, len(none.opacity), none.starved) == (0, 0, 0)


def test_rays_that_the_grid_gives_nothing_are_filled_and_counted(sphere_model):
    model = sphere_model(POSE)
    model.grid.occupied.zero_()
    batch = aimed([0.0, 0.2, 0.4, 0.7, 0.8])
    seen_by = render(model, Rays(batch, shifts()), 1e-2, PLAIN)
    assert (seen_by.filled, seen_by.starved) == (3, 1.0)
    assert seen_by.samples.counts.tolist() == [8, 8, 8, 0, 0]  # rays beside the object are rightly empty
    assert bool((seen_by.opacity[:3] > 0.9).all())
    seen_by.opacity.sum().backward()
    assert model.sdf.offset.grad is not None
    without = looked(model, batch, 1e-2, replace(PLAIN, empty_samples=0))
    assert (without.filled, without.starved, len(without.samples)) == (0, 1.0, 0)
    assert without.opacity.tolist() == [0] * 5


def test_some_starved_rays_are_a_share_of_those_in_the_mask(sphere_model):
    model = sphere_model(POSE, sharpness=400.0)
    inside = torch.tensor([True, True, True, True, False])
    seen_by = looked(model, aimed([0.0, 0.3, 0.8, 0.9, 0.85], inside), 1e-2, PLAIN)
    assert (seen_by.filled, seen_by.starved) == (2, 0.5)
    assert float(seen_by.opacity[2:].max()) < 1e-3


def test_samples_that_no_light_reaches_are_left_out_without_a_change(sphere_model):
    model = sphere_model(POSE, sharpness=400.0)
    rays = rays_in_scene(aimed(torch.linspace(0, 0.58, 30)), model.poses())
    samples = march_samples(model, rays, 2e-3)
    fewer = visible_samples(model.sdf, rays, samples, 400.0, replace(PLAIN, unseen=1e-4))
    assert len(fewer) < 0.7 * len(samples)
    everything, some = (blend_samples(model, rays, one, PLAIN) for one in (samples, fewer))
    assert torch.allclose(everything[0], some[0], atol=2e-4)
    assert torch.allclose(everything[2], some[2], atol=1e-3)
    solid = visible_samples(model.sdf, rays, samples, 400.0, replace(PLAIN, alpha_threshold=0.05))
    assert 0 < len(solid) < len(fewer)
    assert visible_samples(model.sdf, rays, samples, 400.0, PLAIN) is samples


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("sharpness", "step"), [(60.0, 1.1e-2), (400.0, 5e-3), (800.0, 3e-3), (1600.0, 1.9e-3)])
def test_a_search_that_ends_in_the_dark_finds_the_same_samples_to_the_bit(sphere_model, sharpness, step, full):
    model = sphere_model(POSE, sharpness=sharpness, full=full)
    rays = rays_in_scene(aimed(torch.cat([torch.linspace(0, 0.62, 60), torch.tensor([0.8])])), model.poses())
    jitter = shifts().jitter(len(rays))
    options = replace(PLAIN, unseen=1e-3)
    thorough = march_samples(model, rays, step, jitter=jitter)
    quick, reached = search_samples(model, rays, step, unseen=1e-3, jitter=jitter)
    wanted, found = (visible_samples(model.sdf, rays, some, sharpness, options) for some in (thorough, quick))
    for name in ("t_start", "t_end", "ray_index"):
        assert torch.equal(getattr(found, name), getattr(wanted, name))
    assert reached.tolist() == (thorough.counts > 0).tolist()
    assert len(found) <= len(quick) < 0.9 * len(thorough)
    # A surface beyond its visible range is not found, so nothing is known about what is fainter than that.
    everything = search_samples(model, rays, step, unseen=1e-4, jitter=jitter).samples
    assert torch.equal(everything.t_start, thorough.t_start)


def test_more_strides_are_marched_if_most_of_their_steps_are_faint(sphere_model):
    model = sphere_model(POSE, sharpness=400.0)
    batch = aimed(torch.linspace(0, 0.55, 40))
    some = looked(model, batch, 2e-3, PLAIN, most=2000)
    more = looked(model, batch, 2e-3, replace(PLAIN, alpha_threshold=1e-3), most=2000)
    assert 0 < some.ray_count < more.ray_count


def test_no_samples_at_all_are_blended_to_nothing(sphere_model):
    model = sphere_model(POSE)
    rays = rays_in_scene(aimed([0.0, 0.1]), model.poses())
    none = PackedSamples(
        t_start=torch.zeros(0), t_end=torch.zeros(0), ray_index=torch.zeros(0, dtype=torch.int64), n_rays=2
    )
    opacity, normal, distance, gradients = blend_samples(
        model, rays, visible_samples(model.sdf, rays, none, 9.0, PLAIN), PLAIN
    )
    assert (opacity.tolist(), normal.tolist(), distance.tolist()) == ([0, 0], [[0] * 3] * 2, [0, 0])
    assert len(gradients) == 0


@pytest.mark.parametrize("balanced", [True, False])
def test_the_silhouette_is_where_the_mask_ends_only_if_rays_are_balanced(sphere_model, balanced):
    """An edge with one side sampled more often moves to where ratio log(1 + exp(-o)) = log(1 + exp(o))."""
    sharpness = 100.0
    band = 0.08
    rays = 160
    ratio = 0.7 / 0.225
    steps = (torch.arange(rays) + 0.5) / rays
    often = torch.cat([torch.full((rays,), ratio), torch.ones(rays)])
    weights = torch.ones(2 * rays) if balanced else often  # a ray's weight is one over how often it is drawn
    model = sphere_model(POSE, sharpness=sharpness)
    batch = aimed(torch.cat([0.6 - band * steps, 0.6 + band * steps]))
    draws = shifts()

    def slope(offset):
        with torch.no_grad():
            model.sdf.offset.fill_(offset / sharpness)
        model.sdf.offset.grad = None
        seen_by = render(model, Rays(batch, draws), 6e-3, PLAIN)
        mask_error(seen_by.opacity, batch.mask, weights).backward()
        return model.sdf.offset.grad.item()

    low = -1.0
    high = 1.5
    for _ in range(9):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    found = 0.5 * (low + high)
    assert found == pytest.approx(0 if balanced else 0.794, abs=0.02)
    if not balanced:
        assert ratio * math.log1p(math.exp(-0.794)) == pytest.approx(math.log1p(math.exp(0.794)), rel=2e-2)
