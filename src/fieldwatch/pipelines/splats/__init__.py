"""Splats: photos as Gaussians that lie on the surface."""

from fieldwatch.pipelines.splats.gaussians import Gaussians, NotFiniteError, Rows
from fieldwatch.pipelines.splats.rates import Rates, make_optimizer

__all__ = ["Gaussians", "NotFiniteError", "Rates", "Rows", "make_optimizer"]
