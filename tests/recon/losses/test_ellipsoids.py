"""Normals, samples, opacity entropy and flatness of Gaussians."""

import math

import pytest
import torch

from fieldwatch.recon.geometry import quaternion_to_matrix
from fieldwatch.recon.losses import Ellipsoids, flatness_error, opacity_entropy, sample_near
from fieldwatch.recon.losses.ellipsoids import smallest_axis_normals


def ellipsoids(count, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return Ellipsoids(
        means=torch.randn(count, 3, generator=generator, dtype=dtype),
        scales=0.1 + torch.rand(count, 3, generator=generator, dtype=dtype),
        quaternions=torch.randn(count, 4, generator=generator, dtype=dtype),
        opacities=torch.rand(count, generator=generator, dtype=dtype),
    )


def test_entropy_is_largest_at_one_half_and_nothing_at_the_ends():
    opacities = torch.linspace(0, 1, 101, dtype=torch.float64)
    each = torch.stack([opacity_entropy(o[None]) for o in opacities])
    assert int(each.argmax()) == 50
    assert each[50].item() == pytest.approx(math.log(2), abs=1e-9)
    assert each[[0, -1]].abs().max().item() < 1e-9
    assert opacity_entropy(opacities).item() == pytest.approx(each.mean().item())


def test_entropy_counts_visible_gaussians_only():
    opacities = torch.tensor([0.5, 0.01, 0.99])
    assert opacity_entropy(opacities, torch.tensor([True, False, False])).item() == pytest.approx(math.log(2), abs=1e-6)
    assert opacity_entropy(opacities, torch.zeros(3, dtype=torch.bool)).item() == 0
    assert opacity_entropy(torch.zeros(0)).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_has_a_bounded_slope_at_the_ends(dtype):
    opacities = torch.tensor([0.0, 1e-30, 1e-8, 1 - 1e-7, 1.0], dtype=dtype, requires_grad=True)
    opacity_entropy(opacities).backward()
    assert opacities.grad.abs().max().item() * len(opacities) < 24.1
    assert bool((opacities.grad[:3] > 0).all() & (opacities.grad[3:] < 0).all())  # the entropy grows away from 0 and 1


def test_gradcheck_of_entropy_and_flatness():
    own = ellipsoids(5)
    visible = torch.tensor([True, True, False, True, False])
    assert torch.autograd.gradcheck(lambda o: opacity_entropy(o, visible), own.opacities.requires_grad_())
    assert torch.autograd.gradcheck(lambda s: flatness_error(s, visible), own.scales.requires_grad_())


def test_flatness_is_the_mean_smallest_scale():
    scales = torch.tensor([[3.0, 0.2, 1.0], [0.0, 1.0, 1.0], [5.0, 5.0, 5.0]])
    assert flatness_error(scales).item() == pytest.approx(5.2 / 3)
    assert flatness_error(scales, torch.tensor([True, True, False])).item() == pytest.approx(0.1)


def test_the_normal_is_the_axis_of_the_smallest_scale():
    turn = torch.tensor([[math.cos(math.pi / 8), 0.0, 0.0, math.sin(math.pi / 8)]])  # 45 degrees about z
    half = math.sqrt(0.5)
    for scales, axis in [
        ((0.1, 1, 2), (half, half, 0)), ((1, 0.1, 2), (-half, half, 0)), ((2, 1, 0.1), (0, 0, 1))
    ]:  # fmt: skip
        normal = smallest_axis_normals(torch.tensor([scales], dtype=torch.float32), turn)
        assert torch.allclose(normal, torch.tensor([axis], dtype=torch.float32), atol=1e-6)


def test_normals_turn_towards_the_camera():
    own = ellipsoids(200)
    towards = torch.tensor([3.0, -1.0, 2.0]) - own.means
    turned = smallest_axis_normals(own.scales, own.quaternions, towards=towards)
    assert bool(((turned * towards).sum(-1) >= 0).all())
    as_is = smallest_axis_normals(own.scales, own.quaternions)
    assert torch.equal(turned.abs(), as_is.abs())
    assert 50 < int((turned != as_is).any(-1).sum()) < 150
    assert torch.allclose(turned.norm(dim=-1), torch.ones(200, dtype=torch.float64))


def test_gradcheck_of_normals():
    own = ellipsoids(4)
    towards = torch.randn(4, 3, dtype=torch.float64)
    own.quaternions.requires_grad_()
    assert torch.autograd.gradcheck(lambda q: smallest_axis_normals(own.scales, q, towards=towards), own.quaternions)


def test_samples_spread_as_their_gaussian_does():
    own = ellipsoids(1)
    samples = sample_near(own, 40_000, generator=torch.Generator().manual_seed(4))
    local = (samples.points - own.means) @ quaternion_to_matrix(own.quaternions)[0] / own.scales
    assert local.mean(0).abs().max().item() < 0.03
    assert torch.allclose(local.T @ local / 40_000, 1.5**2 * torch.eye(3, dtype=torch.float64), atol=0.06)


def test_visible_gaussians_are_drawn_alike_whatever_their_size_and_opacity():
    own = ellipsoids(40)
    visible = torch.arange(40) % 4 == 1
    owners = sample_near(own, 20_000, visible=visible, generator=torch.Generator().manual_seed(4)).owners
    counts = owners.bincount(minlength=40)
    assert counts[~visible].sum() == 0
    assert counts[visible].min() > 1800
    assert counts[visible].max() < 2200
    assert torch.equal(owners, owners.sort().values)


def test_the_same_generator_draws_the_same_samples():
    own = ellipsoids(40)
    a, b, c = (sample_near(own, 50, generator=torch.Generator().manual_seed(seed)) for seed in (4, 4, 5))
    assert torch.equal(a.points, b.points)
    assert torch.equal(a.owners, b.owners)
    assert not torch.equal(a.points, c.points)


@pytest.mark.parametrize("count", [0, 7])
def test_where_nothing_is_visible_there_are_no_samples(count):
    own = ellipsoids(count)
    samples = sample_near(own, 30, visible=torch.zeros(count, dtype=torch.bool))
    assert tuple(samples.points.shape) == (0, 3)
    assert samples.owners.dtype == torch.int64


def test_samples_move_with_their_gaussian():
    own = ellipsoids(3)
    leaves = [t.requires_grad_() for t in (own.means, own.scales, own.quaternions)]

    def points(means, scales, quaternions):
        made = Ellipsoids(means=means, scales=scales, quaternions=quaternions, opacities=own.opacities)
        return sample_near(made, 6, generator=torch.Generator().manual_seed(4)).points

    assert torch.autograd.gradcheck(points, leaves)
