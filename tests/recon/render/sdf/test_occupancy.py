"""The occupancy grid: it never loses the surface, follows its settings, and comes back from a checkpoint."""

import pytest
import torch

from fieldwatch.recon.render import BoundedRays, Cells, OccupancyConfig, OccupancyGrid

BOX = Cells(resolution=24, low=(-1.0, -1.2, -0.8), high=(1.0, 1.0, 1.0))


def sphere(radius, center=(0.0, 0.0, 0.0)):
    return lambda points: (points - torch.tensor(center)).norm(dim=-1) - radius


def grid_of(field=None, step=0, **settings):
    grid = OccupancyGrid(OccupancyConfig(**{"cells": BOX, **settings}))
    if field is not None:
        grid.update(step, field)
    return grid


def cells_of(points, cells=BOX):
    """Numbers of the cells along x, y and z that hold these points of the box."""
    low = torch.tensor(cells.low)
    edges = torch.tensor(cells.edges)
    return ((points - low) / edges).floor().long().clamp(0, cells.resolution - 1).unbind(-1)


def surface(radius, center, count=20_000):
    directions = torch.randn(count, 3)
    points = torch.tensor(center) + radius * directions / directions.norm(dim=-1, keepdim=True)
    inside = (points > torch.tensor(BOX.low)) & (points < torch.tensor(BOX.high))
    return points[inside.all(-1)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("resolution", [5, 24])
def test_no_cell_with_surface_is_ever_dropped(seed, resolution):
    """Steep or thin, in a coarse grid, after many partial updates: the bound is over the cell, not at its center."""
    draw = torch.Generator().manual_seed(seed)
    center = tuple((torch.rand(3, generator=draw) - 0.5).tolist())
    radius = 0.02 + 0.7 * float(torch.rand((), generator=draw))
    cells = Cells(resolution=resolution, low=BOX.low, high=BOX.high)
    grid = OccupancyGrid(OccupancyConfig(cells=cells, sharpness=1000.0, warmup=1, every=1, decay=0.0))
    x, y, z = cells_of(surface(radius, center), cells)
    for step in range(9):
        assert grid.update(step, sphere(radius, center))
        assert bool(grid.occupied[x, y, z].all())
        assert bool((grid.values[x, y, z] >= 0.5).all())
    assert float(grid.occupied_fraction) < (0.7 if resolution == 5 else 0.4)


def test_a_surface_that_moves_is_found_again_within_one_round():
    grid = grid_of(sphere(0.2), every=1, warmup=1, period=4)
    for step in range(1, 5):
        grid.update(step, sphere(0.6))
    assert bool(grid.occupied[cells_of(surface(0.6, (0.0, 0.0, 0.0)))].all())


def test_the_initial_sphere_of_radius_0_6_occupies_the_known_share():
    cells = Cells(resolution=64)
    grid = OccupancyGrid(OccupancyConfig(cells=cells))
    grid.rebuild(sphere(0.6))
    wide = 0.6 + torch.log(torch.tensor(9.0)) / 80 + cells.reach
    assert float(grid.occupied_fraction) == pytest.approx(float(4 / 3 * torch.pi * wide**3 / 8), rel=0.01)
    assert float(grid.occupied_fraction) == pytest.approx(0.129, abs=0.02)


def test_the_inside_is_occupied_and_the_far_outside_is_not():
    grid = grid_of(sphere(0.5))
    assert bool(grid.occupied[cells_of(torch.tensor([[0.0, 0.0, 0.0], [0.2, 0.1, 0.0]]))].all())
    assert not bool(grid.occupied[cells_of(torch.tensor([[0.9, 0.9, 0.9], [-0.9, -1.1, 0.0]]))].any())


def test_a_grid_is_full_until_its_first_update():
    grid = grid_of()
    assert (float(grid.occupied_fraction), int(grid.updates)) == (1.0, 0)


def test_updates_come_every_so_many_steps():
    grid = grid_of(every=8)
    assert [step for step in range(20) if grid.update(step, sphere(0.4))] == [0, 8, 16]
    assert int(grid.updates) == 3


def counting(seen):
    def field(points):
        seen.append(len(points))
        return points.norm(dim=-1) - 0.3

    return field


def test_all_cells_in_the_warm_up_then_the_occupied_and_each_other_in_its_turn():
    seen = []
    grid = grid_of(every=1, warmup=2, period=4)
    for step in range(2):
        grid.update(step, counting(seen))
    assert seen == [24**3, 24**3]
    occupied = int(grid.occupied.sum())
    grid.update(2, counting(seen))
    assert 24**3 / 4 < seen[-1] <= 24**3 / 4 + occupied


def test_a_full_grid_is_not_looked_at_as_a_whole_after_the_warm_up():
    seen = []
    grid = grid_of(sphere(3.0), warmup=0, every=1, period=4)
    assert float(grid.occupied_fraction) == 1
    grid.update(1, counting(seen))
    assert seen[0] == pytest.approx(24**3 / 2, rel=0.01)


def test_the_field_is_evaluated_in_chunks():
    seen = []
    grid_of(counting(seen), chunk=1000)
    assert seen == [1000] * 13 + [824]


def test_old_occupancy_decays_and_the_larger_one_stays():
    grid = grid_of(sphere(0.5), decay=0.5, every=1)
    before = grid.values.clone()
    grid.update(1, lambda points: torch.full((len(points),), 5.0))
    assert torch.allclose(grid.values, torch.maximum(before * 0.5, torch.zeros(1)), atol=1e-6)
    grid.update(2, sphere(0.5))
    assert torch.allclose(grid.values, before)


def test_the_first_update_forgets_that_the_grid_was_full():
    grid = grid_of(warmup=0)
    assert grid.update(0, sphere(0.5))
    assert torch.equal(grid.values, grid_of(sphere(0.5), warmup=256).values)
    assert float(grid.values.min()) < 1e-6


@pytest.mark.parametrize(("threshold", "share"), [(0.1, "threshold"), (0.4, "mean")])
def test_the_threshold_is_the_mean_where_that_is_lower(threshold, share):
    grid = grid_of(sphere(0.6), threshold=threshold)
    mean = float(grid.values.mean())
    assert 0.1 < mean < 0.4
    assert torch.equal(grid.occupied, grid.values > (threshold if share == "threshold" else mean))


def test_lipschitz_bound_and_sharpness_set_how_far_in_front_cells_are_occupied():
    shares = {
        name: float(grid_of(sphere(0.4), **settings).occupied_fraction)
        for name, settings in {"plain": {}, "steep": {"lipschitz": 2.0}, "soft": {"sharpness": 20.0}}.items()
    }
    assert shares["steep"] > shares["plain"]
    assert shares["soft"] > shares["plain"]


def test_a_blurred_surface_needs_a_wider_band():
    blurred = grid_of()
    sharp = grid_of()
    plain = grid_of(sphere(0.4), sharpness=80.0)
    blurred.update(0, sphere(0.4), inverse_deviation=20.0)
    sharp.update(0, sphere(0.4), inverse_deviation=500.0)
    assert torch.equal(blurred.values, grid_of(sphere(0.4), sharpness=20.0).values)
    assert torch.equal(sharp.values, plain.values)


@pytest.mark.parametrize("forced", [0.0, 1.0])
def test_a_rebuild_forgets_a_forced_grid(forced):
    grid = grid_of()
    grid.values.fill_(forced)
    grid.occupied.fill_(bool(forced))
    grid.rebuild(sphere(0.5))
    assert torch.equal(grid.values, grid_of(sphere(0.5), decay=0.0).values)
    assert 0.05 < float(grid.occupied_fraction) < 0.3


def test_a_checkpoint_brings_it_back_with_its_marching():
    first = grid_of(sphere(0.5, (0.2, 0.0, 0.0)))
    second = grid_of(sphere(0.1))
    directions = torch.randn(50, 3)
    rays = BoundedRays.in_sphere(-3 * directions / directions.norm(dim=-1, keepdim=True), directions / 3)
    rays = BoundedRays.in_sphere(rays.origins, -rays.origins / 3)
    before = second.march(rays, 0.02)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.march(rays, 0.02).t_start, first.march(rays, 0.02).t_start)
    assert len(before) != len(first.march(rays, 0.02))
    assert int(second.updates) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": 0.5},
        {"threshold": 0.0},
        {"decay": 1.0},
        {"sharpness": 0.0},
        {"lipschitz": -1.0},
        {"every": 0},
        {"period": 0},
        {"chunk": 0},
        {"warmup": -1},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=r"occupancy grid.*got OccupancyConfig\("):
        OccupancyConfig(**settings)


@pytest.mark.parametrize("wrong", [{"resolution": 0}, {"low": (1.0, -1.0, -1.0)}])
def test_a_box_without_cells_is_refused(wrong):
    with pytest.raises(ValueError, match=r"at least 1 cell|below its high"):
        Cells(**wrong)


def test_a_broken_field_leaves_the_grid_as_it_was():
    grid = grid_of(sphere(0.5))
    values = grid.values.clone()
    for broken, message in ((torch.nan, "not finite"), (torch.inf, "not finite")):
        with pytest.raises(ValueError, match=message):
            grid.rebuild(lambda points, value=broken: torch.full((len(points),), value))
    with pytest.raises(ValueError, match="squeeze"):
        grid.rebuild(lambda points: points[:, :1])
    assert torch.equal(grid.values, values)
