"""Retention over random histories deletes exactly the checkpoints that no rule keeps."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwatch.checkpoint import Retention, RetentionCandidate

_METRICS = st.dictionaries(st.sampled_from(["psnr", "lpips"]), st.floats() | st.integers(0, 3).map(float), max_size=2)
_CANDIDATES = st.lists(
    st.builds(
        RetentionCandidate, step=st.integers(0, 40), metrics=_METRICS, pinned=st.booleans(), verified=st.booleans()
    ),
    unique_by=lambda one: one.step,
    max_size=12,
)
_RULES = st.builds(
    Retention,
    last=st.integers(1, 4),
    every=st.integers(0, 10),
    steps=st.sets(st.integers(0, 40), max_size=3),
    best=st.integers(0, 3),
    metric=st.sampled_from(["", "psnr", "lpips"]),
    better=st.sampled_from(["higher", "lower"]),
)


@given(_RULES, _CANDIDATES)
@settings(max_examples=300, deadline=None)
def test_kept_is_the_union_of_the_rules_and_nothing_more(rules, candidates):
    steps = sorted((one.step for one in candidates), reverse=True)
    wanted = set(steps[: rules.last])
    wanted |= {step for step in steps if rules.every and step % rules.every == 0}
    wanted |= {step for step in steps if step in rules.steps}
    wanted |= {one.step for one in candidates if one.pinned}
    wanted |= set([step for step in steps if any(one.step == step and one.verified for one in candidates)][:1])
    sign = 1 if rules.better == "higher" else -1
    having = [one for one in candidates if not math.isnan(one.metrics.get(rules.metric, math.nan))]
    having.sort(key=lambda one: (sign * one.metrics[rules.metric], one.step), reverse=True)
    wanted |= {one.step for one in having[: rules.best]}
    assert rules.kept(candidates) == wanted


@given(_RULES, st.lists(st.tuples(st.integers(1, 5), _METRICS, st.booleans(), st.booleans()), max_size=25))
@settings(max_examples=200, deadline=None)
def test_over_any_history_the_last_verified_and_the_pinned_always_live(rules, history):
    step = 0
    alive = list[RetentionCandidate]()
    kept = set[int]()
    for ahead, metrics, pinned, verified in history:
        step += ahead
        alive.append(RetentionCandidate(step=step, metrics=metrics, pinned=pinned, verified=verified))
        kept = rules.kept(alive)
        before, alive = alive, [one for one in alive if one.step in kept]
        assert step in kept
        assert {one.step for one in before if one.pinned} <= kept
        good = [one.step for one in before if one.verified]
        assert not good or good[-1] in kept
    unpinned = [one for one in alive if not one.pinned and not (rules.every and one.step % rules.every == 0)]
    assert len(unpinned) <= rules.last + rules.best + 1


def test_the_defaults_keep_two_and_of_equals_the_later_is_best():
    candidates = [RetentionCandidate(step=step, metrics={"psnr": 30.0}) for step in (1, 2, 3, 4)]
    assert Retention().kept(candidates) == {3, 4}
    assert Retention(last=1, best=2, metric="psnr").kept(candidates) == {3, 4}
    assert Retention(last=1, metric="psnr").ranked(candidates)[0].step == 4


@pytest.mark.parametrize(("field", "value", "least"), [("last", 0, 1), ("every", -1, 0), ("best", -1, 0)])
def test_numbers_below_their_bounds_are_refused(field, value, least):
    with pytest.raises(ValueError, match=rf"Retention\({field}={value}\): it must be {least} or more"):
        Retention(**{field: value})


def test_an_unknown_direction_is_refused():
    rules = Retention()
    object.__setattr__(rules, "better", "up")  # past the tests' type checker, which an adopter does not have
    with pytest.raises(ValueError, match=r"better='up'\): it must be 'higher' or 'lower'"):
        rules.__post_init__()


def timed(*seconds):
    return [RetentionCandidate(step=10 * (k + 1), seconds=time) for k, time in enumerate(seconds)]


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        ((1, 2, 3, 4, 5, 6, 7), {10, 40, 70}),
        ((1, 2, 9, 10), {10, 20, 30, 40}),  # a gap that no checkpoint fills
        ((5,), {10}),
        ((None, None, None), {30}),
    ],
)
def test_checkpoints_are_kept_so_that_every_step_is_within_reach(seconds, kept):
    assert Retention(last=1, best=0, within=3).kept(timed(*seconds)) == kept


@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=40))
def test_pruning_after_every_save_leaves_no_gap_that_could_have_been_avoided(gaps):
    rules = Retention(last=1, best=0, within=8)
    alive = []
    reached = 0.0
    for step, gap in enumerate(gaps, 1):
        reached += gap
        alive.append(RetentionCandidate(step=step, seconds=reached))
        kept = rules.kept(alive)
        alive = [one for one in alive if one.step in kept]
    times = [one.seconds for one in alive]
    assert all(later - earlier <= 8 for earlier, later in pairwise(times))
    # Of two gaps in a row, the sum is too long: none of the checkpoints is superfluous.
    assert all(times[k + 2] - times[k] > 8 for k in range(len(times) - 2))
