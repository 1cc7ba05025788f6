"""Density of neighbors and the distance it implies, against known values."""

import math

import pytest
import torch

from fieldwatch.recon.losses import (
    Ellipsoids,
    beta,
    contributions,
    density,
    density_error,
    ideal_density,
    sdf_from_density,
)


def one(opacity=0.7, dtype=torch.float64):
    return Ellipsoids(
        means=torch.tensor([[1.0, -2.0, 0.5]], dtype=dtype),
        scales=torch.tensor([[0.5, 0.02, 2.0]], dtype=dtype),
        quaternions=torch.tensor([[0.3, -0.5, 0.2, 0.9]], dtype=dtype),
        opacities=torch.tensor([opacity], dtype=dtype),
    )


def many(count=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return Ellipsoids(means=draw(count, 3), scales=0.2 + draw(count, 3), quaternions=draw(count, 4) - 0.5,
                      opacities=draw(count))  # fmt: skip


def table(samples, count, k, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(count, generator=generator)[:k] for _ in range(samples)]).int()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("deviations", [0.0, 1.0, -2.0])
def test_one_gaussian_is_its_opacity_at_its_center_and_falls_by_standard_deviations(axis, deviations):
    own = one()
    point = own.means + deviations * own.scales[0, axis] * own.rotations[0, :, axis]
    added = contributions(point, torch.zeros(1, 1, dtype=torch.int32), own)
    assert density(added).item() == pytest.approx(0.7 * math.exp(-0.5 * deviations**2), rel=1e-12)


def test_densities_are_those_of_the_covariances():
    own = many()
    points = torch.rand(30, 3, dtype=torch.float64)
    rows = table(30, 12, 5)
    covariances = own.rotations @ torch.diag_embed(own.scales.square()) @ own.rotations.transpose(1, 2)
    inverse = torch.linalg.inv(covariances)
    for point, row, got in zip(points, rows.long(), density(contributions(points, rows, own)), strict=True):
        offsets = point - own.means[row]
        expected = sum(
            o * torch.exp(-0.5 * d @ m @ d) for o, d, m in zip(own.opacities[row], offsets, inverse[row], strict=True)
        )
        assert got.item() == pytest.approx(expected.item(), rel=1e-9)


def test_far_points_and_flat_gaussians_have_no_density_and_finite_slopes():
    leaves = [t.float().requires_grad_() for t in (one().means, torch.zeros(1, 3), one().quaternions, one().opacities)]
    own = Ellipsoids(**dict(zip(("means", "scales", "quaternions", "opacities"), leaves, strict=True)))
    points = torch.tensor([[1e6, 1e6, -1e6], [1.0, -2.0, 0.5]], requires_grad=True)
    total = density(contributions(points, torch.zeros(2, 1, dtype=torch.int32), own))
    assert total.tolist() == pytest.approx([0.0, 0.7])
    total.sum().backward()
    assert all(bool(torch.isfinite(leaf.grad).all()) for leaf in [*leaves, points])


def test_gradcheck_of_the_density():
    own = many(6)
    rows = table(4, 6, 3)
    points = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    leaves = [t.requires_grad_() for t in (own.means, own.scales, own.quaternions, own.opacities)]

    def value(points, means, scales, quaternions, opacities):
        made = Ellipsoids(means=means, scales=scales, quaternions=quaternions, opacities=opacities)
        return density(contributions(points, rows, made))

    assert torch.autograd.gradcheck(value, (points, *leaves))


def test_beta_in_its_three_modes():
    thickness = torch.tensor([[0.1, 0.3], [0.2, 0.6]], dtype=torch.float64)
    weights = torch.tensor([[0.75, 0.25], [0.0, 0.0]], dtype=torch.float64)
    log_beta = torch.tensor(math.log(0.05), dtype=torch.float64)
    assert beta(thickness).tolist() == pytest.approx([0.2, 0.4])
    assert beta(thickness, "weighted_average", contributed=weights).tolist() == pytest.approx([0.15, 0.6])
    assert beta(thickness, "learnable", log_beta=log_beta).tolist() == pytest.approx([0.05, 0.05])


