"""Presets: named configurations to start from."""

from collections.abc import Callable
from dataclasses import replace

from fieldwatch.recon.pipelines.video.config import VideoConfig
from fieldwatch.recon.pipelines.video.models import ModelOptions


def default() -> VideoConfig:
    """Feature grids with a light decoder and the interpolation prior."""
    return VideoConfig(
        model="grid",
        batch=1,
        lr=1e-2,
        lr_type="cosine_0.05_1_0.1",
        beta2=0.99,
        between_weight=1.0,
        clip_loss_weight=0.02,
        pixel_loss_warmup_epochs=20,
        threads=1,
    )


def demo() -> VideoConfig:
    """The built-in clip in about a minute on two CPU cores."""
    return replace(default(), epochs=32, eval_freq=8, pixel_loss_warmup_epochs=8, checkpoint_epochs=8)


def small() -> VideoConfig:
    """Thirty to forty frames of 640x320 within ten minutes on two CPU cores."""
    return replace(default(), epochs=150, eval_freq=25, pixel_loss_warmup_epochs=20, checkpoint_epochs=10)


def dual() -> VideoConfig:
    """The dual-head patch network, sized to fit the patch exactly."""
    options = ModelOptions(fc_dim=64, reduce=1.2, lower_width=12, ks="0_1_5")
    return VideoConfig(model="dual", options=options, loss="Fusion6", batch=8, clip_loss_weight=0.2)


def literal() -> VideoConfig:
    """The original dual-head trainer's "comparable" script: an oversized output, resampled to the patch size."""
    options = ModelOptions(literal=True, fc_dim=96, fc_hw="9_16", dec_strds=(5, 2, 2), reduce=1.5, lower_width=12)
    return VideoConfig(model="dual", options=options, loss="Fusion6", batch=8, clip_loss_weight=0.2)


def hnerv() -> VideoConfig:
    """HNeRV: a ConvNeXt encoder computes each frame's embedding."""
    options = ModelOptions(modelsize=0.75, ks="0_1_5", reduce=1.2, lower_width=12)
    return VideoConfig(model="hnerv", options=options, loss="L2", batch=2)


def nerv() -> VideoConfig:
    """NeRV: each frame is decoded from its time alone."""
    options = ModelOptions(modelsize=0.75, ks="0_3_3", reduce=2, lower_width=12)
    return VideoConfig(model="nerv", options=options, loss="L2", batch=2)


PRESETS: dict[str, Callable[[], VideoConfig]] = {
    "default": default,
    "demo": demo,
    "small": small,
    "dual": dual,
    "literal": literal,
    "hnerv": hnerv,
    "nerv": nerv,
}
"""All presets by name."""
