"""Rendered normals against normals from depth: known values, background, finite gradients at grazing angles."""

import pytest
import torch

from fieldwatch.recon.losses import depth_normal_error, normal_consistency_error, rederived_normals


def picture(*normals):
    return torch.tensor(normals, dtype=torch.float64)[None]


def unit(height, width, seed=1):
    normals = torch.randn(height, width, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normals / normals.norm(dim=-1, keepdim=True)


def test_the_error_is_one_minus_the_cosine_whatever_the_lengths():
    rendered = picture((0, 0, -0.3), (0, 0, -1), (0, 2, 0), (0, 0, 0))
    depth = picture((0, 0, -1), (0, 0, 1), (0, 0, -1), (0, 0, -1))
    each = [depth_normal_error(rendered[:, i : i + 1], depth[:, i : i + 1]).item() for i in range(4)]
    assert each == pytest.approx([0.0, 2.0, 1.0, 1.0], abs=1e-12)
    assert depth_normal_error(rendered, depth).item() == pytest.approx(1.0)


def test_pixels_count_by_mask_or_by_weight():
    rendered = picture((0, 0, -1), (0, 0, -1))
    depth = picture((0, 0, -1), (0, 0, 1))
    assert depth_normal_error(rendered, depth, torch.tensor([[True, False]])).item() == 0
    weights = torch.tensor([[0.75, 0.25]], dtype=torch.float64, requires_grad=True)
    error = depth_normal_error(rendered.requires_grad_(), depth, weights)
    assert error.item() == pytest.approx(0.5)
    error.backward()
    assert weights.grad is None
    assert depth_normal_error(rendered, depth, torch.zeros(1, 2, dtype=torch.bool)).item() == 0


def test_rederived_normals_face_the_camera_with_length_one():
    normals = unit(6, 7)
    made = rederived_normals(normals)
    assert torch.equal(made[..., :2], normals[..., :2])
    assert torch.allclose(made[..., 2], -normals[..., 2].abs(), atol=1e-6)
    assert rederived_normals(torch.zeros(1, 1, 3)).flatten().tolist() == [0.0, 0.0, -1.0]


@pytest.mark.parametrize("x", [0.999999, 1.0, 1.0001, 5.0])
def test_grazing_and_overlong_normals_have_bounded_slopes(x):
    normals = torch.tensor([[[x, 0.0, 0.0], [0.0, x, 0.1]]], requires_grad=True)
    depth_normal_error(rederived_normals(normals), torch.tensor([[[0.0, 0.0, -1.0], [0.0, 0.6, -0.8]]])).backward()
    assert bool(torch.isfinite(normals.grad).all())
    assert normals.grad.abs().max().item() < 1100


def test_normals_of_no_length_have_bounded_slopes():
    rendered, depth = (torch.zeros(2, 2, 3, requires_grad=True) for _ in range(2))
    error = depth_normal_error(rendered + torch.tensor([0.0, 0.0, 1e-20]), depth)
    assert error.item() == 1
    error.backward()
    assert bool(torch.isfinite(rendered.grad).all() & torch.isfinite(depth.grad).all())


def test_consistency_sums_over_the_gaussians_of_a_ray():
    weights = torch.rand(4, 5, 6, dtype=torch.float64) / 6
    each = torch.stack([unit(4, 5, seed) for seed in range(6)], 2)
    depth = unit(4, 5, 9)
    by_hand = (weights * (1 - (each * depth[:, :, None]).sum(-1))).sum(-1)
    blended = (weights[..., None] * each).sum(2)
    alpha = weights.sum(-1)
    assert normal_consistency_error(blended, alpha, depth).item() == pytest.approx(by_hand.mean().item())
    valid = torch.rand(4, 5) > 0.5
    assert normal_consistency_error(blended, alpha, depth, valid).item() == pytest.approx(by_hand[valid].mean().item())


def test_gradcheck_of_all_three():
    rendered, depth = (0.5 * unit(2, 3, seed) for seed in (1, 2))
    alpha = torch.rand(2, 3, dtype=torch.float64).requires_grad_()
    leaves = (rendered.requires_grad_(), depth.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: depth_normal_error(a, b, alpha), leaves)
    assert torch.autograd.gradcheck(rederived_normals, rendered)
    assert torch.autograd.gradcheck(lambda a, b, c: normal_consistency_error(a, c, b), (*leaves, alpha))
