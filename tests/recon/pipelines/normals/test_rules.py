"""Rules of normals runs: each finds a planted fault, and is silent on a healthy run."""

import numpy as np
import pytest

from fieldwatch.health import Examiner, exit_code
from fieldwatch.recon.pipelines.normals.rules import (
    NORMALS_RULES,
    AbundantSamples,
    GridRebuilt,
    MapsDisagree,
    NormalsWorseThanNothing,
    OccupancySaturated,
    PosesRunAway,
    RayStarvation,
    SharpnessStuck,
    StarvedRays,
)

COUNT = 4000


def flat(value, count=1000):
    return np.full(count, float(value))


def from_step(before, after, at=600, count=1000):
    return np.where(np.arange(count) < at, before, after)


def judged_at(rule, history, step):
    """Return the only finding, after checking that it is absent one recording earlier."""
    (found,) = rule(history)
    assert found.step == step
    history.discard(step)
    assert rule(history) == ()
    return found


def test_rays_that_find_nothing_for_long(make):
    name = "Statistics/starved_share"
    rule = StarvedRays()
    found = judged_at(rule, make({name: from_step(0.02, 0.4)}), 699)
    assert (found.severity, found.subject) == ("warning", name)
    assert "40% of the rays" in found.message
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
    rule = SharpnessStuck()
    name = "Statistics/s"
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
    name = f"Statistics/pose_change_{part}"
    rule = PosesRunAway()
    looks = {"first": 9, "stride": 10}
    found = judged_at(rule, make(({name: from_step(fine, far, at=50, count=100)}, looks)), 549)
    assert (found.severity, found.subject) == ("warning", name)
    assert rule(make(({name: flat(fine, 100)}, looks))) == ()


@pytest.mark.parametrize(("smooth", "noise", "said"), [(3.0, 0.1, True), (0.8, 8.0, True), (0.8, 0.1, False)])
def test_maps_are_trusted_to_the_part_of_their_errors_that_does_not_average_out(make, smooth, noise, said):
    values = {"Eval/smooth_error": smooth, "Eval/median_error": 7.0, "Eval/map_noise": noise}
    looks = {"first": 9, "stride": 10}
    found = MapsDisagree()(make(({name: flat(value, 20) for name, value in values.items()}, looks)))
    assert [one.severity for one in found] == ["note"] * said
    for one in found:
        assert (one.step, one.subject) == (199, "Eval/smooth_error")
        assert f"7.0 degrees (median), with {noise:.1f} degrees" in one.message
        assert f"about {smooth:.1f} degrees" in one.message
        assert ("single one to about 10 degrees" in one.message) == (noise == 8.0)


@pytest.mark.parametrize(
    ("smooth", "noise", "turned", "said"),
    [
        ((11.0, 12.2, 12.5), 0.4, 0.0, "slopes"),
        ((9.6, 10.6, 11.0), 0.7, 23.0, "--pose-start dataset"),
        ((13.0, 11.0, 10.0), 0.4, 0.0, ""),
        ((11.0, 12.2, 12.5), 5.0, 0.0, ""),
        ((5.0, 6.0, 6.0), 0.4, 0.0, ""),
    ],
    ids=["too flat", "other poses", "still forming", "noise", "fair maps"],
)
def test_maps_that_contradict_the_surface_whatever_the_training_does_are_a_warning(make, smooth, noise, turned, said):
    values = {
        "Eval/smooth_error": np.array(smooth),
        "Eval/median_error": np.array(smooth) + 3,
        "Eval/map_noise": flat(noise, 3),
        "Eval/pose_rotation": flat(turned, 3),
    }
    plan = {"kind": "plan", "step": 0, "steps": 90}
    (one,) = MapsDisagree()(make({"Loss/total": flat(1, 90)}, (values, {"first": 29, "stride": 30}), events=[plan]))
    assert one.severity == ("warning" if said else "note")
    assert said in one.remedy
    assert not said or "contradict" in one.message


def test_a_grid_that_was_rebuilt_is_a_warning_each_time(make):
    facts = {"cause": "98% of the rays had no samples", "before": 0.3, "after": 0.28, "mended": True}
    events = [{"kind": "grid_rebuilt", "step": step, **facts} for step in (299, 399)]
    history = make({"Loss/total": flat(1, 500)}, events=events)
    found = GridRebuilt()(history)
    assert [(one.step, one.severity) for one in found] == [(299, "warning"), (399, "warning")]
    assert [word for word in ("98%", "30.0%", "28.0%") if word not in found[0].message] == []
    assert exit_code(found) == 1
    assert GridRebuilt()(make({"Loss/total": flat(1, 500)})) == ()
    assert "GridRebuilt" in {one.rule for one in Examiner(NORMALS_RULES).examine(history) if one.severity != "note"}


def test_the_grid_of_a_run_counts_as_full_where_an_object_cannot_fill_it(make):
    (rule,) = (rule for rule in NORMALS_RULES if isinstance(rule, OccupancySaturated))
    assert rule(make({"Statistics/occupied_frac": flat(0.6)})) == ()
    assert [found.step for found in rule(make({"Statistics/occupied_frac": flat(0.8)}))] == [507]


EMPTY_RAYS = np.where(np.arange(600) < 300, 3.2, 0.0)


def test_rays_without_samples_are_an_error(make):
    name = "samples_per_ray"
    rule = RayStarvation()
    found = judged_at(rule, make({name: EMPTY_RAYS}), 307)
    assert (found.severity, found.subject) == ("error", name)
    assert "occupancy grid" in found.remedy
    assert rule(make({name: np.where((np.arange(600) >= 300) & (np.arange(600) < 305), 0.0, 3.2)})) == ()


def test_a_full_grid_is_a_warning_after_its_warm_up(make):
    name = "occupied_frac"
    rule = OccupancySaturated()
    found = judged_at(rule, make({name: flat(1, 600)}), 507)
    assert (found.severity, found.subject) == ("warning", name)
    assert "occupancy threshold" in found.remedy
    assert rule(make({name: np.where(np.arange(600) < 400, 1.0, 0.03)})) == ()


@pytest.mark.parametrize(("angle", "found", "named"), [(112.0, 1, True), (60.0, 1, False), (24.0, 0, False)])
def test_normals_that_point_away_name_the_axes(make, angle, found, named):
    events = [
        {"kind": "plan", "step": 0, "steps": 100},
        {"kind": "baselines", "step": 0, "baselines": {"Eval/mae": {"value": 57.3, "better": "lower"}}},
    ]
    history = make({"Loss/total": flat(1.0, 100)}, ({"Eval/mae": [angle]}, {"first": 99}), events=events)
    findings = NormalsWorseThanNothing()(history)
    assert [(one.rule, one.subject) for one in findings] == [("WorseThanNothing", "Eval/mae")] * found
    assert any("axes" in one.message for one in findings) is named
    assert all("--axes" in one.remedy for one in findings)
