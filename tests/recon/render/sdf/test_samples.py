"""Rays bounded by a sphere or a box, and packed samples."""

import pytest
import torch

from fieldwatch.recon.render import BoundedRays, PackedSamples, points_along


def unit(vectors):
    return vectors / vectors.norm(dim=-1, keepdim=True)


def test_the_chord_of_the_unit_sphere():
    origins = torch.tensor([[0.0, 0.0, -3.0], [0.0, 0.6, -3.0], [0.0, 2.0, -3.0], [0.0, 0.0, 0.5], [0.0, 0.0, 3.0]])
    rays = BoundedRays.in_sphere(origins, torch.tensor([[0.0, 0.0, 1.0]]).expand(5, 3))
    assert rays.near.tolist() == pytest.approx([2.0, 2.2, 3.0, 0.0, 0.0], abs=1e-6)
    assert rays.far.tolist() == pytest.approx([4.0, 3.8, 3.0, 0.5, 0.0], abs=1e-6)


def test_poses_may_move_while_rays_miss():
    origins = torch.tensor([[0.0, 2.0, -3.0]], requires_grad=True)
    rays = BoundedRays.in_sphere(origins, torch.tensor([[0.0, 0.0, 1.0]]))
    points = points_along(rays, torch.tensor([1.0]), torch.tensor([0]))
    points.sum().backward()
    assert origins.grad.tolist() == [[1.0, 1.0, 1.0]]
    assert not rays.near.requires_grad


def test_the_ends_in_a_box_are_where_points_leave_it():
    origins = 1.5 * torch.randn(400, 3).double()
    directions = unit(torch.randn(400, 3).double())
    directions[:100, 1] = 0
    directions = unit(directions)
    low = (-1.0, -0.5, -2.0)
    high = (0.5, 1.0, 2.0)
    rays = BoundedRays.in_box(origins, directions, low, high)
    t = torch.linspace(0, 12, 3001).double()
    places = origins[:, None] + t[:, None] * directions[:, None]
    inside = ((places > torch.tensor(low)) & (places < torch.tensor(high))).all(-1)
    between = (t > rays.near[:, None]) & (t < rays.far[:, None])
    clear_of_ends = ((t - rays.near[:, None]).abs() > 1e-6) & ((t - rays.far[:, None]).abs() > 1e-6)
    assert bool((inside == between)[clear_of_ends].all())
    assert 50 < int((rays.far > rays.near).sum()) < 350


def test_bounds_that_hold_nothing_are_refused():
    with pytest.raises(ValueError, match=r"sphere .*greater than 0"):
        BoundedRays.in_sphere(torch.zeros(1, 3), torch.ones(1, 3), 0.0)
    with pytest.raises(ValueError, match=r"bounding box .*, got \("):
        BoundedRays.in_box(torch.zeros(1, 3), torch.ones(1, 3), (0.0, 0.0, 0.0), (1.0, 0.0, 1.0))


def packed(*rows, n_rays=4):
    start, end, ray = zip(*rows, strict=True) if rows else ((), (), ())
    return PackedSamples(
        t_start=torch.tensor(start), t_end=torch.tensor(end), ray_index=torch.tensor(ray).long(), n_rays=n_rays
    )


def test_ends_are_shared_between_samples_that_follow():
    samples = packed((0.0, 1.0, 0), (1.0, 2.0, 0), (3.0, 4.0, 0), (4.0, 5.0, 2), (5.0, 6.0, 2))
    ends = samples.sections()
    assert ends.distances.tolist() == [0, 1, 2, 3, 4, 4, 5, 6]
    assert ends.ray_index.tolist() == [0, 0, 0, 0, 0, 2, 2, 2]
    assert torch.equal(ends.distances[ends.start], samples.t_start)
    assert torch.equal(ends.distances[ends.end], samples.t_end)
    assert torch.equal(ends.ray_index[ends.start], samples.ray_index)


def test_no_samples_have_no_ends():
    empty = packed()
    assert [len(part) for part in empty.sections()] == [0, 0, 0, 0]
    assert (empty.counts.tolist(), empty.per_ray) == ([0, 0, 0, 0], 0.0)


def test_counts_midpoints_and_choice():
    samples = packed((0.0, 1.0, 0), (1.0, 2.0, 0), (4.0, 5.0, 2))
    assert samples.counts.tolist() == [2, 0, 1, 0]
    assert samples.midpoints.tolist() == [0.5, 1.5, 4.5]
    assert samples.per_ray == 0.75
    chosen = samples.selected(torch.tensor([False, True, True]))
    assert (chosen.t_start.tolist(), chosen.ray_index.tolist(), chosen.n_rays) == ([1.0, 4.0], [0, 2], 4)


@pytest.mark.parametrize(("most", "rays", "left"), [(0, 0, 0), (1, 0, 0), (2, 2, 2), (3, 4, 3), (9, 4, 3)])
def test_the_first_rays_that_fit(most, rays, left):
    samples = packed((0.0, 1.0, 0), (1.0, 2.0, 0), (4.0, 5.0, 2)).first_rays(most)
    assert (samples.n_rays, len(samples)) == (rays, left)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_parts_are_of_one_length_and_follow_on_one_another(parts):
    whole = packed((0.1, 1.0, 0), (1.0, 2.3, 0), (4.0, 5.0, 2))
    cut = whole.subdivided(parts)
    assert cut.counts.tolist() == [2 * parts, 0, parts, 0]
    assert cut.n_rays == 4
    lengths = (cut.t_end - cut.t_start).view(3, parts)
    assert torch.allclose(lengths, ((whole.t_end - whole.t_start) / parts)[:, None].expand(3, parts), atol=1e-6)
    assert torch.equal(cut.t_start[::parts], whole.t_start)
    assert torch.equal(cut.t_end[parts - 1 :: parts], whole.t_end)
    assert len(cut.sections().distances) == 2 * parts + 1 + parts + 1


def test_samples_are_cut_into_one_part_or_more():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        packed((0.0, 1.0, 0)).subdivided(0)
    assert len(packed().subdivided(3)) == 0


def test_what_lies_before_a_distance_of_each_ray():
    samples = packed((0.0, 1.0, 0), (1.0, 2.0, 0), (2.0, 3.0, 0), (4.0, 5.0, 2), (0.5, 1.5, 3))
    cut = samples.clipped(torch.tensor([1.75, 9.0, 5.0, 0.5]))
    assert (cut.t_start.tolist(), cut.t_end.tolist()) == ([0.0, 1.0, 4.0], [1.0, 1.75, 5.0])
    assert (cut.ray_index.tolist(), cut.n_rays) == ([0, 0, 2], 4)
