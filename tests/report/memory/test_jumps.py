import math

import numpy as np
import pytest

from fieldwatch.report.memory import RecordedCurve
from fieldwatch.report.memory.jumps import find_jumps, link_all


@pytest.fixture
def quiet():
    return 8000 + np.random.default_rng(0).normal(0, 5, 300)


def test_noise_has_no_jumps(trace_of, quiet):
    assert find_jumps(trace_of(quiet), 0) == ()


def test_jump_spike_and_drop_are_told_apart_and_counted_once(trace_of, quiet):
    quiet[50:] += 900
    quiet[120:122] += 700
    quiet[200:] -= 800
    found = find_jumps(trace_of(quiet), 0)
    assert [(jump.step, jump.shape) for jump in found] == [(2500, "jump"), (6000, "spike"), (10000, "drop")]
    assert [jump.change for jump in found] == pytest.approx([900, 700, -800], abs=30)
    assert found[0].quiet == 49
    assert abs(found[0].score) > 50


def test_a_plateau_without_any_noise_that_breaks_is_found(trace_of):
    values = np.full(300, 8000.0)
    values[250:] = 8500
    (jump,) = find_jumps(trace_of(values), 0)
    assert (jump.step, jump.shape, jump.quiet) == (12500, "jump", 249)


def test_small_changes_of_a_plateau_are_no_jumps(trace_of):
    values = np.full(300, 8000.0)
    values[250:] = 8100
    assert find_jumps(trace_of(values), 0) == ()


def test_the_start_up_is_left_out(trace_of, quiet):
    quiet[:5] -= 4000
    assert [jump.step for jump in find_jumps(trace_of(quiet), 0)] == [250]
    assert find_jumps(trace_of(quiet), 5) == ()


def test_the_category_that_moved_is_named(trace_of, quiet):
    quiet[50:] += 900
    activations = np.where(np.arange(300) < 50, 100.0, 950.0)
    trace = trace_of(quiet, categories={"parameters": np.full(300, 5000.0), "activations": activations})
    assert find_jumps(trace, 0)[0].parts == (("activations", 850.0),)


def test_jumps_with_events_are_told_from_chance(trace_of, quiet):
    events = np.arange(500, 14000, 1500)
    for step in events:
        quiet[step // 50 + 1] += 900
    elsewhere = np.arange(710, 14000, 1500)
    trace = trace_of(quiet, events={"evaluation": events, "checkpoint": elsewhere})
    jumps = find_jumps(trace, 0)
    links = {link.kind: link for link in link_all(trace, jumps, 0)}
    assert all(jump.near == ("evaluation",) for jump in jumps)
    assert (links["evaluation"].together, links["evaluation"].jumps) == (9, 9)
    assert links["evaluation"].expected < 1.5
    assert links["evaluation"].chance < 1e-6
    assert (links["checkpoint"].together, links["checkpoint"].chance) == (0, pytest.approx(1))


def test_the_probability_is_the_hypergeometric_one(trace_of, quiet):
    quiet[[50, 100, 150]] += 900
    trace = trace_of(quiet, events={"growth": np.array([2480, 4990, 11111])})
    (link,) = link_all(trace, find_jumps(trace, 0), 0)
    by_hand = (math.comb(3, 2) * math.comb(296, 1) + 1) / math.comb(299, 3)
    assert (link.together, link.events) == (2, 3)
    assert link.chance == pytest.approx(by_hand)
    assert link.expected == pytest.approx(9 / 299)


def test_spikes_of_the_loss_are_events_of_their_own(trace_of, quiet):
    quiet[101] += 900
    loss = 1 + np.random.default_rng(1).normal(0, 0.01, 15000)
    loss[5030] = 4
    trace = trace_of(quiet, loss=RecordedCurve(steps=np.arange(15000, dtype=np.int64), values=loss))
    (link,) = link_all(trace, find_jumps(trace, 0), 0)
    assert (link.kind, link.together, link.events) == ("loss spike", 1, 1)
