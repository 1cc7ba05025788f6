"""Curves: peaks survive thinning, and values that are not finite are gaps."""

import re

import numpy as np
import pytest

from fieldwatch.base.cell import curve, sparkline
from fieldwatch.base.cell.curves import MOST_POINTS


def heights(page):
    return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.-]+)", page)]


def test_a_single_peak_of_a_long_curve_is_drawn():
    values = np.ones(100_000)
    values[43_210] = 5.0
    drawn = heights(curve("a", np.arange(100_000.0), values))
    assert len(drawn) <= 2 * MOST_POINTS
    assert min(drawn) == 2.0
    assert drawn.count(2.0) == 1


def test_a_value_that_is_not_finite_interrupts_the_curve_and_is_counted():
    page = curve("a", np.arange(5.0), np.array([1.0, 2.0, np.nan, 3.0, 4.0]))
    assert page.count("M0.0") == 1
    assert len(re.findall(r"M\d", page)) == 2
    assert re.search(r"\b1 value\b", page)


@pytest.mark.parametrize("values", [[np.nan, np.inf], [3.0]])
def test_curves_without_a_range_are_drawn(values):
    page = curve("a", np.arange(float(len(values))), np.array(values))
    assert "nan" not in "".join(re.findall(r'd="([^"]*)"', page))


def test_a_wide_range_is_logarithmic():
    steps = np.arange(3.0)
    low, middle, high = heights(curve("a", steps, np.array([1e-4, 1e-2, 1.0])))
    assert middle == pytest.approx((low + high) / 2, abs=0.1)
    assert "log axis" in curve("a", steps, np.array([1e-4, 1e-2, 1.0]))
    assert "log axis" not in curve("a", steps, np.array([-1.0, 1e-2, 1.0]))


def test_names_are_text():
    assert "<b>" not in curve('<b>"', np.zeros(1), np.zeros(1)) + sparkline('<b>"', np.zeros(1), np.zeros(1))
