"""Marching: exactly the sections whose middle is occupied, however they are found."""

import pytest
import torch

from fieldwatch.recon.render import BoundedRays, Cells, OccupancyConfig, OccupancyGrid, geometric_step

BOX = Cells(resolution=16, low=(-1.0, -1.2, -0.8), high=(1.0, 1.0, 1.0))


def scattered(share, cells=BOX):
    grid = OccupancyGrid(OccupancyConfig(cells=cells))
    grid.occupied.copy_(torch.rand(grid.occupied.shape) < share)
    return grid


def random_rays(count=60, distance=3.0):
    origins = torch.randn(count, 3)
    origins = distance * origins / origins.norm(dim=-1, keepdim=True)
    directions = 0.6 * torch.randn(count, 3) - origins
    return BoundedRays.in_sphere(origins, directions / directions.norm(dim=-1, keepdim=True), 1.4)


def by_hand(grid, rays, step, jitter):
    """Every section of every ray, one after the other, its middle looked up in the grid."""
    cells = grid.config.cells
    found = []
    for ray in range(len(rays)):
        number = torch.arange(5000)
        first = rays.near[ray] + step * jitter[ray]
        middle = first + (number + 0.5) * step
        places = rays.origins[ray] + middle[:, None] * rays.directions[ray]
        cell = ((places - torch.tensor(cells.low)) * (1 / torch.tensor(cells.edges))).floor()
        inside = ((cell >= 0) & (cell < cells.resolution)).all(-1) & (middle < rays.far[ray])
        x, y, z = cell.long().clamp(0, cells.resolution - 1).unbind(-1)
        kept = number[inside & grid.occupied[x, y, z]]
        found.append(torch.stack([torch.full_like(kept, ray), kept], -1))
    return torch.cat(found)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("step", [0.003, 0.02, 0.3])
def test_marching_keeps_the_sections_whose_middle_is_occupied(share, step):
    grid = scattered(share)
    rays = random_rays()
    jitter = torch.rand(len(rays))
    samples = grid.march(rays, step, jitter=jitter)
    expected = by_hand(grid, rays, step, jitter)
    number = ((samples.t_start - (rays.near + step * jitter)[samples.ray_index]) / step).round().long()
    made = torch.stack([samples.ray_index, number], -1)
    differing = set(map(tuple, made.tolist())) ^ set(map(tuple, expected.tolist()))
    assert len(differing) <= 1e-4 * len(expected)  # a middle on the face between two cells, by rounding
    assert samples.n_rays == len(rays)
    assert torch.allclose(samples.t_end - samples.t_start, torch.tensor(step), atol=2e-6)
    assert bool((samples.ray_index[1:] >= samples.ray_index[:-1]).all())


def test_chunks_change_nothing():
    grid = scattered(0.3)
    rays = random_rays()
    whole, parts = (grid.march(rays, 0.01, chunk=chunk) for chunk in (1 << 20, 500))
    assert torch.equal(whole.t_start, parts.t_start)
    assert torch.equal(whole.ray_index, parts.ray_index)


def test_sections_that_follow_share_their_ends():
    samples = scattered(1.0).march(random_rays(), 0.01, jitter=torch.rand(60))
    runs = len(samples.sections().distances) - len(samples)
    assert runs == int((samples.counts > 0).sum())


def test_a_limit_leaves_out_whole_rays_at_the_end():
    grid = scattered(1.0)
    rays = random_rays()
    whole = grid.march(rays, 0.01)
    for chunk in (1 << 20, 500):
        part = grid.march(rays, 0.01, max_samples=2000, chunk=chunk)
        assert 0 < len(part) <= 2000
        assert torch.equal(part.t_start, whole.t_start[: len(part)])
        assert torch.equal(part.counts, whole.counts[: part.n_rays])
        assert len(part) + int(whole.counts[part.n_rays]) > 2000


def test_a_limit_that_is_not_reached_leaves_all():
    grid = scattered(0.1)
    rays = random_rays()
    assert grid.march(rays, 0.01, max_samples=10**6).n_rays == len(rays)


def test_rays_that_miss_or_look_away_have_no_samples():
    rays = BoundedRays.in_sphere(torch.tensor([[0.0, 2.0, -3.0], [0.0, 0.0, 3.0]]), torch.tensor([[0.0, 0.0, 1.0]] * 2))
    samples = scattered(1.0).march(rays, 0.01)
    assert (len(samples), samples.n_rays) == (0, 2)


def test_no_rays_have_no_samples():
    nothing = torch.zeros(0, 3)
    samples = scattered(1.0).march(BoundedRays.in_sphere(nothing, nothing), 0.01)
    assert (len(samples), samples.n_rays) == (0, 0)


def test_an_update_shows_in_the_next_march():
    grid = OccupancyGrid(OccupancyConfig(cells=BOX))
    rays = random_rays()
    before = len(grid.march(rays, 0.01))
    grid.update(0, lambda points: points.norm(dim=-1) - 0.2)
    assert 0 < len(grid.march(rays, 0.01)) < before / 3


def test_wrong_steps_and_rays_are_refused():
    grid = scattered(1.0)
    rays = random_rays()
    for step in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="greater than 0, got"):
            grid.march(rays, step)
    rays.origins[3, 1] = torch.nan
    with pytest.raises(ValueError, match="ray is not finite"):
        grid.march(rays, 0.01)


def test_the_step_shrinks_by_the_same_factor_at_every_step():
    assert geometric_step(0, 30_000) == 1e-2
    assert geometric_step(15_000, 30_000) == pytest.approx(3.1623e-3, rel=1e-4)
    assert geometric_step(30_000, 30_000) == geometric_step(40_000, 30_000) == pytest.approx(1e-3)
    with pytest.raises(ValueError, match="greater than 0 and index"):
        geometric_step(0, 100, last=0.0)
