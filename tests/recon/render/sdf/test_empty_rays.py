"""Empty rays: counted samples for them, their share, and when that means a collapse."""

import pytest
import torch

from fieldwatch.recon.render import (
    BoundedRays,
    Cells,
    CollapseDetector,
    OccupancyConfig,
    OccupancyGrid,
    composite,
    empty_share,
    fill_empty,
    section_alpha,
)


def scene(count=6):
    """Parallel rays through the unit sphere, the last of which misses; and a grid with nothing in it."""
    origins = torch.tensor([0.0, 0.0, -3.0]).repeat(count, 1)
    origins[:, 0] = torch.linspace(-0.5, 0.5, count)
    origins[-1, 0] = 2.0
    grid = OccupancyGrid(OccupancyConfig(cells=Cells(resolution=8)))
    grid.occupied.fill_(False)
    return BoundedRays.in_sphere(origins, torch.tensor([[0.0, 0.0, 1.0]]).expand(count, 3)), grid


def test_empty_rays_get_stratified_samples_in_their_place():
    rays, grid = scene()
    grid.occupied[:4] = True
    samples = grid.march(rays, 0.1)
    had = samples.counts > 0
    assert had.tolist() == [True, True, True, False, False, False]
    filled = fill_empty(samples, rays, 16, noise=torch.rand(6, 17))
    assert (filled.filled, filled.missed) == (2, 1)
    assert torch.equal(filled.samples.counts[had], samples.counts[had])
    assert filled.samples.counts[3:].tolist() == [16, 16, 0]
    assert bool((filled.samples.ray_index[1:] >= filled.samples.ray_index[:-1]).all())
    old = had[filled.samples.ray_index]
    assert torch.equal(filled.samples.t_start[old], samples.t_start)


def test_the_new_sections_follow_on_one_another_within_near_and_far():
    rays, grid = scene()
    filled = fill_empty(grid.march(rays, 0.1), rays, 16, noise=torch.rand(6, 17)).samples
    assert len(filled.sections().distances) == 5 * 17
    assert bool((filled.t_end > filled.t_start).all())
    start = filled.t_start.view(5, 16)
    end = filled.t_end.view(5, 16)
    chord = (rays.far - rays.near)[:5]
    assert bool((start[:, 0] >= rays.near[:5]).all() & (end[:, -1] <= rays.far[:5] + 1e-6).all())
    assert bool((end[:, -1] - start[:, 0] >= chord * 15 / 17 - 1e-5).all())


def test_without_noise_they_are_the_same_every_time():
    rays, grid = scene()
    first, second = (fill_empty(grid.march(rays, 0.1), rays, 4).samples for _ in range(2))
    assert torch.equal(first.t_start, second.t_start)
    assert torch.allclose(first.t_end - first.t_start, ((rays.far - rays.near) / 5)[first.ray_index], atol=1e-6)


def test_a_lost_surface_has_gradients_again():
    rays, grid = scene()
    samples = fill_empty(grid.march(rays, 0.1), rays, 64).samples
    radius = torch.tensor(0.4, requires_grad=True)
    ends = samples.sections()
    depth = rays.origins[ends.ray_index, 2] + ends.distances
    sdf = (depth**2 + rays.origins[ends.ray_index, 0] ** 2).sqrt() - radius
    alpha = section_alpha(sdf[ends.start], sdf[ends.end], 20.0)
    out = composite(alpha, samples.ray_index, 6, samples.midpoints)
    (1 - out.opacity[:5]).mean().backward()
    assert radius.grad.item() < -0.1


def test_rays_without_empty_ones_are_left_alone():
    rays, grid = scene()
    grid.occupied.fill_(True)
    samples = grid.march(rays, 0.1)
    filled = fill_empty(samples, rays)
    assert (filled.filled, filled.missed) == (0, 1)
    assert torch.equal(filled.samples.t_start, samples.t_start)


def test_what_does_not_fit_together_is_refused():
    rays, grid = scene()
    samples = grid.march(rays, 0.1)
    for wrong in ({"count": 0}, {"count": 4, "noise": torch.rand(6, 4)}):
        with pytest.raises(ValueError, match="needs count >= 1"):
            fill_empty(samples, rays, **wrong)
    with pytest.raises(ValueError, match="rays, got 3"):
        empty_share(samples, torch.ones(3, dtype=torch.bool))


def test_the_share_counts_in_mask_rays_only():
    rays, grid = scene()
    grid.occupied[:4] = True
    samples = grid.march(rays, 0.1)
    share = [
        empty_share(samples, torch.tensor(mask)).item()
        for mask in ([True] * 6, [True] * 4 + [False] * 2, [False] * 6, [True] * 3 + [False] * 3)
    ]
    assert share == [0.5, 0.25, 0.0, 0.0]


def test_a_collapse_is_several_bad_steps_in_a_row():
    watch = CollapseDetector(0.5, patience=3)
    shares = [0.9, 0.9, 0.2, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5]
    assert [watch.observe(share) for share in shares] == [False] * 5 + [True, False, False, True, False]
    assert (watch.collapses, watch.bad_steps) == (2, 0)


def test_a_checkpoint_keeps_the_count():
    first = CollapseDetector(patience=2)
    second = CollapseDetector(patience=2)
    first.observe(1.0)
    second.load_state_dict(first.state_dict())
    assert second.observe(1.0)


@pytest.mark.parametrize("wrong", [(1.0, 3), (-0.1, 3), (0.5, 0)])
def test_a_watch_that_cannot_tell_is_refused(wrong):
    with pytest.raises(ValueError, match=r"in \[0, 1\) and patience .*, got"):
        CollapseDetector(*wrong)


def test_a_collapsed_grid_is_rebuilt_from_the_field():
    rays, grid = scene()
    watch = CollapseDetector(patience=5)
    mask = torch.tensor([True] * 5 + [False])

    def field(points):
        return points.norm(dim=-1) - 0.55

    shares = []
    for _ in range(8):
        share = empty_share(grid.march(rays, 0.05), mask).item()
        shares.append(share)
        if watch.observe(share):
            grid.rebuild(field)
    assert shares == [1.0] * 5 + [0.0] * 3
