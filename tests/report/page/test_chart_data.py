"""Limits of the axes of charts, as the script of the pages computes them."""

import json
from importlib.resources import files

import pytest

from javascript import printed_by_node


@pytest.fixture
def limits():
    """Return a function that gives the limits of a logarithmic axis for the values of lines."""
    source = (files("fieldwatch.report.page") / "assets" / "chart_data.js").read_text("utf-8")

    def of(*lines):
        values = [value for line in lines for value in line if value is not None]
        call = f"roomyLog({min(values)}, {max(values)}, {json.dumps(lines)})"
        script = f"{source}\nprocess.stdout.write(JSON.stringify({call}))"
        return json.loads(printed_by_node(script))

    return of


def test_a_line_far_below_a_diverging_one_stays_in_sight(limits):
    falling = [1 / (1 + step) for step in range(100)]
    diverging = [10 ** (step / 5) for step in range(100)]
    least, greatest = limits(falling, diverging)
    assert least < falling[90]
    assert greatest > diverging[-1]


def test_a_few_values_near_zero_do_not_flatten_a_line(limits):
    line = [1.0 + step for step in range(100)]
    line[50] = 1e-30
    least, _ = limits(line)
    assert least > 1e-8


def test_lines_with_gaps_have_limits(limits):
    least, greatest = limits([None, 1e-12, 1e-12], [None, None, 10.0])
    assert least < 1e-12
    assert greatest > 10.0


def test_lines_of_similar_size_reach_from_the_least_to_the_greatest_value(limits):
    least, greatest = limits([2.0, 3.0], [500.0, 4.0])
    assert 1 < least < 2
    assert 500 < greatest < 1000
