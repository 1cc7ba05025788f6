"""Timing of saves, with a fake clock."""

import math
from itertools import pairwise

import pytest

from fieldwatch.checkpoint import Autosave, Interval


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def interval(every, **options):
    clock = Clock()
    made = Interval(every, Autosave(**options), clock)
    made.begin()
    return made, clock


def saves(made, clock, *, step, until, stall=0.01, writing=0.5):
    """Run steps of equal duration and save when due; return the times of the snapshots."""
    times = []
    done = 0
    while clock.now < 1000 + until:
        clock.now += step
        done += 1
        if made.due(done):
            times.append(clock.now - 1000)
            made.snapshot_taken(stall)
            made.written(writing)
    return times


def test_steps_are_saved_as_given_and_the_loss_limit_holds_beside_them():
    made, clock = interval(100, loss_limit=60.0)
    assert saves(made, clock, step=0.1, until=59) == pytest.approx([10, 20, 30, 40, 50], abs=0.01)
    made, clock = interval(100, loss_limit=60.0)
    times = saves(made, clock, step=1.0, until=260, writing=0.5)
    assert times == [60.0, 100.0, 160.0, 200.0, 260.0]
    made, clock = interval(100, loss_limit=None)
    assert saves(made, clock, step=1.0, until=260) == [100.0, 200.0]


def test_none_saves_nothing_before_the_end():
    made, clock = interval(None)
    assert saves(made, clock, step=10.0, until=1000) == []
    assert made.seconds == math.inf


@pytest.mark.parametrize(
    ("stall", "writing", "seconds"),
    [(0.001, 0.1, 10.0), (0.1, 0.5, 20.0), (0.01, 3.0, 30.0), (0.29, 1.0, 58.0), (1.0, 1.0, 59.0)],
    ids=["the least", "the budget", "a tenth for the writer", "the budget near the limit", "the limit wins"],
)
def test_auto_takes_what_the_budget_allows_and_never_more_than_the_limit(stall, writing, seconds):
    made, clock = interval("auto")
    times = saves(made, clock, step=0.5, until=400, stall=stall, writing=writing)
    gaps = [later - one for one, later in pairwise(times)]
    assert gaps[1:] == pytest.approx([seconds] * len(gaps[1:]), abs=0.5)
    assert max(gaps) + writing <= 60.5  # what a kill costs at most: a step is not cut


def test_where_budget_and_limit_cannot_both_hold_the_figures_are_said_once():
    made, _ = interval("auto")
    made.snapshot_taken(0.1)
    assert made.conflict() is None
    made.snapshot_taken(0.6)
    said = made.conflict()
    assert said == {
        "stall_seconds": 0.6,
        "stall_budget": 0.005,
        "interval_wanted": pytest.approx(120.0),
        "loss_limit": 60.0,
        "share": pytest.approx(0.01),
    }
    assert made.conflict() is None


def test_failures_are_tried_again_later_and_later_and_a_success_forgets_them():
    made, clock = interval(10)
    assert made.due(10)
    assert made.failed() == 1.0
    assert not made.due(20)  # a planned step has to wait too
    clock.now += 1.0
    assert made.due(21)
    assert [made.failed() for _ in range(7)] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    clock.now += 60.0
    assert made.due(22)
    made.snapshot_taken(0.1)
    made.written(0.1)
    assert not made.due(22)
    assert made.due(30)
    made.failed()
    made.saved()
    assert not made.due(31)
    assert made.failed() == 1.0


def test_putting_off_holds_the_time_back_but_no_planned_step():
    made, clock = interval(10)
    clock.now += 61
    made.put_off(5.0)
    assert not made.due(11)
    assert made.due(20)
    clock.now += 5
    assert made.due(21)


@pytest.mark.parametrize(
    ("name", "number"), [("stall_budget", 0.0), ("stall_budget", 2.0), ("loss_limit", 0.0), ("least", -1.0)]
)
def test_numbers_that_mean_nothing_are_refused(name, number):
    with pytest.raises(ValueError, match=rf"Autosave\({name}={number}"):
        Autosave(**{name: number})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("every", [-1, 2.5, "often", True])
def test_only_steps_auto_or_none(every):
    with pytest.raises(ValueError, match="'auto' or None"):
        Interval(every, Autosave())


@pytest.mark.parametrize(("every", "outcome"), [(5, "failed"), ("auto", "failed"), (5, "written"), ("auto", "refused")])
def test_no_second_try_is_due_while_one_is_under_way(every, outcome):
    made, clock = interval(every, least=1.0, loss_limit=30.0)
    clock.now += 2.0
    assert made.due(5)
    made.snapshot_taken(0.01)
    made.failed()
    clock.now += 1.0
    assert made.due(6)
    made.snapshot_taken(0.01)
    for done in (7, 8, 10):  # the disk is slow: the try takes these steps
        clock.now += 3.0
        assert not made.due(done)
    if outcome == "failed":
        assert made.failed() == 2.0
        assert not made.due(11)
        clock.now += 2.0
    elif outcome == "written":
        made.written(9.0)
        clock.now += 22.0
    else:
        made.put_off(5.0)
        assert not made.due(11)
        clock.now += 5.0
    assert made.due(15)
