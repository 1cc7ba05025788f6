"""What no run can be trained with is refused, by the flag's name, with what came and what was wanted."""

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
        (FieldOptions, {"levels": 0}, "--levels must be at least 1, got 0"),
        (FieldOptions, {"radius": 1.0}, "--radius must be above 0 and below 1, got 1.0"),
        (FieldOptions, {"first_levels": -1.0}, "--first-levels must be 0 or more, got -1.0"),
        (FieldOptions, {"first_levels": 9.0}, "--first-levels 9 of --levels 8"),
        (FieldOptions, {"base_resolution": 300}, "resolutions from 300 to 223: wanted first <= levels, base <= finest"),
        (RenderOptions, {"first_step": 0.0}, "--first-step must be a finite number above 0, got 0.0"),
        (RenderOptions, {"grid_sharpness": float("inf")}, "--grid-sharpness must be a finite number above 0, got inf"),
        (RenderOptions, {"unseen": 1.0}, "--unseen must be a share below 1, got 1.0"),
        (RenderOptions, {"grid_threshold": 0.5}, "--grid-threshold must be above 0 and below 0.5, got 0.5"),
        (RenderOptions, {"empty_samples": -1}, "--empty-samples must be 0 or more, got -1"),
        (RenderOptions, {"chunk": 0}, "--chunk must be at least 1, got 0"),
        (RenderOptions, {"patch": 2}, "--patch is 2 with --gradient-method ad: wanted an odd number"),
        (RenderOptions, {"gradient_method": "dfd"}, "--patch is 1 with --gradient-method dfd: .* 3 or more for dfd"),
        (RenderOptions, {"most_sharpness": 400.0}, "--most-sharpness 400 bounds .* must not be below them"),
        (RayOptions, {"rays": 0}, "--rays must be at least 1, got 0"),
        (RayOptions, {"inside": 1.0}, "--inside must be above 0 and below 1, got 1.0"),
        (RayOptions, {"views_per_step": -1}, "--views-per-step must be 0 or more, got -1"),
        (RayOptions, {"rays_per_view": 9, "sample_budget": 9}, "--rays-per-view 9 .* --sample-budget 9 .* one of the"),
        (PoseOptions, {"ring_radius": 1.0}, "--ring-radius must be above 1, outside the scene's sphere, got 1.0"),
        (PoseOptions, {"ring_angle": 90.0}, "--ring-angle must be between -90 and 90 degrees, got 90.0"),
        (PoseOptions, {"rotation_noise": -1.0}, "--rotation-noise must be 0 or more, got -1.0"),
        (NormalsRateOptions, {"lr": 0.0}, "--lr must be a finite number above 0, got 0.0"),
        (NormalsRateOptions, {"lr_table": float("nan")}, "--lr-table must be a finite number above 0, got nan"),
        (NormalsRateOptions, {"last_share": 1.5}, "--last-share must be a fraction from 0 to 1, got 1.5"),
        (NormalsRateOptions, {"clip": -1.0}, "--clip must be 0 or more, got -1.0"),
        (TermOptions, {"point_share": 0.0}, "--point-share must be above 0, at most 1, got 0.0"),
        (RecoveryOptions, {"collapse_patience": 0}, "--collapse-patience must be at least 1, got 0"),
        (RecoveryOptions, {"collapse_share": 1.0}, "--collapse-share must be a share below 1, got 1.0"),
        (NormalsConfig, {"steps": 0}, "--steps must be at least 1, got 0"),
        (NormalsConfig, {"views": 2}, "--views must be 3 or more, got 2"),
        (NormalsConfig, {"held_out": 1}, r"--held-out must be 0 \(none\), or 2 or more, got 1"),
        (NormalsConfig, {"longer_side": 0}, "--longer-side must be at least 1, got 0"),
        (NormalsConfig, {"mesh_at": -1}, "--mesh-at must be 0 or more, got -1"),
        (NormalsConfig, {"stages": ("fit@0 colour=1",)}, "stage 'fit@0 colour=1' is not NAME@START"),
        (NormalsConfig, {"stages": ()}, r"stages start at \[\]"),
        (NormalsConfig, {"stages": ("fit@0 mask=1", "late@10+20 mask=2"), "nominal": 20}, "ramps over 20 .* lasts 10"),
    ],
)
def test_settings_out_of_their_bounds_are_refused(group, changes, message):
    with pytest.raises(ValueError, match=message):
        group(**changes)


def test_the_guides_values_are_the_defaults():
    config = NormalsConfig()
    assert (config.steps, config.nominal, config.mesh_at, config.checkpoint_interval) == (30_000, 30_000, 5000, 2500)
    field, rendering, rates = config.sdf, config.rendering, config.rates
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
