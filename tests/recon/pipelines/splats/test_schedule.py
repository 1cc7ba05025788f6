"""Conversion of nominal iterations to steps: windows, phases, notes and rejected settings."""

from dataclasses import replace
from typing import Any

import pytest

from fieldwatch.measure import Window
from fieldwatch.recon.pipelines.splats import DensificationOptions, SplatsConfig, SurfaceOptions
from fieldwatch.recon.pipelines.splats.schedule import NothingToTrainError, make_plan

PLAIN = SplatsConfig(schedule_scale=1.0)


def config(**changed: Any) -> SplatsConfig:
    return replace(PLAIN, **changed)


def phases(plan: Any) -> dict[str, tuple[int, int]]:
    return {phase.name: (phase.window.first, phase.window.last) for phase in plan.phases}


def test_from_photos_every_stage_lies_where_the_papers_have_it() -> None:
    plan = make_plan(config(regularization="dn_consistency"), None)

    assert (plan.first, plan.total) == (0, 15_000)
    assert phases(plan) == {"3dgs": (0, 6999), "entropy": (7000, 8999), "surface": (9000, 14_999)}
    assert plan.windows["entropy_regularization"] == Window(7000, 8999)
    assert plan.windows["depth_normal_consistency"] == Window(7000, 14_999)
    assert plan.windows["sdf_density"] == plan.windows["better_normal"] == Window(9000, 14_999)
    assert plan.prune_after == 8999
    assert plan.densification is not None
    assert plan.densification.last == 7000
    assert plan.export_after == 6999
    assert plan.exported_as == 7000


def test_the_scale_shortens_everything_alike() -> None:
    plan = make_plan(config(regularization="dn_consistency", schedule_scale=0.02), 7000)

    assert (plan.first, plan.total) == (140, 300)
    assert plan.windows["entropy_regularization"] == Window(140, 179)
    assert plan.windows["sdf_density"] == Window(180, 299)
    assert plan.prune_after == 179
    assert plan.densification is None
    assert plan.tests == {140, 200, 300}
    assert any("0.02" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("regularization", "terms"),
    [
        ("planar", {"rendering", "depth_normal_consistency", "flatness"}),
        ("density", {"rendering", "entropy_regularization", "sdf_density", "better_normal", "flatness"}),
        ("sdf", {"rendering", "entropy_regularization", "sdf_estimation", "better_normal", "flatness"}),
        ("none", {"rendering"}),
    ],
)
def test_each_regularization_has_its_terms(regularization: Any, terms: set[str]) -> None:
    surface = SurfaceOptions(flatness_weight=1.0)

    assert set(make_plan(config(regularization=regularization, surface=surface), None).windows) == terms


def test_options_of_the_density_terms_act_with_them() -> None:
    surface = SurfaceOptions(samples_on_surface_weight=0.2, smoothing_weight=1.0, better_normal_weight=0.0)
    windows = make_plan(config(regularization="density", surface=surface), None).windows

    assert windows["samples_on_surface"] == windows["smoothing"] == Window(9000, 14_999)
    assert "better_normal" not in windows


def test_the_seeds_quick_command_counts_from_the_loaded_iteration() -> None:
    plan = make_plan(config(coarse_iterations=200, test_iterations=(100, 150, 200)), 7000)

    assert (plan.first, plan.total) == (7000, 7200)
    assert plan.tests == {7100, 7150, 7200}
    assert "from the loaded" in plan.notes[0]


def test_the_seeds_full_command_evaluates_at_the_loaded_iteration_too() -> None:
    plan = make_plan(config(coarse_iterations=10_000, test_iterations=(7000, 8000, 9000, 10_000)), 7000)

    assert (plan.first, plan.total) == (7000, 10_000)
    assert plan.tests == {7000, 8000, 9000, 10_000}


def test_a_run_of_no_steps_is_refused_with_the_way_out() -> None:
    with pytest.raises(NothingToTrainError, match="--schedule-origin relative"):
        make_plan(config(iteration_to_load=30_000), 30_000)
    with pytest.raises(NothingToTrainError, match=r"--coarse-iterations 10 .*--schedule-scale 0\.01 .*one step"):
        make_plan(config(coarse_iterations=10, schedule_scale=0.01), None)


def test_a_checkpoint_behind_the_schedule_that_nobody_chose_is_gone_on_from() -> None:
    plan = make_plan(config(), 30_000)

    assert (plan.first, plan.total) == (30_000, 38_000)
    assert any("30000" in note and "--schedule-origin relative" in note for note in plan.notes)


def test_relative_windows_begin_at_the_loaded_iteration() -> None:
    relative = config(schedule_origin="relative", test_iterations=(15_000,), regularization="density")
    plan = make_plan(relative, 30_000)

    assert (plan.first, plan.total) == (30_000, 38_000)
    assert phases(plan) == {"entropy": (30_000, 31_999), "surface": (32_000, 37_999)}
    assert plan.prune_after == 31_999
    assert plan.tests == {38_000}


def test_a_checkpoint_from_behind_the_prune_is_told_what_it_skips() -> None:
    late = config(coarse_iterations=15_000)
    plan = make_plan(late, 12_000)

    assert "entropy_regularization" not in plan.windows
    assert plan.prune_after is None
    assert any("--prune-on-load" in note for note in plan.notes)
    assert any("the start" in note for note in make_plan(replace(late, prune_on_load=True), 12_000).notes)
    assert not make_plan(late, 8999).notes


def test_growth_ends_with_the_photos_alone_where_no_surface_is_wanted() -> None:
    growth = DensificationOptions(growth_until=12_000)
    alone = make_plan(config(regularization="none", growth_options=growth), None)
    surface = make_plan(config(growth_options=growth), None)

    assert alone.densification is not None
    assert surface.densification is not None
    assert (alone.densification.last, surface.densification.last) == (12_000, 7000)
    assert phases(alone) == {"3dgs": (0, 14_999)}
    assert make_plan(config(growth_options=DensificationOptions(growth="none")), None).densification is None


def test_mcmc_growth_has_its_terms_while_it_grows() -> None:
    windows = make_plan(config(growth_options=DensificationOptions(growth="mcmc")), None).windows

    assert windows["opacity"] == windows["scale"] == Window(0, 6999)


def test_growth_steps_never_crowd_on_short_schedules() -> None:
    growth = make_plan(config(schedule_scale=0.05), None).densification

    assert growth is not None
    assert growth.every == 20


def test_searches_of_neighbors_start_beside_the_density_terms_only() -> None:
    plan = make_plan(config(regularization="density"), None)

    assert [step for step in range(8000, 10_600) if plan.searches_after(step)] == [9499, 9999, 10_499]
    assert not any(make_plan(PLAIN, None).searches_after(step) for step in range(15_000))


@pytest.mark.parametrize(
    "wrong",
    [
        {"prune_at": 7000},
        {"entropy_weight": -0.1},
        {"neighbors": 0},
        {"prune_below": 1.5},
        {"density_weight": float("nan")},
    ],
)
def test_settings_out_of_bounds_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"--{next(iter(wrong)).replace('_', '-')} "):
        SurfaceOptions(**wrong)
