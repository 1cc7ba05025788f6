"""Rays rendered by GPU kernels equal those of the CPU, with all gradients, in any order of threads."""

from dataclasses import replace

import pytest
import torch

from fake_cuda import DeviceTensor
from fake_cuda.emulator import FORWARD, REVERSE, SHUFFLED
from fieldwatch import Terms
from fieldwatch.recon.data import NormalView, ring_cameras
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.normals.batches import RaySource
from fieldwatch.recon.pipelines.normals.config import (
    FieldOptions,
    NormalsConfig,
    PoseOptions,
    RayOptions,
    RenderOptions,
    TermOptions,
)
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.objective import (
    eikonal_term,
    mask_term,
    normal_term,
    view_losses,
)
from fieldwatch.recon.pipelines.normals.rays import Rays
from fieldwatch.recon.pipelines.normals.rendering import render
from fieldwatch.recon.pipelines.normals.scene import Pixels
from fieldwatch.recon.pipelines.normals.step_output import RayStatistics
from fieldwatch.recon.render import Cells, HashEncoding, HashSdf, OccupancyConfig, OccupancyGrid
from fieldwatch.recon.render.sdf_gpu.marching import raise_device_faults
from fieldwatch.recon.render.sdf_gpu.trial import sdf_kernels_problem

ORDERS = (FORWARD, REVERSE, SHUFFLED)
CAMERAS = ring_cameras(3, 12)
FIELD = FieldOptions(levels=3, base_resolution=4, finest_resolution=12, table_bits=8, hidden=20, first_levels=1.0)
RENDERING = RenderOptions(grid_resolution=12, empty_samples=5, unseen=1e-3, first_sharpness=20.0)


def views():
    """Views whose pixels in a disc have random normals and distances."""
    generator = torch.Generator().manual_seed(3)
    y, x = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    disc = (x - 5.5).square() + (y - 5.5).square() < 20
    found = []
    for camera in CAMERAS:
        normals = torch.randn(12, 12, 3, generator=generator)
        normals = torch.where(disc[..., None], normals / normals.norm(dim=-1, keepdim=True), 0)
        depth = torch.where(disc, 3 + torch.rand(12, 12, generator=generator), 0)
        known = Camera(
            name=camera.name,
            width=12,
            height=12,
            fx=camera.fx,
            fy=camera.fy,
            cx=camera.cx,
            cy=camera.cy,
            world_from_camera=camera.world_from_camera,
        )
        found.append(NormalView(name=camera.name, camera=known, normals=normals, mask=disc, depth=depth))
    return found


def rendered(where, rendering=RENDERING, terms=None, *, step=0.05, most=4000, change=lambda _: None):
    """Return what a step computes: results, losses, gradients of all parameters, and counts."""
    terms = terms or TermOptions()
    torch.manual_seed(1)
    device = torch.device(where)
    config = NormalsConfig(
        sdf=FIELD, rendering=rendering, poses=PoseOptions(learn_rotation=True, learn_translation=True)
    )
    poses = torch.stack([camera.world_from_camera for camera in CAMERAS]).float()
    model = NormalsModel(config, poses)
    with torch.no_grad():
        model.sdf.encoding.table.mul_(300)
        for weight in model.sdf.hidden.parameters():
            weight.add_(0.02 * torch.randn(weight.shape))
        model.poses.rotations.copy_(0.03 * torch.randn(3, 3))
        model.poses.rotations[0] = 0
    model.sdf.activate(2.5)
    change(model)
    model.to(device)
    model.grid.update(0, model.sdf, model.deviation)
    source = RaySource(Pixels.of(views(), device), RayOptions(views_per_graph=3), seed=5)
    (batch,) = source.draw(70)
    rays = Rays(batch, source)
    result = render(model, rays, step, rendering, most)
    batch = batch.first(result.ray_count)
    weights = {"normal": 1.0, "mask": 0.5}
    losses = {
        "normal": normal_term(batch, result, model.poses(), terms),
        "mask": mask_term(batch, result, terms),
        "eikonal": eikonal_term(batch, result, terms),
        "depth": rays.depth_term(result, terms),
    }
    torch.stack(list(losses.values())).sum().backward()
    of_views = view_losses(weights, batch, result, poses=model.poses(), options=terms, views=3)
    statistics = RayStatistics.of([rays.output(Terms(), result, terms)])
    if statistics.counts is not None:
        statistics = RayStatistics.of_counts(statistics.counts.tolist())
    kept = statistics.rays
    numbers = {name: value.detach() for name, value in losses.items()}
    numbers |= {"opacity": result.opacity[:kept], "distance": result.distance[:kept], "views": of_views}
    numbers |= {"grid": model.grid.values, "occupied": model.grid.occupied}
    numbers |= {f"by {name}": parameter.grad for name, parameter in model.named_parameters()}
    plain = {
        name: value.detach().values if isinstance(value, DeviceTensor) else value.detach()
        for name, value in numbers.items()
        if value is not None
    }
    return plain, statistics


