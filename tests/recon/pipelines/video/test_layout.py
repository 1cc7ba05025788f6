"""The dashboard: six tabs, with every tag of the dual-head HNeRV code on its tab."""

import re

from fieldwatch.recon.pipelines.video.layout import VIDEO_LAYOUT
from fieldwatch.recon.pipelines.video.tags import DUAL_HEAD_METRICS

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
    "Distributions": ("Eval/Histogram/",),
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


def test_bands_are_declared_tags():
    names = {metric.name for metric in DUAL_HEAD_METRICS}
    margins = [margin for tab in VIDEO_LAYOUT.tabs for chart in tab.charts for margin in chart.margins]
    assert len(margins) == 2
    assert all({margin.value, margin.lower, margin.upper} <= names for margin in margins)
