"""Presets of a refinement."""

from collections.abc import Callable, Mapping

from fieldwatch.recon.pipelines.splats.refined.config import RefineOptions, RefineRates


def short() -> RefineOptions:
    """Return settings for 2000 steps: one to two minutes on two CPU cores for a small scene."""
    return RefineOptions(iterations=2000)


def medium() -> RefineOptions:
    """Return settings for 7000 steps."""
    return RefineOptions(iterations=7000)


def long() -> RefineOptions:
    """Return settings for 15,000 steps, as in SuGaR's published results."""
    return RefineOptions(iterations=15_000)


def parity() -> RefineOptions:
    """Return SuGaR's settings: vertex colors, an SH degree per 1000 steps, 30,000 steps of vertex rate decay."""
    return RefineOptions(
        iterations=15_000,
        first_colors="vertices",
        first_size="shortest",
        degree_every=1000,
        rates=RefineRates(lr_steps=30_000),
    )


REFINE_PRESETS: Mapping[str, Callable[[], RefineOptions]] = {
    "short": short,
    "medium": medium,
    "long": long,
    "parity": parity,
}
"""All presets by name."""
