"""The schedule: values of the preset `pmni` in a run of nominal length and in other lengths."""

import math
import re

import pytest

from fieldwatch.recon.pipelines.normals.config import (
    FieldOptions,
    NormalsConfig,
    NormalsRateOptions,
    PoseOptions,
    RayOptions,
    RenderOptions,
)
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule


def plan(steps=30_000, **changes):
    return NormalsSchedule(config=NormalsConfig(steps=steps, **changes))


STEPS = [30_000, 3_000, 60_000, 1_200]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("iteration", "factor"), [(0, 0), (250, 0.5), (500, 1), (15_250, 0.525), (30_000, 0.05)])
def test_rates_warm_up_and_fall_by_a_cosine(steps, iteration, factor):
    tested = plan(steps)
    assert tested.rate_factor(tested.step_of(iteration)) == pytest.approx(factor, abs=1e-9)


def test_rates_without_a_warm_up_and_after_the_end():
    tested = plan(100, nominal=100, stages=("a@0 mask=1",), rates=NormalsRateOptions(warm_up=0, last_share=0.25))
    assert tested.rate_factor(0) == 1
    assert tested.rate_factor(50) == pytest.approx(0.625)
    assert tested.rate_factor(400) == pytest.approx(0.25)
    assert plan(10, nominal=100, stages=("a@0 mask=1",), rates=NormalsRateOptions(warm_up=100)).rate_factor(9) == 0.9


@pytest.mark.parametrize("steps", STEPS)
def test_the_march_step_shrinks_by_one_factor_a_step(steps):
    tested = plan(steps)
    at = [tested.march_step(step) for step in (0, steps // 2, steps)]
    assert at == pytest.approx([1e-2, 1e-2 * math.sqrt(0.1), 1e-3])
    assert tested.march_step(1) / tested.march_step(0) == pytest.approx(0.1 ** (1 / steps))


@pytest.mark.parametrize("steps", STEPS)
def test_levels_come_in_one_after_the_other(steps):
    seeds = plan(steps)
    at = [seeds.levels(seeds.step_of(i)) for i in (0, 1750, 3500, 7000, 29_000)]
    assert at == pytest.approx([0, 2, 4, 8, 8], abs=8 / 7000 * 30_000 / steps)
    later = plan(steps, sdf=FieldOptions(first_levels=4.0, levels_by=15_000))
    assert [later.levels(later.step_of(i)) for i in (0, 7500, 15_000)] == pytest.approx([4, 6, 8])
    assert plan(steps, sdf=FieldOptions(first_levels=2.0, levels_by=0)).levels(0) == 8


def test_the_scheduled_sharpness_rises_by_one_factor_a_step():
    options = RenderOptions(sharpness="scheduled", first_sharpness=20.0, last_sharpness=500.0)
    tested = plan(100, rendering=options)
    assert [tested.sharpness(step) for step in (0, 50, 100)] == pytest.approx([20, 100, 500])


@pytest.mark.parametrize("steps", STEPS)
def test_the_weights_of_pmni_at_any_length(steps):
    tested = plan(steps)
    assert "normal" not in tested.weights(tested.step_of(2500))
    assert tested.weights(tested.step_of(3750))["normal"] == pytest.approx(0.5)
    assert [tested.weights(tested.step_of(i))["depth"] for i in (5000, 10_000)] == [1, 1]
    assert tested.weights(tested.step_of(5000))["normal"] == 1
    assert "depth" not in tested.weights(tested.step_of(20_000))


SEEDS_IN_FEW = tuple(
    re.sub(r"(?<=[@+])\d+", lambda found: str(int(found[0]) // 50), stage) for stage in NormalsConfig().stages
)
"""The stages of the preset `pmni` in 600 iterations."""


@pytest.mark.parametrize(("steps", "options"), [(600, {"nominal": 600, "stages": SEEDS_IN_FEW}), (600, {}), (60, {})])
def test_windows_and_phases_at_any_length(steps, options):
    tested = plan(steps, **options)

    def at(iteration):
        return iteration * steps // 30_000

    windows = {name: (window.first, window.last) for name, window in tested.windows.items()}
    assert windows == {
        "normal": (at(2500) + 1, steps - 1),
        "depth": (0, at(20_000) - 1),
        "mask": (0, steps - 1),
        "eikonal": (0, steps - 1),
    }
    phases = [(phase.name, phase.window.first, phase.window.last) for phase in tested.phases]
    starts = [at(iteration) for iteration in (0, 500, 2500, 10_000, 20_000, 30_000)]
    names = ["warm-up", "mask-depth", "normals", "depth-out", "refinement"]
    assert phases == [(n, a, b - 1) for n, a, b in zip(names, starts[:-1], starts[1:], strict=True)]


def test_phases_that_hold_no_step_are_left_out():
    stages = ("a@0 mask=1", "b@1 mask=1", "c@50 mask=1", "d@100 mask=1")
    tested = plan(4, nominal=100, stages=stages)
    assert [(p.name, p.window.first, p.window.last) for p in tested.phases] == [("a", 0, 0), ("b", 1, 1), ("c", 2, 3)]
    assert [tested.iteration(step) for step in (0, 1, 4)] == [0, 25, 100]
    tiny = plan(2, nominal=100, stages=("a@0 mask=1", "b@60 mask=1", "c@99 mask=1"))
    assert [p.name for p in tiny.phases] == ["a"]


def test_poses_are_learned_in_their_window_only():
    learned = PoseOptions(learn_rotation=True, poses_from=10_000, poses_until=20_000)
    tested = plan(300, poses=learned)
    assert [step for step in range(300) if tested.learns_poses(step)] == list(range(100, 200))
    to_the_end = plan(300, poses=PoseOptions(learn_translation=True, poses_from=29_900))
    assert [step for step in range(300) if to_the_end.learns_poses(step)] == [299]
    assert not plan(300).learns_poses(150)


def test_the_rate_of_poses_halves():
    tested = plan(300)
    assert [tested.pose_rate(step) for step in (0, 99, 100, 299)] == [1e-3, 1e-3, 5e-4, 5e-4]


@pytest.mark.parametrize(("steps", "last"), [(30_000, 499), (3000, 49), (60, 0)])
def test_rays_are_limited_in_the_warm_up_only(steps, last):
    tested = plan(steps, rays=RayOptions(rays_per_view=512, warm_up_rays=256))
    assert [tested.most_rays_per_view(step) for step in (0, last, last + 1)] == [256, 256, None]
    assert plan(steps).most_rays_per_view(0) is None
    assert plan(steps, rays=RayOptions(warm_up_rays=256, warm_up_rays_until=0)).most_rays_per_view(0) is None


@pytest.mark.parametrize(("steps", "interval"), [(3000, 5000), (1100, 2500), (7, 5000), (40, 9000)])
def test_what_is_due_every_so_many_iterations_comes_that_often(steps, interval):
    tested = plan(steps)
    due = [done for done in range(1, steps + 1) if tested.due(interval, done)]
    assert due == [tested.step_of(interval * number) for number in range(1, 30_000 // interval + 1)]
    assert not any(tested.due(0, done) for done in range(1, 5))
