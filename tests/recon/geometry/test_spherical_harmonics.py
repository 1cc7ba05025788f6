"""Spherical harmonics: orthonormality, addition theorem, signs and order."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial import legendre

from fieldwatch.recon.geometry import (
    colors_to_constant,
    constant_to_colors,
    harmonic_colors,
    harmonics,
    harmonics_count,
    quaternion_to_matrix,
)


def sphere(rows=24):
    """Return directions and weights of an exact quadrature on the sphere: Gauss in z, uniform in the angle."""
    z, weight = (torch.from_numpy(x) for x in legendre.leggauss(rows))
    angle = 2 * math.pi * torch.arange(2 * rows, dtype=torch.float64) / (2 * rows)
    flat = (1 - z * z).sqrt()
    points = torch.stack(
        [flat[:, None] * angle.cos(), flat[:, None] * angle.sin(), z[:, None].expand(-1, 2 * rows)], -1
    )
    return points.reshape(-1, 3), (weight[:, None] * math.pi / rows).expand(-1, 2 * rows).reshape(-1)


def directions(count):
    drawn = torch.randn(count, 3, dtype=torch.float64)
    return drawn / drawn.norm(dim=-1, keepdim=True)


def test_they_are_orthonormal():
    points, weights = sphere()
    values = harmonics(points, 3)
    assert torch.allclose(values.T @ (weights[:, None] * values), torch.eye(16, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_each_degree_is_complete_whatever_way_it_is_turned(degree):
    """Addition theorem: the sum over the orders is a Legendre polynomial of the angle between the directions."""
    one = directions(100)
    other = directions(100)
    own = slice(degree * degree, (degree + 1) ** 2)
    total = (harmonics(one, degree)[:, own] * harmonics(other, degree)[:, own]).sum(-1)
    expected = legendre.legval((one * other).sum(-1).numpy(), np.eye(4)[degree]) * (2 * degree + 1) / (4 * math.pi)
    assert np.allclose(total, expected)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_turning_the_directions_mixes_only_functions_of_one_degree(degree):
    turn = quaternion_to_matrix(torch.randn(4, dtype=torch.float64))
    points = directions(200)
    own = slice(degree * degree, (degree + 1) ** 2)
    before = harmonics(points, 3)[:, own]
    after = harmonics(points @ turn.T, 3)[:, own]
    mixed = torch.linalg.lstsq(before, after).solution
    assert torch.allclose(before @ mixed, after)
    assert torch.allclose(mixed @ mixed.T, torch.eye(2 * degree + 1, dtype=torch.float64))


def test_order_and_signs_are_those_of_the_complex_functions_with_condon_and_shortley():
    """Compute real functions from the definition of associated Legendre polynomials."""
    points = directions(50)
    x, y, z = points.T.numpy()
    angle = np.arctan2(y, x)
    flat = np.sqrt(1 - z * z)
    for degree in range(4):
        for order in range(-degree, degree + 1):
            m = abs(order)
            series = legendre.legder(np.eye(4)[degree], m)
            associated = (-1) ** m * flat**m * legendre.legval(z, series)
            norm = math.sqrt((2 * degree + 1) / (4 * math.pi) * math.factorial(degree - m) / math.factorial(degree + m))
            wave = 1 if order == 0 else math.sqrt(2) * (np.cos(m * angle) if order > 0 else np.sin(m * angle))
            value = harmonics(points, degree)[:, degree * degree + degree + order]
            assert np.allclose(value, norm * associated * wave), (degree, order)


def test_a_lower_degree_is_the_beginning_of_a_higher_one():
    points = directions(10)
    for degree in range(4):
        assert harmonics(points, degree).shape[1] == harmonics_count(degree) == (degree + 1) ** 2
        assert torch.equal(harmonics(points, degree), harmonics(points, 3)[:, : (degree + 1) ** 2])


@pytest.mark.parametrize("degree", [-1, 4])
def test_other_degrees_are_refused(degree):
    with pytest.raises(ValueError, match=f"degree .*0 to 3, got {degree}"):
        harmonics(directions(2), degree)


def test_a_constant_shows_its_color_from_everywhere():
    colors = torch.rand(7, 3)
    points = directions(7).float()
    constant = colors_to_constant(colors)
    assert torch.allclose(constant_to_colors(constant), colors)
    coefficients = torch.cat([constant[:, None], torch.zeros(7, 8, 3)], 1)
    assert torch.allclose(harmonic_colors(coefficients, points), colors)


def test_colors_are_never_negative():
    assert float(harmonic_colors(torch.full((4, 16, 3), -9.0), directions(4).float()).min()) >= 0
