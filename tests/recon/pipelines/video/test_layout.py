"""The dashboard: six tabs, with every tag of the dual-head HNeRV code on its tab."""

import re

from fieldwatch.recon.pipelines.video.layout import VIDEO_LAYOUT
from fieldwatch.recon.pipelines.video.tags import DUAL_HEAD_METRICS, VIDEO_METRICS

TABS = {
    "Overview": ("Train/PSNR", "Eval/Frame/val_psnr", "Train/Loss/total_loss", "Train/learning_rate"),
    "Loss Breakdown": (
        "Train/Loss/pixel_loss",
        "Train/Loss/clip_loss",
        "Train/Loss/clip_loss_weighted",
        "Train/clip_loss_active",
    ),
    "Gradients": ("Train/Gradients/",),
    "Evaluation": ("Eval/Frame/", "Eval/Gap/"),
    "Statistics": ("Eval/PSNR_Stats/", "Eval/Patch/"),
    "Distributions": (),  # bands only; custom scalars cannot draw histograms
}


def test_the_six_tabs_hold_the_tags_of_the_dual_head_code():
    assert [tab.title for tab in VIDEO_LAYOUT.tabs] == [*TABS, "Memory"]
    names = [metric.name for metric in DUAL_HEAD_METRICS]
    for tab in VIDEO_LAYOUT.tabs[:-1]:
        patterns = [pattern for chart in tab.charts for pattern in chart.tags]
        shown = {name for name in names if any(re.match(pattern, name) for pattern in patterns)}
        wanted = {
            name
            for name in names
            if any(name == t or (t.endswith("/") and name.startswith(t)) for t in TABS[tab.title])
        }
        assert shown == wanted
        assert len(patterns) == len(set(patterns))


def test_bands_are_declared_scalars_of_both_measures_and_sets():
    scalars = {metric.name for metric in VIDEO_METRICS if metric.kind == "scalar"}
    margins = [margin for tab in VIDEO_LAYOUT.tabs for chart in tab.charts for margin in chart.margins]
    assert {margin.value for margin in margins} == {
        f"Eval/Frame/{name}_{measure}" for name in ("train", "val") for measure in ("psnr", "clip_sim")
    }
    assert all({margin.value, margin.lower, margin.upper} <= scalars for margin in margins)


def test_no_chart_holds_what_custom_scalars_cannot_draw():
    others = [metric.name for metric in VIDEO_METRICS if metric.kind != "scalar"]
    patterns = [pattern for tab in VIDEO_LAYOUT.tabs for chart in tab.charts for pattern in chart.tags]
    assert len(others) >= 8
    assert [name for name in others if any(re.match(pattern, name) for pattern in patterns)] == []
