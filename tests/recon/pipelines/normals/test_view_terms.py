"""Terms between views on three balls, whose field, depth and normals are known everywhere."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fieldwatch.recon.data import NormalView, ring_cameras, synthetic_normal_maps
from fieldwatch.recon.geometry import Camera, exponential
from fieldwatch.recon.pipelines.normals.batches import RaySource
from fieldwatch.recon.pipelines.normals.config import (
    FieldOptions,
    NormalsConfig,
    PoseOptions,
    RayOptions,
    RenderOptions,
    TermOptions,
)
from fieldwatch.recon.pipelines.normals.integrated_clouds import IntegratedClouds, ViewScales
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.rays import Rays
from fieldwatch.recon.pipelines.normals.rendering import RenderedRays, rays_in_scene
from fieldwatch.recon.pipelines.normals.scene import Pixels
from fieldwatch.recon.pipelines.normals.view_terms import ViewTerms, observed_normals
from fieldwatch.recon.render import PackedSamples

CENTERS = torch.tensor([[0.2, -0.15, 0.1], [-0.35, 0.3, -0.25], [0.3, 0.35, -0.35]])
RADII = torch.tensor([0.5, 0.3, 0.28])
VIEWS = 12
CPU = torch.device("cpu")
ALL = {"point_cloud": 1.0, "surface": 1.0, "consistency": 1.0}


def met(origins, directions):
    """Return the distances at which rays first hit the balls (0 for misses), and the normals there."""
    offset = origins[..., None, :] - CENTERS.to(origins)
    along = -(offset * directions[..., None, :]).sum(-1)
    root = along.square() - offset.square().sum(-1) + RADII.to(origins).square()
    distance, ball = torch.where(root > 0, along - root.clamp_min(0).sqrt(), torch.inf).min(-1)
    hit = distance.isfinite()
    distance = torch.where(hit, distance, 0)
    outwards = origins + distance[..., None] * directions - CENTERS.to(origins)[ball]
    return distance, torch.where(hit[..., None], outwards / RADII.to(origins)[ball][..., None], 0)


class Balls(nn.Module):
    """The balls as a field with one parameter, an offset of the distance, and as the solid behind the maps."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, points):
        return ((points[:, None] - CENTERS).norm(dim=-1) - RADII).amin(-1) + self.shift

    def depth(self, camera):
        origins, directions = camera.rays()
        return met(origins, directions)[0] * (directions @ camera.forward)

    def normals(self, camera):
        return met(*camera.rays())[1]


@pytest.fixture(scope="module")
def maps():
    return synthetic_normal_maps(Balls(), cameras=ring_cameras(VIEWS, 64, elevations=(20.0,)))


@pytest.fixture
def pixels(maps):
    return Pixels.of(list(maps.views), CPU)


@pytest.fixture
def model(maps):
    small = FieldOptions(levels=2, base_resolution=4, finest_resolution=8, table_bits=8, hidden=16)
    learned = PoseOptions(learn_rotation=True, learn_translation=True)
    config = NormalsConfig(sdf=small, rendering=RenderOptions(grid_resolution=16), poses=learned)
    model = NormalsModel(config, torch.stack([view.camera.world_from_camera for view in maps.views]))
    model.sdf = Balls()
    return model


def drawn(pixels, rays=1800):
    """Rays of all views in one batch, all of them in the mask or next to it."""
    return RaySource(pixels, RayOptions(inside=0.9, views_per_graph=VIEWS), seed=3).draw(rays)[0]


def rays_near(batch):
    """Return the gradients of view 2 and its neighbors, the only ones that affect it."""
    kept = (batch.view - 2).abs() <= 1
    parts = ("view", "pixel", "directions", "normals", "mask", "known", "distance", "weights")
    return replace(batch, **{name: getattr(batch, name)[kept] for name in parts})


def whole(batch):
    """The rays of one process, which are not rendered, so that no random numbers are drawn."""
    camera = Camera(name="0", width=1, height=1, fx=1.0, fy=1.0, cx=0.5, cy=0.5, world_from_camera=torch.eye(4))
    view = NormalView(name="0", camera=camera, normals=torch.zeros(1, 1, 3), mask=torch.ones(1, 1, dtype=torch.bool))
    return Rays(batch, RaySource(Pixels.of([view], CPU), RayOptions()))


