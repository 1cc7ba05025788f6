"""The page of goals shows what the benchmarks printed, and says why a goal is not reached."""

import importlib
import re

import pytest


@pytest.fixture
def limits_page(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "docs"))
    return importlib.import_module("limits_page")


@pytest.fixture
def benchmarks(root):
    return (root / "docs" / "benchmarks.md").read_text()


@pytest.fixture
def reliability(root):
    return (root / "docs" / "reliability.md").read_text()


def test_a_goal_is_met_or_explained(limits_page, benchmarks, reliability):
    page = limits_page.page(limits_page.Pages(benchmarks, reliability))
    met, goals = map(int, re.search(r"^(\d+) of (\d+) goals are reached", page, re.MULTILINE).groups())
    assert page.count("| met |") == met
    assert page.count("| **not met** |") == goals - met
    assert goals > 30
    for missed in re.findall(r"^\| (.+?) \| [^|]+ \| [^|]+ \| \*\*not met\*\*", page, re.MULTILINE):
        assert f"**{missed}**" in page


def test_a_figure_beyond_its_bound_is_not_met(limits_page, benchmarks, reliability):
    row = re.search(r"^\| norms of 4 gradients, us \| ([\d.]+) \| 18 \|.*$", benchmarks, re.MULTILINE)
    slower = benchmarks.replace(row[0], row[0].replace(row[1], "18.1", 1))
    goals = {goal.figure.what: goal for goal in limits_page.toolkit_goals(limits_page.Pages(slower, reliability))}
    assert not goals["norms of 4 gradients, us"].met
    assert goals["bytes a row of 24 scalars, journal"].met
    # Nobody has explained it.
    with pytest.raises(LookupError, match="norms of 4 gradients"):
        limits_page.page(limits_page.Pages(slower, reliability))


def test_a_section_that_is_missing_is_named_with_its_command(limits_page, reliability):
    with pytest.raises(LookupError, match=r"benchmarks/all\.py limits"):
        limits_page.page(limits_page.Pages("", reliability))


def test_numbers_are_read_from_cells(limits_page):
    assert limits_page.number("goodput 82.9%, 4.0 s") == 82.9
    assert limits_page.number("+3.15") == 3.15
    assert limits_page.number("-2.23") == -2.23
    assert limits_page.number("19,772") == 19772
    assert limits_page.both_ways("0.99 / 1.31") == pytest.approx(2.30)
    with pytest.raises(ValueError, match="no number"):
        limits_page.number("-")
