"""Quaternions and matrices."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.recon.geometry import exponential, matrix_to_quaternion, normalized_quaternions, quaternion_to_matrix

part = st.floats(-1, 1, allow_subnormal=False)


@given(st.tuples(part, part, part, part).filter(lambda q: sum(x * x for x in q) > 1e-3))
def test_a_matrix_and_back_is_the_same_turn(values):
    quaternion = torch.tensor(values, dtype=torch.float64)
    matrix = quaternion_to_matrix(quaternion)
    assert torch.allclose(matrix @ matrix.T, torch.eye(3, dtype=torch.float64), atol=1e-12)
    assert float(torch.linalg.det(matrix)) == pytest.approx(1)
    back = matrix_to_quaternion(matrix)
    assert float(back[0]) >= 0
    assert abs(float(back @ normalized_quaternions(quaternion))) == pytest.approx(1)


def test_a_quarter_turn_around_z_takes_x_to_y():
    turn = quaternion_to_matrix(torch.tensor([1.0, 0, 0, 1]))
    assert torch.allclose(turn @ torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 0]), atol=1e-6)


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_half_turns_come_back(axis):
    quaternion = torch.zeros(4, dtype=torch.float64)
    quaternion[axis] = 1
    assert torch.allclose(matrix_to_quaternion(quaternion_to_matrix(quaternion)), quaternion)


def test_products_of_matrices_follow_hamilton():
    a, b = normalized_quaternions(torch.randn(2, 50, 4, dtype=torch.float64))
    (aw, av), (bw, bv) = ((q[:, :1], q[:, 1:]) for q in (a, b))
    product = torch.cat([aw * bw - (av * bv).sum(-1, keepdim=True), aw * bv + bw * av + torch.linalg.cross(av, bv)], -1)
    assert torch.allclose(quaternion_to_matrix(product), quaternion_to_matrix(a) @ quaternion_to_matrix(b))


def test_gradients_are_right_and_finite_even_at_zero():
    inputs = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(quaternion_to_matrix, inputs)
    zero = torch.zeros(1, 4, requires_grad=True)
    quaternion_to_matrix(zero).sum().backward()
    assert bool(torch.isfinite(zero.grad).all())


def test_gradients_back_from_matrices_are_right_where_the_angle_is_large():
    quaternion = torch.tensor([[0.01, 0.7, -0.7, 0.1], [0.9, 0.1, 0.2, 0.3]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q: matrix_to_quaternion(quaternion_to_matrix(q)), quaternion)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-4, 9.99e-4, 1.001e-3, 0.1, 3.0, 3.14159265, 7.0])
def test_the_exponential_is_that_of_the_skew_matrix(angle):
    axis = torch.tensor([2.0, -3.0, 6.0], dtype=torch.float64) / 7
    x, y, z = (angle * axis).tolist()
    skew = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    found = exponential(angle * axis)
    assert torch.allclose(found, torch.linalg.matrix_exp(skew), atol=1e-13)
    assert torch.allclose(found @ found.T, torch.eye(3, dtype=torch.float64), atol=1e-13)
    assert torch.allclose(exponential((angle * axis).float()), found.float(), atol=1e-6)


def test_the_exponential_of_many_vectors_and_of_a_quarter_turn():
    turns = exponential(torch.tensor([[[0.0, 0.0, 0.5 * torch.pi], [0.0, 0.0, 0.0]]]))
    assert turns.shape == (1, 2, 3, 3)
    assert torch.allclose(turns[0, 0], torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), atol=1e-6)
    assert torch.equal(turns[0, 1], torch.eye(3))


@pytest.mark.parametrize("size", [0.0, 1e-5, 9e-4, 1.1e-3, 1.0])
def test_gradients_of_the_exponential_are_right_from_zero_on(size):
    direction = torch.tensor([[0.6, 0.0, -0.8], [0.0, 1.0, 0.0]], dtype=torch.float64)
    vectors = (size * direction).requires_grad_()
    assert torch.autograd.gradcheck(exponential, vectors, eps=1e-5, atol=1e-6)
    single = (size * direction).float().requires_grad_()
    generator = exponential(single)[0]
    (generator[2, 1] - generator[1, 2]).backward()
    if size == 0:
        assert single.grad.tolist() == [[2, 0, 0], [0, 0, 0]]
    assert bool(torch.isfinite(single.grad).all())
