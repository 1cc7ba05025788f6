"""Schedule of densification, and the record of its counts."""

import pytest

from fieldwatch.recon.pipelines.splats.densification import DensificationRecord, DensificationSchedule


def test_the_schedule_of_3dgs():
    schedule = DensificationSchedule()
    densifies = [step + 1 for step in range(30_000) if schedule.densifies_after(step)]
    assert densifies == list(range(600, 15_000, 100))
    assert [step + 1 for step in range(30_000) if schedule.resets_after(step)] == [3000, 6000, 9000, 12_000]
    assert schedule.last_step == 14_899
    assert schedule.collects_statistics(14_899)
    assert not schedule.collects_statistics(14_900)


def test_a_pause_follows_every_reset():
    schedule = DensificationSchedule(first=10, last=60, every=5, reset_every=30, pause=10)
    assert [step + 1 for step in range(70) if schedule.densifies_after(step)] == [10, 15, 20, 25, 40, 45, 50, 55]


def test_no_reset():
    assert not any(DensificationSchedule(reset_every=0).resets_after(step) for step in range(20_000))


def test_everything_is_shortened_alike():
    assert DensificationSchedule().scaled(0.01) == DensificationSchedule(
        first=6, last=149, every=1, reset_every=30, pause=0
    )
    assert DensificationSchedule(reset_every=0).scaled(1e-9) == DensificationSchedule(
        first=1, last=1, every=1, reset_every=0
    )


@pytest.mark.parametrize("wrong", [{"first": 0}, {"last": 10}, {"every": 0}, {"reset_every": -1}, {"pause": -1}])
def test_impossible_schedules_are_refused(wrong):
    with pytest.raises(ValueError, match="0 < first <= last"):
        DensificationSchedule(**wrong)


def test_a_record_becomes_an_event():
    record = DensificationRecord(before=10, after=14, cloned=3, split=2, children=4, pruned=1, held_back=5)
    facts = record.facts(last_step=99)
    assert (facts["added"], facts["removed"], facts["growth_until"], facts["held_back"]) == (7, 3, 99, 5)


def test_a_record_that_does_not_add_up_is_refused():
    with pytest.raises(ValueError, match=r"10 Gaussians \+ 3 added - 0 removed.* 14"):
        DensificationRecord(before=10, after=14, cloned=3)
