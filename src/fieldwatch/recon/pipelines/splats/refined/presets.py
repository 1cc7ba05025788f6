"""Where a refinement's settings start from."""

from collections.abc import Callable, Mapping

from fieldwatch.recon.pipelines.splats.refined.config import RefineOptions, RefineRates


def short() -> RefineOptions:
    """2000 steps: a minute or two on two CPU cores for a small scene."""
    return RefineOptions(iterations=2000)


def medium() -> RefineOptions:
    """7000 steps."""
    return RefineOptions(iterations=7000)


def long() -> RefineOptions:
    """15,000 steps: what SuGaR publishes figures of."""
    return RefineOptions(iterations=15_000)


def parity() -> RefineOptions:
    """SuGaR's own: colours of the vertices, one more degree every 1000 steps, vertices as fast at the end."""
    return RefineOptions(
        iterations=15_000,
        first_colours="vertices",
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
"""Every preset by its name."""
