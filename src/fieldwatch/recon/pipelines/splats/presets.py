"""Presets of the splats pipeline."""

from collections.abc import Callable
from dataclasses import replace

from fieldwatch.recon.pipelines.splats.config import DensificationOptions, RateOptions, SplatsConfig, SurfaceOptions
from fieldwatch.recon.pipelines.splats.gpu_memory import GIB, most_gaussians

FLOATERS = 0.7
"""Fraction of the near end of a photo's scene within which Gaussians that few photos show are pruned."""


def default() -> SplatsConfig:
    """Return settings for any scene at the papers' iterations; the built-in scene takes minutes on two CPU cores."""
    return SplatsConfig(
        antialiased=True,
        # The learning rate of the means decays over this run instead of 3DGS's 30,000 iterations.
        rates=RateOptions(lr_iterations=None),
        # Large discs sink below their surface: absolute gradients and the size limit split them.
        growth_options=DensificationOptions(
            reset_every=0,
            growth_gradient="absolute",
            split_size=0.02,
            fill_points=None,
            prune_floaters=FLOATERS,
        ),
        surface=SurfaceOptions(flatness_weight=10.0, prune_hidden=0.1),
    )


def cpu() -> SplatsConfig:
    """Return settings for small scenes on two CPU cores in ten minutes: 256 pixels, 50,000 Gaussians, 3,000 steps."""
    return SplatsConfig(
        longer_side=256,
        schedule_scale=0.2,
        degree_every=1500,
        antialiased=True,
        # Fewer steps need larger learning rates and a decay at the end.
        rates=RateOptions(lr_means=2.1e-4, lr_iterations=None, lr_factor=3.0, lr_fall=0.05),
        growth_options=DensificationOptions(
            reset_every=0,
            growth_gradient="absolute",
            growth_cap=50_000,
            growth_from=1500,
            growth_every=500,
            fill_points=10_000,
            prune_floaters=FLOATERS,
        ),
        surface=SurfaceOptions(flatness_weight=10.0),
    )


def rooms() -> SplatsConfig:
    """Return the settings of `cpu` with surfaces that agree between photos, for flat walls: twice the time per step."""
    config = cpu()
    surface = replace(
        config.surface,
        depth_normal_weight=0.1,
        multi_view_depth_weight=0.05,
        multi_view_photo_weight=0.15,
        multi_view_samples=4096,
    )
    return replace(config, surface=surface)


def full() -> SplatsConfig:
    """Return settings for a GPU: photos up to 1600 pixels, no cap on Gaussians, SH and opacity resets as in 3DGS."""
    growth = DensificationOptions(prune_floaters=FLOATERS)
    return SplatsConfig(
        device="cuda", antialiased=True, growth_options=growth, surface=SurfaceOptions(flatness_weight=10.0)
    )


def parity() -> SplatsConfig:
    """Return settings of the public SuGaR fork: its schedule, its formulas, density terms at every fifth step."""
    surface = SurfaceOptions(literal=True, depth_normal_from=9000, density_every=5, samples=250_000, prune_hidden=0.0)
    return SplatsConfig(regularization="dn_consistency", longer_side=1920, degree_every=0, surface=surface)


def _card(gigabytes: int) -> SplatsConfig:
    """Return the settings of `full` with as many Gaussians as fit into a GPU of this memory, by `gpu_memory`."""
    config = full()
    # Photos of 4:3, the tallest that are common; at 80 GB, the memory allows photos of 4K.
    longer_side = 3840 if gigabytes >= 80 else config.longer_side
    cap = most_gaussians(gigabytes * GIB, pixels=longer_side * longer_side * 3 // 4)
    return replace(config, longer_side=longer_side, growth_options=replace(config.growth_options, growth_cap=cap))


def gpu_8() -> SplatsConfig:
    """Return settings for a GPU with 8 GB: as `full`, with at most as many Gaussians as fit."""
    return _card(8)


def gpu_12() -> SplatsConfig:
    """Return settings for a GPU with 12 GB: as `full`, with at most as many Gaussians as fit."""
    return _card(12)


def gpu_24() -> SplatsConfig:
    """Return settings for a GPU with 24 GB: as `full`, with at most as many Gaussians as fit."""
    return _card(24)


def gpu_80() -> SplatsConfig:
    """Return settings for a GPU with 80 GB: as `full`, with photos up to 3840 pixels and as many Gaussians as fit."""
    return _card(80)


PRESETS: dict[str, Callable[[], SplatsConfig]] = {
    "default": default,
    "cpu": cpu,
    "rooms": rooms,
    "full": full,
    "gpu-8": gpu_8,
    "gpu-12": gpu_12,
    "gpu-24": gpu_24,
    "gpu-80": gpu_80,
    "parity": parity,
}
"""All presets by name."""
