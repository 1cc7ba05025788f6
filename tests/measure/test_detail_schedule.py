import pytest
import torch
from torch import nn

from fieldwatch.measure import DetailSchedule, ParameterGroups
from fieldwatch.measure.detail_schedule import AT_ONCE, NO_DETAILS


def watched(sizes):
    groups = ParameterGroups()
    groups.add(**{f"g{k}": nn.ParameterList([nn.Parameter(torch.empty(size))]) for k, size in enumerate(sizes)})
    return groups


def due_steps(schedule, last):
    return {index: due for index in range(last) if (due := schedule.due(index)) != NO_DETAILS}


@pytest.mark.parametrize("sizes", [[10], [10, 20], [2 * AT_ONCE]])
def test_a_small_model_or_a_single_group_is_measured_at_once(sizes):
    found = due_steps(DetailSchedule(50, watched(sizes)), 151)
    assert list(found) == [49, 99, 149]
    assert all(due.largest and due.precision and due.averages for due in found.values())
    assert all(due.buffers and due.moments for due in found.values())
    assert all(due.groups is None for due in found.values())


@pytest.mark.parametrize("sizes", [[AT_ONCE // 2] * 3, [100] * 1000, [AT_ONCE, *[10] * 40]])
def test_a_large_model_is_spread_and_every_group_measured_once_per_interval(sizes):
    groups = watched(sizes)
    found = due_steps(DetailSchedule(50, groups), 149)
    assert min(found) == 49
    for begin in (49, 99):
        interval = [due for index, due in found.items() if begin <= index < begin + 50]
        assert [name for due in interval for name in due.groups] == list(groups.names())
        for what in ("largest", "precision", "averages", "buffers"):
            assert [getattr(due, what) for due in interval].count(True) == 1
        assert not any(due.moments for due in interval)
    costs = [len(due.groups) for due in found.values()]
    assert max(costs) <= max(len(sizes) // 20, 41)


def test_a_schedule_that_begins_in_the_middle_goes_on_as_the_other_one():
    sizes = [100] * 400
    whole = DetailSchedule(50, watched(sizes))
    before = [whole.due(index) for index in range(130)]
    assert [DetailSchedule(50, watched(sizes)).due(index) for index in range(130)] == before


def test_short_intervals_are_not_spread():
    found = due_steps(DetailSchedule(5, watched([AT_ONCE] * 3)), 20)
    assert list(found) == [4, 9, 14, 19]