@torch.no_grad()
def looked(model, batch):
    """Return the rendering of the true surface from the model's poses."""
    rays = rays_in_scene(batch, model.poses())
    distance, normal = met(rays.origins, rays.directions)
    nothing = torch.zeros(0)
    return RenderedRays(
        opacity=(distance > 0).float(),
        normal=normal,
        distance=distance,
        gradients=nothing.view(0, 3),
        samples=PackedSamples(t_start=nothing, t_end=nothing, ray_index=nothing.long(), n_rays=len(batch)),
        filled=0,
        starved=0.0,
        ray_count=len(batch),
    )


def term(name, pixels, model, batch):
    found = ViewTerms(pixels, TermOptions()).terms({name: 1.0}, model, whole(batch), looked(model, batch))
    assert list(found) == [name]
    return found[name].value


def moved(model, view, *, turn=(0.0, 0.0, 0.0), shift=(0.0, 0.0, 0.0)):
    with torch.no_grad():
        model.poses.rotations[view] = torch.tensor(turn)
        model.poses.translations[view] = torch.tensor(shift)
    return torch.tensor(turn), torch.tensor(shift)


@pytest.mark.parametrize(("name", "most"), [("point_cloud", 0.025), ("surface", 2e-6), ("consistency", 2e-4)])
def test_the_truth_has_next_to_no_error(pixels, model, name, most):
    """The remaining error: points of two clouds are half a pixel apart (a pixel is 0.035), normals are interpolated."""
    error = term(name, pixels, model, drawn(pixels))
    assert error.item() < most
    model.poses.rotations.data += 0.08 * torch.randn(VIEWS, 3)
    assert term(name, pixels, model, drawn(pixels)).item() > 1.3 * error.item() + 1e-3


@pytest.mark.parametrize("name", ["point_cloud", "surface"])
@pytest.mark.parametrize("shift", [(0.1, 0.0, 0.0), (0.0, -0.07, 0.07)])
def test_a_camera_that_was_shifted_is_pushed_back(pixels, model, name, shift):
    _, error = moved(model, 2, shift=shift)
    term(name, pixels, model, drawn(pixels)).backward()
    slope = model.poses.translations.grad[2]
    assert torch.cosine_similarity(slope, error, dim=0).item() > 0.6


@pytest.mark.parametrize("turn", [(0.08, 0.0, 0.0), (-0.05, 0.05, 0.04)])
def test_a_camera_that_was_turned_is_turned_back_by_consistency(pixels, model, turn):
    error, _ = moved(model, 2, turn=turn)
    term("consistency", pixels, model, drawn(pixels)).backward()
    slope = model.poses.rotations.grad[2]
    assert torch.cosine_similarity(slope, error, dim=0).item() > 0.3
    assert model.sdf.shift.grad is None


@pytest.mark.parametrize("name", ["surface", "consistency"])
def test_a_descent_turns_a_camera_back(pixels, model, name):
    """With more steps the error would fall further: to a sixtieth after 60 steps on more rays."""
    moved(model, 2, turn=(0.05, -0.04, 0.03))
    poses = model.poses
    truth = poses.start[2]
    before = _off(poses, truth)
    assert before > 0.025
    optimizer = torch.optim.Adam([poses.rotations], lr=8e-3)
    terms = ViewTerms(pixels, TermOptions())
    batch = rays_near(drawn(pixels, 900))
    for index in range(25):
        optimizer.param_groups[0]["lr"] = 8e-3 * (1 - index / 25)
        optimizer.zero_grad()
        terms.terms({name: 1.0}, model, whole(batch), looked(model, batch))[name].value.backward()
        poses.rotations.grad[torch.arange(VIEWS) != 2] = 0
        optimizer.step()
    assert _off(poses, truth) < 0.5 * before