def on_both(fake_cuda, *settings, **more):
    """Compare the CPU with the device in three orders of threads; return the counts."""
    wanted, counted = rendered("cpu", *settings, **more)
    ends = []
    for order in ORDERS:
        fake_cuda.emulator.order = order
        ends.append(rendered("cuda", *settings, **more))
    found, on_device = ends[0]
    assert on_device == counted
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        largest = float(value.float().abs().nan_to_num().max()) if value.numel() else 0.0
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=2e-5 * largest, equal_nan=True, msg=name)
    for again, _ in ends[1:]:
        assert all(torch.equal(again[name], value) or bool(value.isnan().any()) for name, value in found.items())
    return counted


pytestmark = pytest.mark.pretended


@pytest.mark.parametrize(
    ("rendering", "terms", "step"),
    [
        (RENDERING, TermOptions(), 0.05),
        (replace(RENDERING, unseen=0.0), TermOptions(normal_norm="l1", balanced=False), 0.2),
        (replace(RENDERING, alpha_threshold=0.02), TermOptions(rendered_normals="blended"), 0.03),
        (replace(RENDERING, empty_samples=0), TermOptions(), 0.03),
    ],
)
def test_rays_are_rendered_as_on_the_cpu(fake_cuda, rendering, terms, step):
    assert sdf_kernels_problem() is None
    counted = on_both(fake_cuda, rendering, terms, step=step)
    assert counted.rays == 69
    assert counted.samples > 300


def test_rays_beyond_the_bound_of_samples_do_not_count(fake_cuda):
    counted = on_both(fake_cuda, replace(RENDERING, empty_samples=0), step=0.03, most=500)
    assert 0 < counted.rays < 69
    none = rendered("cuda", most=1, step=0.03)
    assert none[1].rays == none[1].samples == 0
    assert all(bool((value == 0).all()) for name, value in none[0].items() if name.startswith("by "))


def test_rays_without_samples_are_filled_and_counted(fake_cuda):
    def lift(model):
        with torch.no_grad():
            model.sdf.last.bias.add_(3)

    counted = on_both(fake_cuda, RENDERING, change=lift)
    assert counted.filled > 40
    assert counted.samples == 5 * counted.filled
    assert counted.starved == 1
    without = on_both(fake_cuda, replace(RENDERING, empty_samples=0), change=lift)
    assert without.samples == 0


def field_on(where, *, points, levels, width, hidden, sloped=True):
    """Return distances and gradients at points, and all gradients of a weighted sum of them."""
    torch.manual_seed(0)
    encoding = HashEncoding(
        levels=levels, base_resolution=3, finest_resolution=40, table_bits=9, features_per_level=width
    )
    sdf = HashSdf(encoding=encoding, hidden=hidden)
    with torch.no_grad():
        encoding.table.normal_()
        encoding.activate(levels - 0.3)
        for weight in sdf.hidden.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    at = 2 * torch.rand(points, 3) - 1
    at[: min(points, 8)] = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)[:points]  # corners of the box
    weights = torch.randn(points), torch.randn(points, 3)
    sdf, at, *weights = (part.to(where) for part in (sdf, at, *weights))
    at.requires_grad_()
    distance, gradient = sdf.with_gradient(at) if sloped else (sdf(at), torch.zeros(points, 3, device=where))
    ((distance * weights[0]).sum() + (gradient * weights[1]).sum()).backward()
    numbers = [distance, gradient, at.grad, *(parameter.grad for parameter in sdf.parameters())]
    return [number.detach().values if where == "cuda" else number.detach() for number in numbers]


