"""Limits and pauses of restarts, with a fake clock."""

import pytest

from fieldwatch.monitor import RestartLimiter


class Clock:
    """A clock that advances only on request."""

    def __init__(self):
        self.now = 1e6

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_restarts_without_progress_are_limited_in_a_row(clock):
    restarts = RestartLimiter(in_a_row=3, per_hour=99, pause=1.0, clock=clock)
    assert restarts.record_death(progress=True, passes=False) == ""
    for _ in range(2):
        assert restarts.record_death(progress=False, passes=False) == ""
    assert restarts.record_death(progress=True, passes=False) == ""  # begins to count anew
    assert [restarts.record_death(progress=False, passes=False) != "" for _ in range(3)] == [False, False, True]


def test_what_passes_by_itself_does_not_count_as_no_progress(clock):
    restarts = RestartLimiter(in_a_row=1, per_hour=99, pause=1.0, clock=clock)
    assert [restarts.record_death(progress=False, passes=True) for _ in range(20)] == [""] * 20


def test_restarts_that_get_further_are_limited_per_hour(clock):
    restarts = RestartLimiter(in_a_row=3, per_hour=10, pause=1.0, clock=clock)
    for _ in range(10):
        assert restarts.record_death(progress=True, passes=False) == ""
        restarts.next_pause()
        clock.now += 1.0
    assert "10 restarts" in restarts.record_death(progress=True, passes=True)
    clock.now += 3600.0
    assert restarts.record_death(progress=True, passes=False) == ""


def test_the_pause_doubles_up_to_a_minute_and_is_short_again_after_an_hour(clock):
    restarts = RestartLimiter(in_a_row=3, per_hour=10, pause=1.0, clock=clock)
    pauses = []
    for _ in range(8):
        restarts.record_death(progress=True, passes=False)
        pauses.append(restarts.next_pause())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    clock.now += 3601.0
    restarts.record_death(progress=True, passes=False)
    assert restarts.next_pause() == 1.0


def test_all_restarts_of_the_default_wait_long_enough_for_a_disk_or_a_mount():
    restarts = RestartLimiter(in_a_row=3, per_hour=10, pause=1.0, clock=Clock())
    waited = 0.0
    while not restarts.record_death(progress=False, passes=True):
        waited += restarts.next_pause()
    assert waited >= 300


@pytest.mark.parametrize("wrong", [{"in_a_row": -1}, {"per_hour": -1}, {"pause": -1.0}, {"pause": float("inf")}])
def test_limits_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match="pause of 0 or more"):
        RestartLimiter(**{"in_a_row": 3, "per_hour": 10, "pause": 1.0, **wrong})
