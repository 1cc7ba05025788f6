"""Consistency of two views: values computed by hand, invariances, and points seen by no view."""

import math

import pytest
import torch

from fieldwatch.recon.geometry import exponential
from fieldwatch.recon.losses import view_consistency_error


def normals(count):
    drawn = torch.randn(count, 3, dtype=torch.float64)
    return drawn / drawn.norm(dim=-1, keepdim=True)


def test_weights_count_in_the_sum_and_views_in_the_mean():
    first = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    second = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
    both = torch.tensor([True, True, False])
    assert view_consistency_error(first, second, both).item() == pytest.approx((2 + 0) / 2)
    assert view_consistency_error(first, second, both, torch.tensor([0.5, 1.0, 1.0])).item() == pytest.approx(0.5)


def test_it_is_twice_one_minus_the_cosine():
    first = normals(50)
    angle = 0.2
    axis = torch.linalg.cross(first, normals(50))
    axis = axis / axis.norm(dim=-1, keepdim=True)
    second = (exponential(angle * axis) @ first[..., None])[..., 0]
    error = view_consistency_error(first, second, torch.ones(50, dtype=torch.bool))
    assert error.item() == pytest.approx(2 * (1 - math.cos(angle)))


def test_a_common_turn_and_an_exchange_change_nothing():
    first = normals(30)
    second = normals(30)
    both = torch.rand(30) > 0.3
    turn = exponential(torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64))
    error = view_consistency_error(first, second, both).item()
    assert view_consistency_error(first @ turn.T, second @ turn.T, both).item() == pytest.approx(error)
    assert view_consistency_error(second, first, both).item() == pytest.approx(error)


def test_the_gradient_turns_a_view_back():
    """Descending the gradient with respect to a rotation w undoes it, given enough normals."""
    seen = normals(400)
    turn = torch.tensor([0.02, -0.05, 0.03], dtype=torch.float64)
    vector = turn.clone().requires_grad_()
    view_consistency_error(seen @ exponential(vector).T, seen, torch.ones(400, dtype=torch.bool)).backward()
    assert torch.cosine_similarity(vector.grad, turn, dim=0).item() > 0.98
    vector = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    view_consistency_error(seen @ exponential(vector).T, seen, torch.ones(400, dtype=torch.bool)).backward()
    assert float(vector.grad.abs().max()) < 1e-15


def test_where_nothing_is_visible_there_is_no_error_and_no_slope():
    first = torch.randn(4, 3, requires_grad=True)
    weights = torch.rand(4, requires_grad=True)
    error = view_consistency_error(first, torch.zeros(4, 3), torch.zeros(4, dtype=torch.bool), weights)
    error.backward()
    assert (error.item(), first.grad.tolist(), weights.grad) == (0, [[0.0] * 3] * 4, None)
    assert view_consistency_error(first[:0], first[:0], torch.zeros(0, dtype=torch.bool)).item() == 0


def test_gradcheck():
    first = normals(6).requires_grad_()
    second = normals(6).requires_grad_()
    both = torch.tensor([True, True, False, True, True, True])
    weights = torch.rand(6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: view_consistency_error(a, b, both, weights), (first, second))
