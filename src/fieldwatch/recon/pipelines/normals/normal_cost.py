"""Cost of a difference between a rendered and an observed normal: squares, or a robust cost for noisy maps."""

import math
from dataclasses import replace
from typing import Literal

from fieldwatch.recon.data import NormalSet
from fieldwatch.recon.pipelines.normals.config import TermOptions

ROBUST_FROM = 0.5
"""Difference of unit normals, 29 degrees, from which the robust cost grows linearly, at least.

At 0.1, short trainings have a Chamfer distance that is larger by a sixth: the initial surface is an outlier."""
ROBUST_DEVIATIONS = 2.5
"""The same in standard deviations of the noise about an axis."""
NOISY = 1.5
"""Noise in degrees about each axis from which the cost of differences of normals is robust."""


def norm_of(options: TermOptions) -> tuple[Literal["l1", "l2", "robust"], float]:
    """Return the kind and the scale of the normal term; "auto" that `terms_for` did not resolve squares."""
    norm = "l2" if options.normal_norm == "auto" else options.normal_norm
    return norm, ROBUST_FROM if options.robust_from is None else options.robust_from


def terms_for(options: TermOptions, maps: NormalSet) -> TermOptions:
    """Return options whose "auto" is resolved for the maps: robust for noise, with a scale from the noise.

    The rounding of 8 bits is at most 0.37 degrees, and has no outliers: such maps are trained as exact ones.
    """
    noise = maps.noise or 0.0
    norm = options.normal_norm
    if norm == "auto":
        norm = "robust" if noise >= NOISY else "l2"
    scale = options.robust_from
    if norm == "robust" and scale is None:
        # Differences of pure noise have a length of 1.3 deviations in the mean.
        scale = max(ROBUST_FROM, ROBUST_DEVIATIONS * math.radians(noise))
    return replace(options, normal_norm=norm, robust_from=scale)
