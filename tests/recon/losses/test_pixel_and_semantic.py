"""Pixel and cosine losses, including zero vectors."""

import pytest
import torch

from fieldwatch.recon.losses import cosine, cosine_error
from fieldwatch.recon.losses.pixel import l1, l2


def test_pixel_errors_by_hand():
    a = torch.tensor([0.0, 1.0, 0.5, 0.5])
    b = torch.tensor([0.0, 0.0, 1.0, 0.5])
    assert l1(a, b) == pytest.approx(1.5 / 4)
    assert l2(a, b) == pytest.approx(1.25 / 4)


def test_cosine_error_by_hand():
    a = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    b = torch.tensor([[5.0, 0.0], [1.0, 0.0], [-4.0, 0.0]])
    assert cosine(a, b).tolist() == [1, 0, -1]
    assert cosine_error(a, b) == pytest.approx((0 + 1 + 2) / 3)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-13])
def test_a_vector_without_direction_has_finite_value_and_gradients(scale):
    prediction = (scale * torch.ones(2, 4)).requires_grad_()
    target = torch.eye(4)[:2].clone().requires_grad_()
    error = cosine_error(prediction, target)
    error.backward()
    assert error.item() == pytest.approx(1, abs=1e-6)
    assert prediction.grad.isfinite().all()
    assert target.grad.isfinite().all()


def test_zero_targets_do_not_disturb_the_others():
    prediction = torch.eye(3)[:2].clone().requires_grad_()
    target = torch.stack([torch.zeros(3), torch.tensor([0.0, 1.0, 0.0])])
    assert cosine_error(prediction, target).item() == pytest.approx(0.5)


def test_gradients_agree_with_finite_differences():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: cosine_error(x, b), (a.requires_grad_(),))
