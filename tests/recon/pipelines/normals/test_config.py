"""Invalid settings raise errors that name the flag, the bounds and the value."""

import re
from pathlib import Path

import pytest

from fieldwatch.recon.pipelines.normals.config import (
    FieldOptions,
    NormalsConfig,
    NormalsRateOptions,
    PoseOptions,
    RayOptions,
    RecoveryOptions,
    RenderOptions,
    TermOptions,
)


@pytest.mark.parametrize(
    ("group", "changes", "message"),
    [
        (FieldOptions, {"levels": 0}, "--levels .*at least 1"),
        (FieldOptions, {"radius": 1.0}, "--radius .*greater than 0 and less than 1"),
        (FieldOptions, {"first_levels": -1.0}, "--first-levels .*0 or more"),
        (FieldOptions, {"first_levels": 9.0}, "--first-levels must be at most --levels .* 9 of 8"),
        (FieldOptions, {"base_resolution": 300}, "at most --finest-resolution, got .* 300 to 223"),
        (RenderOptions, {"first_step": 0.0}, "--first-step .*a finite number above 0"),
        (RenderOptions, {"grid_sharpness": float("inf")}, "--grid-sharpness .*inf"),
        (RenderOptions, {"unseen": 1.0}, "--unseen .*at least 0 and less than 1"),
        (RenderOptions, {"grid_threshold": 0.5}, "--grid-threshold .*greater than 0 and less than 0.5"),
        (RenderOptions, {"empty_samples": -1}, "--empty-samples .*0 or more"),
        (RenderOptions, {"chunk": 0}, "--chunk .*at least 1"),
        (RenderOptions, {"patch": 2}, "--patch must be odd, .* got --patch 2 with --gradient-method ad"),
        (RenderOptions, {"gradient_method": "dfd"}, "at least 3 for dfd, .* got --patch 1 with --gradient-method dfd"),
        (RenderOptions, {"most_sharpness": 400.0}, "--most-sharpness must be at least .* got 400"),
        (RayOptions, {"rays": 0}, "--rays .*at least 1"),
        (RayOptions, {"inside": 1.0}, "--inside .*greater than 0 and less than 1"),
        (RayOptions, {"views_per_step": -1}, "--views-per-step .*-1"),
        (RayOptions, {"rays_per_view": 9, "sample_budget": 9}, "--rays-per-view 9 .* --sample-budget 9 .* only one"),
        (PoseOptions, {"ring_radius": 1.0}, "--ring-radius .*greater than 1, outside the scene's sphere"),
        (PoseOptions, {"ring_angle": 90.0}, "--ring-angle .*between -90 and 90 degrees"),
        (PoseOptions, {"rotation_noise": -1.0}, "--rotation-noise .*-1.0"),
        (NormalsRateOptions, {"lr": 0.0}, "--lr .*a finite number above 0"),
        (NormalsRateOptions, {"lr_table": float("nan")}, "--lr-table .*nan"),
        (NormalsRateOptions, {"last_share": 1.5}, "--last-share .*from 0 to 1"),
        (NormalsRateOptions, {"clip": -1.0}, "--clip .*0 or more"),
        (TermOptions, {"point_share": 0.0}, "--point-share .*greater than 0 and at most 1"),
        (RecoveryOptions, {"collapse_patience": 0}, "--collapse-patience .*at least 1"),
        (RecoveryOptions, {"collapse_share": 1.0}, "--collapse-share .*at least 0 and less than 1"),
        (NormalsConfig, {"steps": 0}, "--steps .*at least 1"),
        (NormalsConfig, {"views": 2}, "--views .*at least 3"),
        (NormalsConfig, {"held_out": 1}, r"--held-out .*0 \(none\) or at least 2"),
        (NormalsConfig, {"longer_side": 0}, "--longer-side .*0"),
        (NormalsConfig, {"mesh_at": -1}, "--mesh-at .*0 or more"),
        (NormalsConfig, {"stages": ("fit@0 color=1",)}, "stage 'fit@0 color=1' is not NAME@START"),
        (NormalsConfig, {"stages": ()}, r"at least one stage, .* got starts \[\]"),
        (
            NormalsConfig,
            {"stages": ("fit@0 mask=1", "late@10+20 mask=2"), "nominal": 20},
            "ramp of 20 iterations in a stage of 10",
        ),
    ],
)
def test_settings_out_of_their_bounds_are_refused(group, changes, message):
    with pytest.raises(ValueError, match=message):
        group(**changes)


def test_the_guides_values_are_the_defaults():
    config = NormalsConfig()
    assert (config.steps, config.nominal, config.mesh_at, config.checkpoint_interval) == (30_000, 30_000, 5000, 2500)
    field = config.sdf
    rendering = config.rendering
    rates = config.rates
    assert (field.levels, field.base_resolution, field.finest_resolution, field.table_bits) == (8, 32, 223, 15)
    assert (rendering.first_step, rendering.last_step, rendering.grid_resolution) == (1e-2, 1e-3, 128)
    assert (rendering.grid_threshold, rendering.grid_sharpness, rendering.grid_every) == (0.1, 80.0, 8)
    assert (rendering.chunk, rendering.alpha_threshold) == (65_536, 0.0)
    assert (rates.lr, rates.warm_up, rates.last_share, rates.clip, rates.clip_poses) == (5e-4, 500, 0.05, 1.0, 0.1)
    assert [stage.name for stage in config.parsed_stages] == [
        "warm-up", "mask-depth", "normals", "depth-out", "refinement",
    ]  # fmt: skip


def test_every_field_is_documented():
    for group in (
        FieldOptions,
        RenderOptions,
        RayOptions,
        PoseOptions,
        NormalsRateOptions,
        TermOptions,
        RecoveryOptions,
    ):
        documented = set(re.findall(r"^ {8}(\w+):", group.__doc__, re.MULTILINE))
        assert documented == set(group.__dataclass_fields__), group.__name__


def test_poses_are_learned_if_any_part_of_them_is():
    assert not PoseOptions().learned
    assert PoseOptions(learn_rotation=True).learned
    assert PoseOptions(learn_translation=True).learned


def test_a_run_is_called_after_its_folder():
    assert NormalsConfig().name == "built-in object"
    assert NormalsConfig(data=Path("maps/bear/")).name == "bear"
