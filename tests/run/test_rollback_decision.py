"""The rollback decision as a function of divergence, state and checkpoints."""

import pytest

from fieldwatch.guard import Diverged, Rollback, TrainingDivergence
from fieldwatch.run.decision import GoBack
from fieldwatch.run.rollback import RollbackState, decide_rollback

DIVERGENCE = TrainingDivergence(first=64, last=73, noticed_at=95, cause="the loss is high")
OPTIONS = Rollback(margin=2, at_most=2, settled=256)
SAVED = (20, 40, 60, 80)


def answer(state=None, divergence=DIVERGENCE, options=OPTIONS, saved=SAVED, total=1000):
    state = (state or RollbackState()).merge(divergence, options)
    return decide_rollback(divergence, state, options, saved, total=total), state


def went_back(times):
    """Return the state of a run after several rollbacks for the same divergence."""
    state = RollbackState()
    for _ in range(times):
        back, state = answer(state)
        state = state.after_rollback(DIVERGENCE, back, back.to[0], [])
    return state


def test_the_newest_checkpoint_before_all_suspected_steps_is_chosen():
    back, _ = answer()
    assert back == GoBack(to=(60, 40, 20), skip=(62, 75))


def test_a_checkpoint_within_the_margin_is_better_than_none():
    back, _ = answer(saved=(63, 80))
    assert back == GoBack(to=(63,), skip=(62, 75))


def test_each_rollback_skips_more_until_the_limit():
    back, _ = answer(went_back(1))
    assert back.skip == (59, 78)
    assert back.to[0] == 40
    given_up, _ = answer(went_back(2))
    assert isinstance(given_up, Diverged)
    assert "2 times before" in str(given_up)


def test_a_divergence_long_after_the_last_one_is_a_new_one():
    state = went_back(2)
    later = DIVERGENCE._replace(first=500, last=505, noticed_at=540)
    back, merge = answer(state, divergence=later, saved=(480,))
    assert (merge.tries, merge.span) == (0, (500, 505))
    assert back.to == (480,)
    assert state.tries == 2, "a state is never changed"


def test_a_range_that_reaches_the_end_is_not_tried_twice():
    assert isinstance(answer(total=76)[0], GoBack)
    assert isinstance(answer(went_back(1), total=76)[0], Diverged)
    assert isinstance(answer(went_back(1), total=None)[0], GoBack)


@pytest.mark.parametrize("saved", [(), (80,)])
def test_without_a_checkpoint_before_the_divergence_no_rollback_is_possible(saved):
    found, _ = answer(saved=saved)
    assert isinstance(found, Diverged)
    assert str(list(saved)) in str(found)


def test_nothing_is_skipped_if_no_batch_is_suspected():
    back, state = answer(divergence=DIVERGENCE._replace(last=63))
    after = state.after_rollback(DIVERGENCE._replace(last=63), back, 60, ["weights"])
    assert after.skips == ()
    assert after.events[0]["skipped"] == []
    assert after.events[0]["not_finite"] == ["weights"]


def test_only_updates_after_the_restored_checkpoint_are_skipped():
    back, state = answer(saved=(63,))
    assert state.after_rollback(DIVERGENCE, back, 63, []).skips == ((63, 75),)
    assert [step for step in range(60, 80) if state.after_rollback(DIVERGENCE, back, 63, []).skipped(step)] == [
        *range(63, 76)
    ]


def test_the_stored_state_is_read_back():
    state = went_back(2)
    assert RollbackState.of(state.plain(), None) == state
    assert RollbackState.of({}, Rollback(skip=((3, 4),))).skips == ((3, 4),)


def test_the_format_of_earlier_checkpoints_is_read():
    event = {"number": 1, "try": 1, "from": 96, "to": 60, "skipped": [62, 75], "cause": "high", "not_finite": []}
    stored = {"skips": [[62, 75]], "tries": 1, "span": [64, 73], "told": [event]}
    state = RollbackState.of(stored, None)
    assert (state.skips, state.tries, state.span) == (((62, 75),), 1, (64, 73))
    assert state.plain() == stored
