"""Rules about a surface learned as a distance: each names a planted fault, and is silent on its healthy twin."""

import numpy as np
import pytest

from fieldwatch.health import (
    NORMALS,
    AbundantSamples,
    DeclaredButZero,
    Examiner,
    GridRebuilt,
    LossJump,
    OccupancySaturated,
    PosesRunAway,
    RolledBack,
    SharpnessStuck,
    StarvedRays,
    ValidationFailed,
    exit_code,
)

COUNT = 4000


def flat(value, count=1000):
    return np.full(count, float(value))


def from_step(before, after, at=600, count=1000):
    return np.where(np.arange(count) < at, before, after)


def judged_at(rule, history, step):
    """The one finding, which is not there one recording earlier."""
    (found,) = rule(history)
    assert found.step == step
    history.discard(step)
    assert rule(history) == ()
    return found


def test_rays_that_find_nothing_for_long(make):
    name, rule = "Statistics/starved_share", StarvedRays()
    found = judged_at(rule, make({name: from_step(0.02, 0.4)}), 699)
    assert (found.severity, found.subject) == ("warning", name)
    assert "40% of the rays in the mask find no surface" in found.message
    assert rule(make({name: from_step(0.02, 0.2)})) == ()
    assert rule(make({name: np.where(np.arange(1000) < 400, 0.6, 0.0)})) == ()  # it grows into the mask


def abundance(make, samples, step, sharpness):
    v = flat(np.log(sharpness) / 10)
    return make({"Statistics/samples_per_ray": samples, "Statistics/step_size": flat(step), "Statistics/s": v})


@pytest.mark.parametrize(("step", "sharpness", "needed"), [(0.01, 160, 10), (0.001, 160, 100), (0.001, 1600, 10)])
def test_samples_are_judged_by_what_step_and_sharpness_need(make, step, sharpness, needed):
    rule = AbundantSamples()
    found = judged_at(rule, abundance(make, from_step(needed, 25 * needed), step, sharpness), 649)
    assert (found.severity, found.subject) == ("note", "Statistics/samples_per_ray")
    assert f"needs about {needed}" in found.message
    assert rule(abundance(make, from_step(needed, 15 * needed), step, sharpness)) == ()
    assert rule(make({"Statistics/samples_per_ray": flat(1e6)})) == ()


def test_a_sharpness_that_does_not_rise(make):
    rule, name = SharpnessStuck(), "Statistics/s"
    fell = 0.5 - 0.1 * np.arange(COUNT) / COUNT
    found = judged_at(rule, make({name: fell}), 2999)
    assert "began at 148" in found.message
    rose = 0.5 + 0.1 * np.arange(COUNT) / COUNT
    assert rule(make({name: rose})) == ()
    assert len(rule(make(({name: fell}, {"first": 3000})))) == 1  # a run that begins late has a first step of its own
    windows = {"mask": (0, 1999), "normal": (2000, COUNT)}
    plateau = np.concatenate([rose[:2000], flat(rose[2000], 2000)])
    assert rule(make({name: plateau}, windows=windows)) == ()


@pytest.mark.parametrize(("part", "fine", "far"), [("rotation", 12, 40), ("position", 0.6, 1.9)])
def test_poses_that_run_away(make, part, fine, far):
    name, rule = f"Statistics/pose_change_{part}", PosesRunAway()
    looks = {"first": 9, "stride": 10}
    found = judged_at(rule, make(({name: from_step(fine, far, at=50, count=100)}, looks)), 549)
    assert (found.severity, found.subject) == ("warning", name)
    assert rule(make(({name: flat(fine, 100)}, looks))) == ()


EVENTS = {
    "grid_rebuilt": {"cause": "98% of the rays had no samples", "before": 0.3, "after": 0.28, "mended": True},
    "rolled_back": {"cause": "the grid holds no surface", "from": 300, "to": 250, "rate_factor": 0.5},
    "validation_failed": {"what": "mesh", "reason": "MeshError: no surface", "file": "validation_failures/a.txt"},
}


@pytest.mark.parametrize(
    ("rule", "kind", "words"),
    [
        (GridRebuilt(), "grid_rebuilt", ("98% of the rays", "mended it", "30.0%", "28.0%")),
        (RolledBack(), "rolled_back", ("holds no surface", "from 300 steps", "after 250", "0.5 of the schedule's")),
        (ValidationFailed(), "validation_failed", ("mesh failed: MeshError: no surface", "validation_failures/a.txt")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_run_did_to_go_on_is_a_warning_so_that_its_exit_code_says_so(make, rule, kind, words):
    events = [{"kind": kind, "step": step, **EVENTS[kind]} for step in (299, 399)]
    history = make({"Loss/total": flat(1, 500)}, events=events)
    found = rule(history)
    assert [(one.step, one.severity) for one in found] == [(299, "warning"), (399, "warning")]
    assert all(word in found[0].message for word in words)
    assert exit_code(found) == 1
    assert rule(make({"Loss/total": flat(1, 500)})) == ()
    live = Examiner(NORMALS).look(history)
    assert {one.rule for one in live if one.severity != "note"} >= {rule.name}


def test_the_grid_of_a_run_counts_as_full_where_an_object_cannot_fill_it(make):
    (rule,) = (rule for rule in NORMALS if isinstance(rule, OccupancySaturated))
    assert rule(make({"Statistics/occupied_frac": flat(0.6)})) == ()
    assert [found.step for found in rule(make({"Statistics/occupied_frac": flat(0.8)}))] == [507]


def test_the_warning_signs_of_the_guide_are_seen(make):
    """Normal loss 0 past its start, a loss beyond 100."""
    windows = {"mask": (0, 3999), "normal": (2500, 3999)}
    zero = make(
        {"Loss/component_mask": flat(0.1, 4000)},
        ({"Loss/component_normal": flat(0, 1500)}, {"first": 2500}),
        windows=windows,
    )
    assert [(one.subject, one.step) for one in DeclaredButZero()(zero)] == [("normal", 2699)]
    jump = from_step(1.0, 150.0, at=500)
    (found,) = LossJump()(make({"Loss/total": jump}))
    assert found.severity == "error"
