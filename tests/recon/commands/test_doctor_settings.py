"""Settings far from the preset's are named with their flag and the preset's value."""

from dataclasses import replace

import pytest

from fieldwatch.recon.commands.doctor_settings import setting_findings
from fieldwatch.recon.commands.normals.job import MAGNITUDES as OF_NORMALS
from fieldwatch.recon.commands.normals.job import inactive_parts, stage_findings
from fieldwatch.recon.commands.splats.job import MAGNITUDES, low_cap
from fieldwatch.recon.pipelines.normals import PRESETS as NORMALS
from fieldwatch.recon.pipelines.splats import PRESETS


def spoilt(**rates):
    preset = PRESETS["default"]()
    return replace(preset, rates=replace(preset.rates, **rates)), preset


@pytest.mark.parametrize(("value", "certain"), [(1.0, True), (0.05, False), (5e-5, True)])
def test_a_far_rate_is_named_with_its_flag_and_the_usual_value(value, certain):
    (finding,) = setting_findings(*spoilt(lr_scales=value), MAGNITUDES)
    assert "--lr-scales" in finding.name
    assert "--lr-scales 0.005" in finding.remedy
    assert finding.certain == certain


def test_the_farthest_setting_comes_first():
    names = [each.name.split()[-1] for each in setting_findings(*spoilt(lr_scales=0.5, lr_factor=10.0), MAGNITUDES)]
    assert names == ["--lr-scales", "--lr-factor"]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_and_ordinary_choices_are_not_named(name):
    preset = PRESETS[name]()
    assert setting_findings(preset, PRESETS["default"](), MAGNITUDES) == []
    assert setting_findings(*spoilt(lr_scales=0.015, lr_factor=3.0), MAGNITUDES) == []
    assert setting_findings(preset, None, MAGNITUDES) == []


def test_a_value_that_the_preset_leaves_open_is_compared_with_what_it_stands_for():
    preset = PRESETS["default"]()
    config = replace(preset, growth_options=replace(preset.growth_options, growth_pull=2e-5))
    (finding,) = setting_findings(config, preset, MAGNITUDES, instead={"growth_pull": 2e-4})
    assert "--growth-pull 0.0002" in finding.remedy


def test_a_term_of_the_stages_is_named():
    preset = NORMALS["default"]()
    (finding,) = stage_findings(replace(preset, stages=("fit@0 normal=1 mask=1 eikonal=100",)), preset)
    assert "eikonal" in finding.message
    assert "--stages" in finding.remedy
    assert stage_findings(preset, preset) == []


@pytest.mark.parametrize(("step", "count"), [(1.0, 1), (0.05, 0)])
def test_samples_that_are_far_apart_are_named(step, count):
    preset = NORMALS["default"]()
    config = replace(preset, rendering=replace(preset.rendering, first_step=step))
    names = [each.name.split()[-1] for each in setting_findings(config, preset, OF_NORMALS)]
    assert names == ["--first-step"] * count


@pytest.mark.parametrize(("by", "certain"), [(30_000, None), (45_000, False), (3_000_000, True)])
def test_levels_that_begin_after_the_end_are_named(by, certain):
    preset = NORMALS["default"]()
    found = inactive_parts(replace(preset, sdf=replace(preset.sdf, first_levels=1.0, levels_by=by)))
    assert [(each.name.split()[-1], each.certain) for each in found] == (
        [] if certain is None else [("--levels-by", certain)]
    )
    assert all(f"--levels-by {preset.nominal // 2}" in each.remedy for each in found)


@pytest.mark.parametrize(
    ("changes", "certain"),
    [
        ({}, None),
        ({"pose_start": "noisy"}, True),
        ({"pose_start": "noisy", "rotation_noise": 0.5}, False),
        ({"pose_start": "ring"}, True),
        ({"pose_start": "noisy", "learn_rotation": True}, None),
    ],
)
def test_wrong_poses_that_nothing_corrects_are_named(changes, certain):
    preset = NORMALS["default"]()
    found = inactive_parts(replace(preset, poses=replace(preset.poses, **changes)))
    assert [each.certain for each in found] == ([] if certain is None else [certain])


@pytest.mark.parametrize("name", NORMALS)
def test_no_preset_leaves_out_a_part(name):
    assert inactive_parts(NORMALS[name]()) == []


@pytest.mark.parametrize(
    ("cap", "points", "certain"),
    [(40, 400, False), (40, 5000, True), (50_000, 200_000, None), (None, 5000, None), (1000, 0, None)],
)
def test_a_limit_that_leaves_out_most_points_is_named(cap, points, certain):
    found = low_cap(cap, points)
    assert [finding.certain for finding in found] == ([] if certain is None else [certain])
    assert all("--growth-cap" in finding.message for finding in found)
