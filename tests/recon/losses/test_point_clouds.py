"""Point losses: values computed by hand, and empty input."""

import pytest
import torch

from fieldwatch.recon.losses import matched_error, surface_error

NONE = torch.zeros(3, dtype=torch.bool)


def test_distances_of_counted_pairs_are_averaged():
    points = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 1.0], [9.0, 9.0, 9.0]])
    matches = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    counted = torch.tensor([True, True, False])
    assert matched_error(points, matches, counted).item() == pytest.approx(2.5)
    assert matched_error(points[:2], matches[:2]).item() == pytest.approx(2.5)


def test_points_are_pulled_straight_to_their_matches_which_stay():
    points = torch.tensor([[3.0, 4.0, 0.0], [1.0, 1.0, 1.0]], requires_grad=True)
    matches = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], requires_grad=True)
    matched_error(points, matches).backward()
    assert torch.allclose(points.grad, torch.tensor([[0.3, 0.4, 0.0], [0.0, 0.0, 0.0]]))
    assert matches.grad is None


def test_nothing_that_counts_is_no_error_and_no_slope():
    points = torch.randn(3, 3, requires_grad=True)
    (matched_error(points, torch.zeros(3, 3), NONE) + surface_error(points[:, 0], NONE)).backward()
    assert points.grad.tolist() == [[0.0] * 3] * 3
    assert matched_error(torch.zeros(0, 3), torch.zeros(0, 3)).item() == 0
    assert surface_error(torch.zeros(0)).item() == 0


def test_an_error_does_not_depend_on_the_frame():
    points, matches = torch.randn(2, 20, 3, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    moved = matched_error(points @ turn.T + 1, matches @ turn.T + 1)
    assert moved.item() == pytest.approx(matched_error(points, matches).item(), rel=1e-12)


def test_distances_of_either_sign_count():
    distances = torch.tensor([0.5, -1.5, 7.0], requires_grad=True)
    error = surface_error(distances, torch.tensor([True, True, False]))
    error.backward()
    assert error.item() == pytest.approx(1.0)
    assert distances.grad.tolist() == [0.5, -0.5, 0.0]


def test_gradcheck():
    points, matches = torch.randn(2, 6, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: matched_error(p, matches), points.requires_grad_())
