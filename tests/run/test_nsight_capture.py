import pytest

from fieldwatch.run.nsight_capture import CAPTURED_STEPS, NsightCapture


def switched(environment, steps=100, found_at=None):
    """Return the steps at which the profiler was started and stopped."""
    now = {"step": 0}
    seen = []
    capture = NsightCapture(
        lambda: found_at is not None and now["step"] >= found_at,
        environment=environment,
        switch=lambda on: seen.append((on, now["step"])),
    )
    for step in range(steps):
        now["step"] = step
        capture.begin(step)
        capture.end(step)
    capture.close()
    return seen


def test_nothing_is_captured_by_default():
    assert switched({}) == []


def test_a_range_is_captured_inclusively():
    assert switched({"FIELDWATCH_PROFILE_STEPS": "10:12"}) == [(True, 10), (False, 12)]


def test_an_unfinished_range_is_closed():
    assert switched({"FIELDWATCH_PROFILE_STEPS": "98:200"}) == [(True, 98), (False, 99)]


def test_a_finding_starts_a_single_capture():
    assert switched({"FIELDWATCH_PROFILE_ON_FINDING": "1"}, found_at=30) == [(True, 30), (False, 29 + CAPTURED_STEPS)]


@pytest.mark.parametrize("wrong", ["10", "12:10", "a:b", "1:2:3", "-1:3"])
def test_an_invalid_range_is_refused(wrong):
    with pytest.raises(ValueError, match="expected FIRST:LAST"):
        switched({"FIELDWATCH_PROFILE_STEPS": wrong})
