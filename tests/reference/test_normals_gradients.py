"""Three ways to a gradient, through the whole rendering of normals: on fields whose answer is known, and a real one."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from fieldwatch.recon.geometry import exponential, look_at, rigid
from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import FieldOptions, NormalsConfig, RenderOptions
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.patch_rendering import Patches, blend_patches, pixel_samples
from fieldwatch.recon.pipelines.normals.rendering import blend_samples, rays_in_scene
from fieldwatch.recon.render import PackedSamples, fill_empty

POSE = look_at((2.4, 0.5, 1.2), (0.0, 0.0, 0.0)).float()
NORMAL = torch.tensor([0.8, 0.36, 0.48])  # towards the camera
FOCAL = 700.0  # pixels; one is 0.3 % of a radius wide on the surface
STEP = 4e-3
RADIUS = 0.6


class Plane(nn.Module):
    """Distance to a plane, and its gradient."""

    def forward(self, points):
        return points @ NORMAL.to(points) - 0.1

    def with_gradient(self, points):
        return self(points), NORMAL.to(points).expand_as(points)


class Sphere(nn.Module):
    """Distance to a sphere around the origin, and its gradient."""

    def forward(self, points):
        return points.norm(dim=-1) - RADIUS

    def with_gradient(self, points):
        return self(points), points / points.norm(dim=-1, keepdim=True)


def model_of(field=None):
    small = FieldOptions(levels=4, base_resolution=4, finest_resolution=24, table_bits=10, hidden=16)
    config = NormalsConfig(sdf=small, rendering=RenderOptions(grid_resolution=16, first_sharpness=400.0))
    model = NormalsModel(config, POSE[None].double())
    if field is not None:
        model.sdf = field
    return model


def patches_of_rays(count, side=3):
    """Patches around places of the picture, as rays of one view."""
    around = torch.arange(side) - side // 2
    middle = torch.randn(count, 2) * 25
    y, x = torch.meshgrid(around, around, indexing="ij")
    places = torch.stack([middle[:, :1] + x.reshape(-1), middle[:, 1:] + y.reshape(-1)], -1).view(-1, 2)
    directions = torch.cat([places / FOCAL, torch.ones(len(places), 1)], -1)
    n = len(places)
    return RayBatch(
        view=torch.zeros(n, dtype=torch.int64),
        pixel=torch.arange(n),
        directions=directions / directions.norm(dim=-1, keepdim=True),
        normals=torch.zeros(n, 3),
        mask=torch.ones(n, dtype=torch.bool),
        known=torch.ones(n, dtype=torch.bool),
        distance=torch.zeros(n),
        weights=torch.ones(n),
        patch=side,
    )


def dense(rays):
    """Samples one STEP long, all along the part of the rays where these fields have their surface."""
    nothing = torch.zeros(0)
    none = PackedSamples(t_start=nothing, t_end=nothing, ray_index=nothing.long(), n_rays=len(rays))
    samples = fill_empty(none, rays, round(float((rays.far - rays.near).max()) / STEP)).samples
    return samples.selected((samples.midpoints - 2.4).abs() < 0.4)


def looked(way, model, batch, poses):
    """(opacity, normal, distance, gradients) by one method, at the same samples for each."""
    rays = rays_in_scene(batch, poses)
    patches = Patches.of(rays, batch, poses)
    samples = dense(patches.central)
    if way == "dfd":
        return blend_patches(model, patches, samples)
    return blend_samples(
        model, rays, pixel_samples(patches, samples), RenderOptions(gradient_method=way, finite_step=1e-3)
    )


@torch.no_grad()
def three_ways(model, batch):
    return {way: looked(way, model, batch, model.poses()) for way in ("ad", "fd", "dfd")}


def angles(first, second):
    """Degrees between vectors."""
    cosine = torch.cosine_similarity(first.double(), second.double(), dim=-1)
    return torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))


def test_all_three_are_exact_on_a_plane():
    found = three_ways(model_of(Plane()), patches_of_rays(6))
    for way, (opacity, normal, distance, gradients) in found.items():
        assert float((gradients - NORMAL).norm(dim=-1).max()) < 2e-3, way  # rounding of single precision
        assert float(angles(normal, NORMAL.expand_as(normal)).max()) < 0.06, way
        assert torch.allclose(opacity, found["ad"][0], atol=1e-5), way
        assert torch.allclose(distance, found["ad"][2], atol=1e-4), way


def test_all_three_agree_on_a_sphere_within_its_curvature():
    found = three_ways(model_of(Sphere()), patches_of_rays(12))
    exact = found["ad"][1]
    pixel = math.degrees(2.2 / FOCAL / RADIUS)  # by which the normal changes across one, at most as much seen aslant
    off = angles(found["dfd"][1], exact).view(-1, 3, 3)
    assert float(angles(found["fd"][1], exact).max()) < 0.06
    assert float(off[:, 1, 1].max()) < 0.03 * pixel + 0.06  # central differences: of second order
    assert float(off.max()) < 1.0 * pixel + 0.06  # at the border of a patch: half a pixel each way, of first order
    assert float(off.max()) > 0.2 * pixel  # and that is seen
    assert torch.allclose(found["dfd"][2], found["ad"][2], atol=1e-4)


@torch.no_grad()
def test_gradients_stand_in_the_middle_of_sections():
    """Of second order in the step: at the start of sections they would be off by half a step over the radius."""
    model = model_of(Sphere())
    batch = patches_of_rays(12)
    rays = rays_in_scene(batch, model.poses())
    patches = Patches.of(rays, batch, model.poses())
    samples = dense(patches.central)
    at_surface = (samples.midpoints - 2.1).abs() < 0.1
    samples = samples.selected(at_surface)
    gradients = blend_patches(model, patches, samples)[3].view(-1, 3, 3, 3)[:, 1, 1]
    middles = patches.central.origins[0] + samples.midpoints[:, None] * patches.central.directions[samples.ray_index]
    start = middles - 0.5 * STEP * patches.central.directions[samples.ray_index]
    off = angles(gradients, middles)
    assert float(off.max()) < 0.1
    assert float(angles(gradients, start).max()) > float(off.max())


@torch.no_grad()
def test_central_differences_come_closer_to_a_neural_field_as_they_shrink():
    model = model_of()
    batch = patches_of_rays(1)
    model.sdf.encoding.table.uniform_(-0.2, 0.2)
    model.sdf.hidden[0].parametrizations.weight.original1.add_(0.05)  # so that the features count
    model = model.double()
    rays = rays_in_scene(batch, model.poses().float())
    rays = type(rays)(**{name: getattr(rays, name).double() for name in ("origins", "directions", "near", "far")})
    samples = dense(rays)
    samples = samples.selected((samples.midpoints - 2.15).abs() < 0.15)

    def gradients(**options):
        return blend_samples(model, rays, samples, RenderOptions(**options))[3]

    exact = gradients()
    steps = (1.6e-2, 4e-3, 1e-3, 2.5e-4)
    off = [float((gradients(gradient_method="fd", finite_step=eps) - exact).abs().mean()) for eps in steps]
    assert float((exact - exact.mean(0)).abs().mean()) > 0.05  # it is not flat
    assert all(after < 0.4 * before for before, after in pairwise(off)), off


@pytest.mark.parametrize("field", [Plane, Sphere])
def test_poses_get_the_same_gradient_by_every_way(field):
    """A turned camera turns no field: differences whose places move with it must not say so."""
    model = model_of(field())
    batch = patches_of_rays(12)
    aim = torch.tensor([0.5, -0.4, 0.7])
    slopes = {}
    for way in ("ad", "fd", "dfd"):
        turn = torch.zeros(1, 3, requires_grad=True)
        poses = rigid(exponential(turn), torch.zeros(1, 3)) @ POSE
        opacity, normal, _, _ = looked(way, model, batch, poses)
        seen = (normal / opacity[:, None]).view(-1, 3, 3, 3)[:, 1, 1]
        (seen @ aim).sum().backward()
        slopes[way] = turn.grad[0]
    scale = 12 * float(aim.norm())  # what a field that turns with the camera would have
    for way in ("fd", "dfd"):
        assert float((slopes[way] - slopes["ad"]).norm()) < 0.03 * scale, (way, slopes)
    assert (float(slopes["ad"].norm()) > 0.1 * scale) == (field is Sphere)
