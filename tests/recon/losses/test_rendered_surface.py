"""Losses of rendered surfaces: values computed by hand, invariances, and empty input."""

import math

import pytest
import torch

from fieldwatch.recon.losses import depth_scale, depth_scale_error, eikonal_error, mask_error, normal_error

NONE = torch.zeros(4, dtype=torch.bool)
SOME = torch.tensor([True, True, False, True])


def test_eikonal_is_the_squared_distance_of_lengths_from_one():
    gradients = torch.tensor([[0.0, 1.0, 0.0], [3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    assert eikonal_error(gradients).item() == pytest.approx((0 + 16 + 1) / 3)
    assert eikonal_error(gradients, torch.tensor([True, False, True])).item() == pytest.approx(0.5)


def test_eikonal_is_quiet_at_no_length_and_without_samples():
    gradients = torch.zeros(2, 3, requires_grad=True)
    eikonal_error(gradients).backward()
    assert gradients.grad.tolist() == [[0.0] * 3] * 2
    assert eikonal_error(torch.zeros(0, 3)).item() == 0
    assert eikonal_error(gradients, torch.zeros(2, dtype=torch.bool)).item() == 0


def test_eikonal_gradcheck():
    assert torch.autograd.gradcheck(eikonal_error, torch.randn(5, 3, dtype=torch.float64, requires_grad=True))


def test_normals_count_inside_the_mask():
    rendered = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [9.0, 9.0, 9.0], [0.0, 1.0, 0.0]])
    normals = torch.tensor([[0.0, 0.0, 1.0]] * 4)
    assert normal_error(rendered, normals, SOME).item() == pytest.approx((0 + 1 + 2) / 3)
    assert normal_error(rendered, normals, SOME, norm="l1").item() == pytest.approx((0 + 1 + 2) / 3)
    assert normal_error(0.5 * rendered, normals, SOME).item() == pytest.approx((0.25 + 1 + 1.25) / 3)
    assert normal_error(rendered, normals, NONE).item() == 0


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_normal_outside_the_mask_has_no_gradient(norm):
    rendered = torch.randn(4, 3, requires_grad=True)
    normal_error(rendered, torch.zeros(4, 3), SOME, norm=norm).backward()
    assert (rendered.grad.abs().sum(-1) > 0).tolist() == SOME.tolist()


def test_mask_is_the_cross_entropy():
    opacity = torch.rand(50, dtype=torch.float64) * 0.98 + 0.01
    mask = torch.rand(50) > 0.5
    expected = -torch.where(mask, opacity, 1 - opacity).log().mean()
    assert mask_error(opacity, mask).item() == pytest.approx(expected.item(), rel=1e-3)
    assert mask_error(opacity, mask.double(), floor=1e-12).item() == pytest.approx(expected.item(), rel=1e-9)


def test_weights_say_how_much_each_ray_of_the_mask_counts():
    opacity = torch.tensor([0.9, 0.2, 0.4, 0.7])
    mask = torch.tensor([True, False, True, False])
    each = -torch.where(mask, opacity, 1 - opacity).log()
    weights = torch.tensor([2.0, 0.0, 0.5, 1.0])
    found = mask_error(opacity, mask, weights).item()
    assert found == pytest.approx(float((weights * each).sum() / 3.5), rel=1e-3)
    assert mask_error(opacity, mask, 10 * weights).item() == pytest.approx(found, rel=1e-6)
    assert mask_error(opacity, mask, torch.ones(4)).item() == pytest.approx(mask_error(opacity, mask).item(), rel=1e-6)
    assert mask_error(opacity, mask, torch.zeros(4)).item() == 0


def test_weights_of_the_mask_undo_drawing_one_side_more_often():
    """The offset with the smallest error of a sigmoid edge, with one side sampled three times as often."""
    often = 3.0
    x = torch.linspace(-9, 9, 1801, dtype=torch.float64)
    drawn = torch.where(x > 0, often, 1.0).double()

    def slope(offset, weights):
        moved = torch.tensor(offset, dtype=torch.float64, requires_grad=True)
        mask_error(torch.sigmoid(x + moved), x > 0, weights).backward()
        return moved.grad.item()

    assert slope(-0.02, torch.ones_like(x)) < 0 < slope(0.02, torch.ones_like(x))
    displaced = 0.7645  # solution of often * log(1 + exp(-o)) = log(1 + exp(o))
    assert often * math.log1p(math.exp(-displaced)) == pytest.approx(math.log1p(math.exp(displaced)), rel=2e-3)
    assert slope(displaced - 0.02, drawn) < 0 < slope(displaced + 0.02, drawn)


@pytest.mark.parametrize(("opacity", "mask"), [(0.0, 1.0), (1.0, 0.0)])
def test_an_opacity_that_is_all_wrong_has_a_bounded_cost_and_a_slope(opacity, mask):
    value = torch.tensor([opacity], requires_grad=True)
    error = mask_error(value, torch.tensor([mask]))
    error.backward()
    assert error.item() == pytest.approx(-math.log(1e-5), rel=1e-2)
    assert abs(value.grad.item()) == pytest.approx(1e5, rel=2e-2)
    assert (value.grad.item() < 0) == (mask == 1)


def test_an_opacity_that_is_right_costs_next_to_nothing():
    value = torch.tensor([0.0, 1.0], requires_grad=True)
    error = mask_error(value, torch.tensor([0.0, 1.0]))
    error.backward()
    assert error.item() == pytest.approx(1e-5, rel=1e-3)
    assert float(value.grad.abs().max()) < 1.1


def test_no_rays_have_no_mask_error():
    assert mask_error(torch.zeros(0), torch.zeros(0)).item() == 0


@pytest.mark.parametrize("floor", [0.0, 0.5, -1.0])
def test_a_floor_that_keeps_nothing_is_refused(floor):
    with pytest.raises(ValueError, match=f"floor .*greater than 0 .*got {floor}"):
        mask_error(torch.zeros(1), torch.zeros(1), floor=floor)


def test_mask_gradcheck():
    opacity = (0.1 + 0.8 * torch.rand(6, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda o: mask_error(o, torch.rand(6, generator=torch.Generator())), opacity)


def depths():
    return 14 + torch.rand(4, dtype=torch.float64), 14 + torch.rand(4, dtype=torch.float64)


def test_the_scale_is_that_of_least_squares():
    integrated, rendered = depths()
    a = depth_scale(integrated, rendered, SOME).item()
    assert a == pytest.approx(torch.linalg.lstsq(integrated[SOME, None], rendered[SOME, None]).solution.item())
    expected = (a * integrated - rendered).abs()[SOME].mean().item()
    assert depth_scale_error(integrated, rendered, SOME).item() == pytest.approx(expected)


@pytest.mark.parametrize("factor", [1e-2, 0.5, 1e3])
def test_the_error_does_not_know_the_scale(factor):
    integrated, rendered = depths()
    plain = depth_scale_error(integrated, rendered, SOME).item()
    assert depth_scale_error(factor * integrated, rendered, SOME).item() == pytest.approx(plain, rel=1e-9)
    assert depth_scale_error(integrated, factor * integrated, SOME).item() == pytest.approx(0, abs=1e-9 * factor)


def test_depths_without_scale_or_mask_have_no_error():
    integrated, rendered = depths()
    rendered.requires_grad_()
    for z, mask in ((integrated, NONE), (torch.zeros(4).double(), SOME), (1e-7 * integrated, SOME)):
        error = depth_scale_error(z, rendered, mask)
        error.backward()
        assert error.item() == depth_scale(z, rendered, mask).item() == 0
        assert rendered.grad.tolist() == [0.0] * 4
        rendered.grad = None


def test_background_of_integrated_depth_may_be_nan():
    integrated, rendered = depths()
    integrated[~SOME] = torch.nan
    rendered.requires_grad_()
    depth_scale_error(integrated, rendered, SOME).backward()
    assert bool(rendered.grad.isfinite().all())
    assert rendered.grad[~SOME].item() == 0


def test_depth_gradcheck():
    integrated, rendered = depths()
    assert torch.autograd.gradcheck(lambda z: depth_scale_error(integrated, z, SOME), rendered.requires_grad_())
