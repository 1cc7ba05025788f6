"""Positions of the Gaussians on their triangle."""

import itertools
import math

import numpy as np
import pytest

from fieldwatch.recon.pipelines.splats.refined.pattern import PATTERNS

HEIGHT = math.sqrt(3) / 2
"""Of an equilateral triangle of side 1: a barycentric coordinate times it is the distance to a side."""
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, HEIGHT]])


@pytest.mark.parametrize("number", PATTERNS)
def test_there_are_as_many_different_places_as_the_name_says_and_each_sums_to_one(number):
    places = np.array(PATTERNS[number].centers)
    assert places.shape == (number, 3)
    assert len({tuple(place) for place in places.round(6).tolist()}) == number
    assert np.allclose(places.sum(1), 1, atol=1e-12)
    assert np.allclose(places.mean(0), 1 / 3, atol=1e-12)


@pytest.mark.parametrize("number", PATTERNS)
def test_circles_stay_in_an_equilateral_triangle(number):
    pattern = PATTERNS[number]
    assert (HEIGHT * np.array(pattern.centers)).min() >= pattern.radius - 1e-12


@pytest.mark.parametrize(
    ("number", "radius"),
    [(1, 0.2886751), (3, 0.1830127), (4, 0.1443376), (6, 0.1339746)],
)
def test_radii_are_those_of_the_densest_packing_of_equal_circles(number, radius):
    assert PATTERNS[number].radius == pytest.approx(radius, abs=1e-7)


def test_one_circle_is_the_inscribed_one():
    assert pytest.approx(PATTERNS[1].radius, abs=1e-12) == HEIGHT / 3


def test_four_circles_touch_the_sides_and_each_other():
    pattern = PATTERNS[4]
    centers = np.array(pattern.centers) @ CORNERS
    gaps = [np.linalg.norm(a - b) - 2 * pattern.radius for a, b in itertools.combinations(centers, 2)]
    assert min(gaps) == pytest.approx(0, abs=1e-12)
    assert sum(abs(gap) < 1e-9 for gap in gaps) == 3  # the middle one touches each of the others
    assert pytest.approx(pattern.radius, abs=1e-12) == HEIGHT / 6