@pytest.mark.parametrize(
    ("points", "levels", "width", "hidden", "sloped"),
    [
        (0, 2, 2, 8, True),
        (1, 1, 2, 8, True),
        (130, 8, 2, 20, True),
        (65, 4, 4, 33, False),
        (64, 16, 2, 64, True),
        (70, 8, 8, 70, True),
    ],
)
def test_a_field_is_that_of_the_cpu(fake_cuda, points, levels, width, hidden, sloped):  # noqa: PLR0917
    how = {"points": points, "levels": levels, "width": width, "hidden": hidden, "sloped": sloped}
    wanted = field_on("cpu", **how)
    ends = []
    for order in ORDERS:
        fake_cuda.emulator.order = order
        ends.append(field_on("cuda", **how))
    for found, value in zip(ends[0], wanted, strict=True):
        largest = float(value.abs().max()) if value.numel() else 0.0
        torch.testing.assert_close(found, value, rtol=1e-4, atol=3e-6 * largest)
    assert all(torch.equal(one, other) for again in ends[1:] for one, other in zip(again, ends[0], strict=True))


def test_a_nan_shows_in_the_gradients_and_a_point_outside_is_refused(fake_cuda):
    sdf = HashSdf(encoding=HashEncoding(levels=2, base_resolution=3, finest_resolution=5, table_bits=8), hidden=8)
    sdf.to("cuda")
    points = torch.tensor([[0.1, 0.2, float("nan")], [0.1, 0.2, 0.3]], device="cuda")
    distance, gradient = sdf.with_gradient(points)
    assert distance.isnan().tolist() == [True, False]
    (distance.sum() + gradient.sum()).backward()
    assert bool(sdf.encoding.table.grad.isnan().any())
    assert bool(sdf.last.bias.grad.isfinite().all())
    with pytest.raises(ValueError, match="1 of 2 points"):
        sdf(torch.tensor([[0.0, 0.0, 1.01], [0.0, 0.0, 0.0]], device="cuda"))
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.grad(sdf(points[1:]).sum(), sdf.last.bias, create_graph=True)


@pytest.mark.parametrize("mostly_full", [False, True])
def test_a_grid_is_updated_as_on_the_cpu(fake_cuda, mostly_full):
    def updated(where):
        torch.manual_seed(0)
        encoding = HashEncoding(levels=2, base_resolution=3, finest_resolution=8, table_bits=8)
        sdf = HashSdf(encoding=encoding, hidden=16, radius=0.9 if mostly_full else 0.4).to(where)
        grid = OccupancyGrid(OccupancyConfig(cells=Cells(resolution=7), every=2, warmup=4, threshold=0.2)).to(where)
        ends = []
        for step in range(0, 14, 2):
            with torch.no_grad():
                sdf.last.bias.add_(0.02)
            grid.update(step, sdf, torch.tensor(30.0 + step, device=where).clone)
            ends += [grid.values.clone(), grid.occupied.clone()]
        assert int(grid.updates) == 7
        return [end.values if where == "cuda" else end for end in ends]

    for found, wanted in zip(updated("cuda"), updated("cpu"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_what_is_not_finite_is_reported_a_step_later(fake_cuda):
    def spoil(model):
        with torch.no_grad():
            model.poses.translations[1, 0] = torch.nan

    with pytest.raises(ValueError, match="not finite"):
        rendered("cuda", change=spoil)
    with pytest.raises(ValueError, match=r"\[-1, 1\]"):
        raise_device_faults(1)
    grid = OccupancyGrid(OccupancyConfig(cells=Cells(resolution=3))).to("cuda")
    sdf = HashSdf(encoding=HashEncoding(levels=1, base_resolution=2, finest_resolution=2), hidden=8).to("cuda")
    with torch.no_grad():
        sdf.last.bias.fill_(torch.nan)
    grid.update(0, sdf)
    assert grid.faults.tolist() == [4]
    assert bool((grid.values == 1).all())