def test_beta_says_what_it_needs():
    with pytest.raises(ValueError, match=r"'learnable' .*scalar parameter log_beta"):
        beta(torch.rand(2, 3), "learnable")
    with pytest.raises(ValueError, match="'weighted_average'"):
        beta(torch.rand(2, 3), "weighted_average")


def test_gradcheck_of_beta():
    thickness, weights = (torch.rand(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    log_beta = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(beta, thickness)
    assert torch.autograd.gradcheck(lambda t, w: beta(t, "weighted_average", contributed=w), (thickness, weights))
    assert torch.autograd.gradcheck(lambda b: beta(thickness, "learnable", log_beta=b), log_beta)


def test_weighted_beta_without_any_weight_has_finite_slopes():
    thickness = torch.rand(2, 3, requires_grad=True)
    weights = torch.zeros(2, 3, requires_grad=True)
    beta(thickness, "weighted_average", contributed=weights).sum().backward()
    assert thickness.grad.sum().item() == pytest.approx(2.0)
    assert bool((weights.grad == 0).all())


def test_distance_and_ideal_density_undo_each_other():
    distance = torch.tensor([0.02, 0.1, 0.3, 1.0], dtype=torch.float64)
    thickness = torch.tensor([0.5, 0.1, 0.2, 0.4], dtype=torch.float64)
    assert torch.allclose(sdf_from_density(ideal_density(distance, thickness), thickness), distance)
    assert torch.equal(ideal_density(-distance, thickness), ideal_density(distance, thickness))


def test_a_density_of_one_or_more_is_on_the_surface_and_can_still_be_lowered():
    values = torch.tensor([1.0, 1.7, 40.0], dtype=torch.float64, requires_grad=True)
    distance = sdf_from_density(values, torch.full((3,), 0.1, dtype=torch.float64))
    assert distance.tolist() == [0.0, 0.0, 0.0]
    distance.sum().backward()
    assert bool((values.grad < 0).all())
    assert values.grad.tolist() == pytest.approx([-0.1 * 2 * 100 / d for d in (1.0, 1.7, 40.0)])


def test_the_straight_piece_meets_the_square_root():
    edge = math.exp(-0.5e-4)
    below, above = (
        sdf_from_density(torch.tensor([edge * (1 + e)], dtype=torch.float64), torch.ones(1, dtype=torch.float64))
        for e in (-1e-9, 1e-9)
    )
    assert below.item() == pytest.approx(0.01, rel=1e-4)
    assert above.item() == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_are_finite_at_hostile_densities(dtype):
    values = torch.tensor([0.0, 1e-38, 1e-17, 1e-10, 0.5, 1 - 1e-7, 1.0, 16.0, 1e30], dtype=dtype, requires_grad=True)
    thickness = torch.full((9,), 1e-3, dtype=dtype, requires_grad=True)
    distance = sdf_from_density(values, thickness)
    assert bool(torch.isfinite(distance).all() & (distance >= 0).all())
    distance.sum().backward()
    assert bool(torch.isfinite(values.grad).all() & torch.isfinite(thickness.grad).all())


def test_ideal_density_at_no_thickness_has_finite_slopes():
    distance = torch.tensor([0.0, 1e-9, 1.0, 1e5], requires_grad=True)
    thickness = torch.zeros(4, requires_grad=True)
    ideal = ideal_density(distance, thickness)
    assert ideal[[0, 2, 3]].tolist() == [1.0, 0.0, 0.0]
    ideal.sum().backward()
    assert bool(torch.isfinite(distance.grad).all() & torch.isfinite(thickness.grad).all())


def test_gradcheck_of_distances_and_errors():
    values = torch.tensor([0.01, 0.4, 0.9], dtype=torch.float64, requires_grad=True)
    thickness = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64, requires_grad=True)
    distance = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sdf_from_density, (values, thickness))
    assert torch.autograd.gradcheck(
        lambda v, t, d: density_error(v, ideal_density(d, t)), (values, thickness, distance)
    )


def test_density_error_is_the_mean_difference_and_nothing_without_samples():
    a = torch.tensor([0.2, 1.4, 0.0])
    b = torch.tensor([0.5, 1.0, 0.0])
    assert density_error(a, b).item() == pytest.approx(0.7 / 3)
    assert density_error(a[:0], b[:0]).item() == 0
