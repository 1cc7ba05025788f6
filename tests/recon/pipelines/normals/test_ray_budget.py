"""Number of rays of a step, and the bound of its samples."""

import pytest
import torch

from fieldwatch.recon.pipelines.normals.config import RayOptions
from fieldwatch.recon.pipelines.normals.ray_budget import LEAST_RAYS, RayBudget
from fieldwatch.recon.render import BoundedRays, OccupancyGrid
from fieldwatch.recon.render.sdf_gpu.field import MOST_POINTS


def test_without_a_budget_rays_are_constant_and_samples_bounded_all_the_same():
    budget = RayBudget(RayOptions(rays=512))
    for samples in (0, 100, 10_000_000):
        budget.observe(512, samples)
        assert budget.rays == 512
    assert budget.max_samples == 524_288


def test_the_bound_grows_with_the_views_of_a_graph_up_to_what_kernels_take():
    bounds = [RayBudget(RayOptions(views_per_graph=views)).max_samples for views in (4, 5, 20, 1000)]
    assert bounds == [524_288, 2 * 524_288, 5 * 524_288, 1 << 23]
    assert 5 * bounds[-1] // 4 <= MOST_POINTS  # four sections of a stride have five ends
    assert RayBudget(RayOptions(views_per_graph=20, sample_budget=12_000)).max_samples == 96_000


def test_with_a_budget_rays_follow_the_samples_that_rays_need():
    budget = RayBudget(RayOptions(rays=2048, sample_budget=20_000))
    assert budget.rays == LEAST_RAYS
    for _ in range(80):
        budget.observe(budget.rays, 20 * budget.rays)
    assert budget.rays == 1000
    for _ in range(80):
        budget.observe(budget.rays, budget.rays)
    assert budget.rays == 2048
    assert RayBudget(RayOptions(rays=16, sample_budget=100)).rays == 16


def test_the_running_mean_goes_through_a_checkpoint():
    options = RayOptions(rays=2048, sample_budget=20_000)
    one = RayBudget(options)
    other = RayBudget(options)
    one.observe(64, 1280)
    other.load_state_dict(one.state_dict())
    assert other.rays == one.rays == 1000
    constant = RayBudget(RayOptions(rays=512))
    constant.load_state_dict(constant.state_dict())
    assert constant.rays == 512


@pytest.mark.parametrize("rays", [64, 4096])
def test_a_grid_that_is_full_gives_no_more_samples_than_the_bound(rays):
    budget = RayBudget(RayOptions(rays=rays, sample_budget=1000))
    grid = OccupancyGrid()
    origins = torch.tensor([[3.0, 0.0, 0.0]]).expand(rays, 3)
    found = grid.march(BoundedRays.in_sphere(origins, -origins / 3, 0.999), 0.01, max_samples=budget.max_samples)
    assert bool(grid.occupied.all())
    assert 0 < len(found) <= budget.max_samples
    assert found.n_rays == min(rays, budget.max_samples // 200)


def test_one_ray_always_fits():
    assert RayBudget(RayOptions(sample_budget=1)).max_samples > 2 / 1e-3


def test_parts_share_the_bound_of_a_batch():
    budget = RayBudget(RayOptions(rays=512))
    assert [budget.max_samples_of(parts) for parts in (1, 2, 4, 1024)] == [524_288, 262_144, 131_072, 16_384]