@torch.no_grad()
def _off(poses, truth):
    """Return the mean distance between transformed and true points of the object."""
    motion = poses()[2] @ torch.linalg.inv(truth)
    points = torch.cat([CENTERS + RADII[:, None] * axis for axis in torch.eye(3)])
    return float((points @ motion[:3, :3].T + motion[:3, 3] - points).norm(dim=1).mean())


def test_the_surface_term_trains_the_field_and_the_cloud_term_does_not(pixels, model):
    with torch.no_grad():
        model.sdf.shift += 0.03  # the field's balls are too small: f is above 0 where the points are
    term("surface", pixels, model, drawn(pixels)).backward()
    assert model.sdf.shift.grad.item() == pytest.approx(1.0, abs=0.02)
    model.zero_grad()
    term("point_cloud", pixels, model, drawn(pixels)).backward()
    assert model.sdf.shift.grad is None
    assert float(model.poses.rotations.grad.norm()) > 0


def test_the_scale_of_integrated_depth_means_nothing(maps, pixels, model):
    moved(model, 1, turn=(0.03, 0.0, 0.02))
    factors = torch.linspace(0.2, 11.0, VIEWS)
    scaled = [
        replace(view, depth=view.depth * factor) for view, factor in zip(maps.views, factors.tolist(), strict=True)
    ]
    others = Pixels.of(scaled, CPU)
    terms = ViewTerms(others, TermOptions())
    batch = drawn(others)
    rendered = looked(model, batch)
    found = terms.terms(ALL, model, whole(batch), rendered)
    exact = ViewTerms(pixels, TermOptions())
    expected = exact.terms(ALL, model, whole(drawn(pixels)), rendered)
    assert torch.allclose(terms.scales.values * factors, exact.scales.values, rtol=1e-5)
    for name in ALL:
        assert found[name].value.item() == pytest.approx(expected[name].value.item(), rel=2e-3)


def test_one_motion_of_all_cameras_and_the_object_changes_no_cloud(pixels, model):
    moved(model, 1, turn=(0.03, 0.0, 0.02))
    batch = drawn(pixels)
    rendered = looked(model, batch)
    before = ViewTerms(pixels, TermOptions()).terms({"point_cloud": 1.0}, model, whole(batch), rendered)["point_cloud"]
    turn = exponential(torch.tensor([0.4, -1.0, 0.3]))
    model.poses.start[:] = model.poses().detach()
    moved(model, 1)
    model.poses.start[:, :3] = turn @ model.poses.start[:, :3]
    after = ViewTerms(pixels, TermOptions()).terms({"point_cloud": 1.0}, model, whole(batch), rendered)["point_cloud"]
    assert after.value.item() == pytest.approx(before.value.item(), rel=1e-3)


def test_only_terms_with_a_weight_are_computed(maps, model):
    bare = Pixels.of([replace(view, depth=None) for view in maps.views], CPU)
    batch = drawn(bare)
    terms = ViewTerms(bare, TermOptions())
    assert len(terms.terms({"normal": 1.0}, model, whole(batch), looked(model, batch))) == 0
    assert list(terms.terms({"consistency": 0.1}, model, whole(batch), looked(model, batch))) == ["consistency"]
    with pytest.raises(ValueError, match=r"point_cloud and surface.*integrate_normals"):
        terms.terms({"surface": 0.1}, model, whole(batch), looked(model, batch))


@pytest.mark.parametrize("what", ["no light", "no mask", "hidden"])
def test_where_nothing_is_seen_errors_are_zero_and_gradients_finite(pixels, model, what):
    batch = drawn(pixels)
    rendered = looked(model, batch)
    terms = ViewTerms(pixels, TermOptions())
    weights = dict(ALL)
    if what == "no light":
        rendered = replace(rendered, opacity=torch.zeros(len(batch)))
    elif what == "no mask":
        batch = replace(batch, mask=torch.zeros_like(batch.mask))
    else:
        model.sdf.shift.data -= 0.2  # every point lies deep in the field
        weights = {"consistency": 1.0}
    found = terms.terms(weights, model, whole(batch), rendered)
    assert [found[name].value.item() for name in weights] == [0.0] * len(weights)
    found.total.backward()
    for one in model.poses.learned_parameters():
        assert one.grad is None or not bool(one.grad.any())


