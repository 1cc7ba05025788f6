"""Cost of a difference between a rendered and an observed normal: squares, absolute values, or a robust cost."""

import math
from dataclasses import replace
from typing import Literal

from fieldwatch.recon.data import NormalSet
from fieldwatch.recon.pipelines.normals.config import TermOptions

ROBUST_FROM = 0.5
"""Difference of unit normals, 29 degrees, from which the robust cost grows linearly, at least.

A much lower one slows the start of a training, whose surface is an outlier itself."""
ROBUST_DEVIATIONS = 2.5
"""The same in standard deviations of the noise about an axis."""


def norm_of(options: TermOptions) -> tuple[Literal["l1", "l2", "robust"], float]:
    """Return the kind and the scale of the normal term."""
    return options.normal_norm, ROBUST_FROM if options.robust_from is None else options.robust_from


def terms_for(options: TermOptions, maps: NormalSet) -> TermOptions:
    """Return options whose robust cost, if chosen, has a scale: at least that of the noise of the maps.

    Squares are the default for noise too: the robust cost is not more accurate (decision 0065).
    """
    if options.normal_norm != "robust" or options.robust_from is not None:
        return options
    noise = math.radians(maps.noise or 0.0)
    return replace(options, robust_from=max(ROBUST_FROM, ROBUST_DEVIATIONS * noise))
