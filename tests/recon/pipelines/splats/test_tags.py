"""Metrics and dashboard: all tags of the original tool exist, and the dashboard shows only declared ones."""

import re

import pytest

from fieldwatch.recon.pipelines.splats.layout import SPLATS_LAYOUT
from fieldwatch.recon.pipelines.splats.rules import SPLATS_RULES
from fieldwatch.recon.pipelines.splats.tags import SPLATS_METRICS
from fieldwatch.record import TOOLKIT, Catalogue

EVERYTHING = Catalogue((*TOOLKIT, *SPLATS_METRICS))
# fmt: off
ORIGINAL = (
    "Training_Guide", "Loss/total", "Loss/component_rendering", "Loss/component_entropy_regularization",
    "Loss/component_depth_normal_consistency", "Loss/component_sdf_density", "Loss/component_sdf_estimation",
    "Time/minutes_per_iter", "Performance/iterations_per_sec", "Performance/eta_minutes", "VRAM/allocated_GB",
    "VRAM/reserved_GB", "VRAM/percent", "System/RAM_percent", "System/CPU_percent", "Stats/n_active_gaussians",
    "Stats/n_gaussians_sdf_sampling", "Histograms/scales", "Histograms/opacities", "Test/loss", "Test/ssim",
    "Test/lpips", "Test/render_time_ms", "Test/num_gaussians_K", "TensorProfiling/Tensor_Category/gradients_MB",
    "TensorProfiling/Tensor_DType/float32_MB", "TensorProfiling/Large_Tensors/count",
    "TensorProfiling/Large_Tensors/total_MB", "TensorProfiling/Tensor_Count/total",
    "TensorProfiling/fragmentation_percent",
    *(f"Stats/{part}_{moment}" for part in ("points", "scales", "quaternions", "sh_dc", "sh_rest", "opacities")
      for moment in ("mean", "std")),
)
# fmt: on
"""The tags of the original SuGaR scripts; their PSNR, which was no PSNR, left out."""


@pytest.mark.parametrize("name", ORIGINAL)
def test_every_tag_of_the_original_tool_is_declared(name):
    assert EVERYTHING.require(name).meaning


def test_the_broken_psnr_is_replaced_and_the_missing_term_is_there():
    assert "Test/psnr" in EVERYTHING
    assert "Loss/component_better_normal" in EVERYTHING
    assert not any("BUGGY" in metric.name for metric in EVERYTHING)


def test_a_tag_of_ours_wins_over_a_pattern_of_the_toolkit():
    assert EVERYTHING.require("Time/minutes_per_iter").unit == "min"
    assert EVERYTHING.require("Time/render").unit == "ms"


def chart_patterns(name):
    patterns = [pattern for tab in SPLATS_LAYOUT.tabs for chart in tab.charts for pattern in chart.tags]
    return [pattern for pattern in patterns if re.match(pattern, name)]


def test_every_number_of_ours_is_on_the_dashboard():
    numbers = [metric.name for metric in SPLATS_METRICS if metric.kind == "scalar"]
    # Test/loss, Model/size in thousands, and the inverse of the iterations per second
    left_out = {"Test/l1", "Test/num_gaussians_K", "Time/minutes_per_iter"}
    assert {name for name in numbers if not chart_patterns(name)} == left_out


def test_every_exact_tag_of_the_dashboard_is_declared():
    patterns = [pattern for tab in SPLATS_LAYOUT.tabs for chart in tab.charts for pattern in chart.tags]
    exact = [re.sub(r"\\(.)", r"\1", pattern[1:-1]) for pattern in patterns if not re.search(r"[\[(|*]", pattern)]
    assert len(exact) > 50
    assert [name for name in exact if name not in EVERYTHING] == []


def test_all_terms_stand_on_one_chart_and_clock_times_on_none_of_the_spans():
    (losses,) = (tab for tab in SPLATS_LAYOUT.tabs if tab.title == "Loss components")
    composition = losses.charts[0]
    assert composition.title == "Loss Composition Analysis"
    assert all(re.match(composition.tags[0], f"Loss/component_{term}") for term in ("rendering", "better_normal"))
    spans = next(p for p in chart_patterns("Time/render") if p.startswith("^Time/("))
    assert not re.match(spans, "Time/elapsed_minutes")


def test_every_metric_that_a_splat_rule_names_is_declared():
    """`Eval/psnr` is recorded by user-written loops (examples/splats_from_parts.py)."""
    names = {name for rule in SPLATS_RULES for name in getattr(rule, "metrics", ()) if name != "Eval/psnr"}
    names |= {
        getattr(rule, field)
        for rule in SPLATS_RULES
        for field in ("metric", "train", "validation")
        if hasattr(rule, field)
    }
    assert "Test/psnr_gap" in names
    assert [name for name in sorted(names) if name not in EVERYTHING] == []
