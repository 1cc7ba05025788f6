"""Significance tests: no claim from one seed, exact p-values for a few, and an interval with the right coverage."""

import numpy as np
import pytest

from fieldwatch.report.compare import compare, permutation_test, sentences, welch_interval


def runs(side, name, losses, **config):
    found = []
    for seed, loss in enumerate(losses):
        held = {"Eval/mae": [loss + 1, loss]}
        found.append(side(f"{name}{seed}", held, config={"seed": seed, **config}))
    return found


def significance_of(side, one, other):
    return compare([*runs(side, "a", one, lr=1), *runs(side, "b", other, lr=2)]).significance


def test_runs_of_one_config_but_for_the_seed_form_a_group(side):
    found = compare([*runs(side, "a", [1, 2], lr=1), *runs(side, "b", [3], lr=2)])
    assert [group.runs for group in found.groups] == [("a0", "a1"), ("b0",)]
    assert [group.seeds for group in found.groups] == [("0", "1"), ("0",)]


def test_one_seed_each_is_no_statement(side):
    found = compare([*runs(side, "a", [1], lr=1), *runs(side, "b", [300], lr=2)])
    assert found.significance == ()
    assert any("no statement" in text for text in sentences(found))


def test_one_seed_of_one_is_no_statement(side):
    (test,) = significance_of(side, [1.0, 1.1, 1.2, 1.3, 1.1, 1.2], [9.0])
    assert test.statement == "one seed of b0: no statement"
    assert np.isnan(test.p)


def test_three_seeds_each_cannot_show_it(side):
    (test,) = significance_of(side, [1.0, 1.1, 1.2], [9.0, 9.1, 9.2])
    assert test.p == test.least_p == pytest.approx(0.1)
    assert "cannot go below 0.1: no statement" in test.statement


def test_five_seeds_far_apart_show_it_and_say_who(side):
    (test,) = significance_of(side, [1.0, 1.1, 1.2, 1.3, 1.05], [9.0, 9.1, 9.2, 9.3, 9.05])
    assert test.p == pytest.approx(2 / 252)
    assert test.statement.startswith("a0 and 4 more is better")
    low, high = test.interval
    assert low < 8 < high


def test_five_seeds_of_the_same_show_nothing(side):
    values = np.random.default_rng(0).normal(size=10)
    (test,) = significance_of(side, values[:5], values[5:])
    assert test.p > 0.05
    assert "no difference shown" in test.statement


def test_runs_of_the_same_seed_count_once(side):
    twice = [side(f"a{i}", {"Eval/mae": [1.0 + i / 100]}, config={"seed": 3}) for i in range(6)]
    (group,) = compare(twice).groups
    assert len(group.independent) == 1
    assert any("same seed" in text for text in sentences(compare(twice)))


def test_without_a_config_only_the_caller_can_say_that_runs_repeat(side):
    sides = [
        side(f"{folder}{i}", {"Eval/mae": [value + i / 100]}, config=None, kind="tensorboard", group=folder)
        for folder, value in (("a", 1.0), ("b", 2.0))
        for i in range(4)
    ]
    assert compare(sides).significance == ()
    (test,) = compare(sides, repeats=True).significance
    assert test.counts == (4, 4)
    assert test.p == pytest.approx(2 / 70)


def test_p_is_uniform_where_nothing_differs_and_the_interval_covers():
    generator = np.random.default_rng(1)
    drawn = [(generator.normal(size=4), generator.normal(size=5)) for _ in range(400)]
    ps = np.array([permutation_test(one, other)[0] for one, other in drawn])
    assert (ps <= 0.05).mean() <= 0.08
    covered = [low < 0 < high for low, high in (welch_interval(one, other) for one, other in drawn)]
    assert np.mean(covered) >= 0.92


def test_many_ways_are_drawn_at_random_always_the_same():
    generator = np.random.default_rng(2)
    one = generator.normal(size=12)
    other = generator.normal(size=12) + 3
    assert permutation_test(one, other) == permutation_test(one, other)
    assert permutation_test(one, other)[0] < 0.001
