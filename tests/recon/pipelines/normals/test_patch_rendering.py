"""Patches of rays: their samples, what is dropped, and their rendering at a silhouette."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fieldwatch.recon.geometry import look_at
from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import FieldOptions, NormalsConfig, RenderOptions
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.patch_rendering import (
    Patches,
    blend_patches,
    pixel_samples,
    visible_patch_samples,
)
from fieldwatch.recon.pipelines.normals.rendering import blend_samples, rays_in_scene
from fieldwatch.recon.render import PackedSamples, fill_empty, section_alpha, transmittance

POSE = look_at((0.0, -3.0, 0.0), (0.0, 0.0, 0.0)).float()
OPTIONS = RenderOptions(unseen=1e-3)
FOCAL = 300.0
RADIUS = 0.6


class Sphere(nn.Module):
    """Distance to a sphere around the origin, and its gradient."""

    def forward(self, points):
        assert bool((points.abs() <= 1).all())  # as the real field has it
        return points.norm(dim=-1) - RADIUS

    def with_gradient(self, points):
        return self(points), points / points.norm(dim=-1, keepdim=True).clamp_min(1e-6)


@pytest.fixture
def model():
    small = FieldOptions(levels=2, base_resolution=4, finest_resolution=8, table_bits=8, hidden=16)
    config = NormalsConfig(sdf=small, rendering=RenderOptions(grid_resolution=16, first_sharpness=300.0))
    model = NormalsModel(config, POSE[None].double())
    model.sdf = Sphere()
    return model


def batch_at(*middles, side=3):
    """Return patches around positions in pixels from the image center."""
    reach = torch.arange(side) - side // 2
    y, x = torch.meshgrid(reach, reach, indexing="ij")
    places = torch.tensor(middles, dtype=torch.float32)[:, None] + torch.stack([x, y], -1).view(1, -1, 2)
    directions = torch.cat([places.view(-1, 2) / FOCAL, torch.ones(places.view(-1, 2).shape[0], 1)], -1)
    n = len(directions)
    yes = torch.ones(n, dtype=torch.bool)
    return RayBatch(
        view=torch.zeros(n, dtype=torch.int64),
        pixel=torch.arange(n),
        directions=directions / directions.norm(dim=-1, keepdim=True),
        normals=torch.zeros(n, 3),
        mask=yes,
        known=yes,
        distance=torch.zeros(n),
        weights=torch.ones(n),
        patch=side,
    )


def patches_of(batch):
    return Patches.of(rays_in_scene(batch, POSE[None]), batch, POSE[None])


def dense(rays, count=400):
    nothing = torch.zeros(0)
    none = PackedSamples(t_start=nothing, t_end=nothing, ray_index=nothing.long(), n_rays=len(rays))
    return fill_empty(none, rays, count).samples


def test_the_middle_ray_of_every_patch_is_marched():
    batch = batch_at((0, 0), (40, -30), side=5)
    patches = patches_of(batch)
    assert len(patches) == 2
    assert torch.equal(patches.central.directions, patches.rays.directions[[12, 37]])
    assert len(patches.first(1).rays) == 25
    assert torch.allclose(patches.axes, torch.tensor([[0.0, 1.0, 0.0]] * 2), atol=1e-6)


def test_all_rays_of_a_patch_have_their_samples_on_the_planes_of_the_middle_one():
    patches = patches_of(batch_at((5, 8), (-60, 20)))
    samples = dense(patches.central, 50)
    own = pixel_samples(patches, samples)
    assert own.n_rays == 18
    assert own.counts.tolist() == [50] * 18
    depth = own.t_start * patches.rays.directions[own.ray_index, 1]  # along the optical axis, which is y
    depth = depth.view(2, 9, 50)
    assert float((depth - depth[:, 4:5]).abs().max()) < 1e-6
    assert torch.allclose(own.t_start.view(2, 9, 50)[:, 4].reshape(-1), samples.t_start, atol=1e-6)


@pytest.mark.parametrize("middle", [(0, 0), (61, 0), (61, 3), (90, 90)], ids=["inside", "edge", "edge too", "outside"])
def test_pixels_see_what_each_would_see_alone(model, middle):
    """Across the silhouette (61 pixels from the center) only some pixels of a patch see the object."""
    batch = batch_at(middle)
    patches = patches_of(batch)
    samples = dense(patches.central)
    with torch.no_grad():
        opacity, normal, distance, _ = blend_patches(model, patches, samples)
        alone = blend_samples(model, patches.rays, pixel_samples(patches, samples), OPTIONS)
    assert torch.allclose(opacity, alone[0], atol=1e-5)
    assert torch.allclose(distance, alone[2], atol=1e-4)
    assert float((normal - alone[1]).norm(dim=-1).max()) < 0.02  # a pixel is 0.6 degrees wide, seen head on
    spread = float(opacity.max() - opacity.min())
    assert (spread > 0.2) == (middle in {(61, 0), (61, 3)})


def test_light_decides_for_a_whole_patch(model):
    """A section is kept while any pixel of its patch sees it: at a silhouette, even behind the central ray's hit."""
    patches = patches_of(batch_at((0, 0), (58, 0)))
    samples = dense(patches.central)
    sharpness = model.deviation().item()
    with torch.no_grad():
        kept = visible_patch_samples(model.sdf, patches, samples, sharpness, OPTIONS)
        full = blend_patches(model, patches, samples)
        less = blend_patches(model, patches, kept)
        own = pixel_samples(patches, samples)
        ends = own.sections()
        places = patches.rays.origins[0] + ends.distances[:, None] * patches.rays.directions[ends.ray_index]
        values = model.sdf(places)
        alpha = section_alpha(values[ends.start], values[ends.end], sharpness)
        reaching = transmittance(alpha, own.ray_index, 18).view(2, 9, -1)
    expected = (reaching >= OPTIONS.unseen).any(1).sum(1)
    assert kept.counts.tolist() == expected.tolist()
    assert kept.counts[0] < 0.6 * samples.counts[0]
    assert (reaching[1, 4] >= OPTIONS.unseen).sum() < kept.counts[1]  # the middle ray alone would have cut it short
    for before, after in zip(full[:3], less[:3], strict=True):
        assert torch.allclose(before, after, atol=1e-2)