def test_what_hides_a_place_from_a_neighbor_keeps_it_out(pixels, model):
    """Views occluded by the other ball show other normals: without visibility the true surface would be penalized."""
    batch = drawn(pixels)
    exact = term("consistency", pixels, model, batch).item()
    model.sdf.forward = lambda points: torch.ones(len(points))  # nothing hides anything
    assert term("consistency", pixels, model, batch).item() > 3 * exact


def test_a_single_view_has_no_neighbors(maps, pixels, model):
    alone = Pixels.of(list(maps.views[:1]), CPU)
    source = RaySource(alone, RayOptions(views_per_graph=1), seed=3)
    batch = source.draw(50)[0]
    found = ViewTerms(alone, TermOptions()).terms(ALL, model, whole(batch), looked(model, batch))
    assert (found["point_cloud"].value.item(), found["consistency"].value.item()) == (0, 0)
    found.total.backward()


def test_scales_are_running_estimates_that_a_checkpoint_holds(pixels, model):
    batch = drawn(pixels)
    rendered = looked(model, batch)
    scales = ViewScales(VIEWS, CPU)
    assert scales.values.tolist() == [0.0] * VIEWS
    scales.observe(batch, rendered)
    assert torch.allclose(scales.values, torch.ones(VIEWS), atol=1e-4)
    scales.observe(batch, replace(rendered, distance=2 * rendered.distance))
    assert torch.allclose(scales.values, torch.full((VIEWS,), 1.1), atol=1e-3)
    scales.observe(batch, replace(rendered, distance=-rendered.distance))  # no relation: says nothing
    assert torch.allclose(scales.values, torch.full((VIEWS,), 1.1), atol=1e-3)
    other = ViewScales(VIEWS, CPU)
    other.load_state_dict(scales.state_dict())
    assert torch.equal(other.values, scales.values)


def test_the_nearest_point_at_the_edge_of_a_cloud_is_no_match(pixels):
    clouds = IntegratedClouds(pixels, 0.5)
    known = torch.nonzero(pixels.distance[: 64 * 64] > 0)[:, 0]
    points = pixels.distance[known, None] * pixels.directions(torch.zeros_like(known), known)
    nearest, _ = clouds.nearest(0, points)
    apart = (nearest - points).norm(dim=1)
    assert 0.45 < (apart == 0).float().mean().item() < 0.62  # half of the points and the whole edge
    assert apart.max().item() < 0.3
    beside = points.mean(0) + torch.tensor([[2.0, 0.0, 0.0], [0.0, -2.0, 0.0]])
    assert clouds.nearest(0, beside)[1].tolist() == [False, False]
    middle = points[points[:, :2].sub(points[:, :2].mean(0)).norm(dim=1).argmin()][None]
    assert clouds.nearest(0, middle + 1e-3)[1].item()


def test_normals_are_read_between_pixels_and_not_beyond_what_is_known(pixels):
    view = torch.full((3,), 4)
    known = torch.nonzero(pixels.known[pixels.offsets[4] : pixels.offsets[5]].view(64, 64))
    row, column = known[len(known) // 2].tolist()
    rows = torch.tensor([row * 64 + column, row * 64 + column + 1])
    places = 3.0 * pixels.directions(view[:2], rows)
    exact = pixels.normals[pixels.offsets[4] + rows]
    found, there = observed_normals(pixels, view[:2], places)
    assert there.all()
    assert torch.allclose(found, exact, atol=1e-4)
    between, _ = observed_normals(pixels, view[:1], (places / places[:, 2:]).mean(0)[None])
    mean = exact.mean(0) / exact.mean(0).norm()
    assert torch.allclose(between[0], mean, atol=1e-4)
    beyond = torch.tensor([[0.0, 0.0, -3.0], [9.0, 0.0, 1.0], [-0.26, -0.26, 1.0]])  # behind, beside, no normal there
    found, there = observed_normals(pixels, view, beyond)
    assert (there.tolist(), found.abs().sum().item()) == ([False] * 3, 0)