def test_nothing_is_left_out_where_no_threshold_asks_for_it(model):
    patches = patches_of(batch_at((0, 0)))
    samples = dense(patches.central, 30)
    kept = visible_patch_samples(model.sdf, patches, samples, 300.0, replace(OPTIONS, unseen=0.0))
    assert torch.equal(kept.t_start, samples.t_start)


def test_a_patch_that_reaches_out_of_the_box_keeps_only_what_is_whole(model):
    """At the tip of the box the central ray starts 1.0 from the origin, its neighbors' planes beyond it."""
    patches = patches_of(batch_at((0, 0), (0, 95)))
    central = replace(patches.central, near=torch.tensor([1.9, 1.9]), far=torch.tensor([2.5, 2.5]))
    samples = dense(central, 100)
    kept = visible_patch_samples(model.sdf, patches, samples, 300.0, replace(OPTIONS, unseen=0.0))
    assert 0 < len(kept) < len(samples)
    assert float(pixel_samples(patches, kept).t_start.min()) >= 2.0
    with torch.no_grad():
        assert all(bool(torch.isfinite(part).all()) for part in blend_patches(model, patches, kept))


def test_no_samples_are_seen_as_nothing_and_have_a_gradient(model):
    patches = patches_of(batch_at((0, 0), (5, 5)))
    nothing = dense(patches.central, 3).selected(torch.zeros(6, dtype=torch.bool))
    kept = visible_patch_samples(model.sdf, patches, nothing, 300.0, OPTIONS)
    opacity, normal, distance, gradients = blend_patches(model, patches, kept)
    assert (float(opacity.detach().abs().sum()), len(gradients)) == (0, 0)
    assert (normal.shape, distance.shape) == ((18, 3), (18,))
    (opacity.sum() + normal.sum()).backward()


def test_rays_that_are_no_patches_are_refused():
    batch = batch_at((0, 0))
    rays = rays_in_scene(batch, POSE[None])
    for wrong in (replace(batch, patch=1), replace(batch, patch=5)):
        with pytest.raises(
            ValueError, match=f"whole patches .*odd side .*least 3, got .*{wrong.patch} x {wrong.patch}"
        ):
            Patches.of(rays, wrong, POSE[None])
