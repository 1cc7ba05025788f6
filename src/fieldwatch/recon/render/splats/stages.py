"""The three stages of splat rasterization that every backend implements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

THRESHOLD = 1 / 255
"""Smallest alpha that contributes."""
CEILING = 0.99
"""Largest alpha; clamped values get no gradient."""
OPAQUE = 1e-4
"""Transmittance at which a pixel is finished."""


@dataclass(frozen=True, kw_only=True)
class RasterOptions:
    """Options of the projection, and optional outputs.

    Attributes:
        eps2d: variance added in image space, in squared pixels.
        antialiased: reduce the opacity by the widening of the low-pass dilation (the 2D Mip filter).
        normals: return the thinnest axes.
        slopes: return the change of depth per pixel.
        median: find the Gaussian at which the transmittance falls below 1/2.
        absgrad: sum the absolute view-space gradients.
    """

    eps2d: float = 0.3
    antialiased: bool = False
    normals: bool = False
    slopes: bool = False
    median: bool = False
    absgrad: bool = False


class GaussianTensors(NamedTuple):
    """Centers and scales in world units, quaternions (w, x, y, z) of any length, opacities in (0, 1)."""

    means: Float[Tensor, "n 3"]
    quaternions: Float[Tensor, "n 4"]
    scales: Float[Tensor, "n 3"]
    opacities: Float[Tensor, " n"]


class SphericalHarmonics(NamedTuple):
    """SH coefficients of degree 0 and of the higher degrees, and the degree to evaluate."""

    dc: Float[Tensor, "n 1 3"]
    rest: Float[Tensor, "n k 3"]
    degree: int


class ProjectedGaussians(NamedTuple):
    """The visible Gaussians of a view, in storage order.

    `whitening` is the triangular factor (l1, l2, l3) with the exponent -((l1 dx + l2 dy)^2 + (l3 dy)^2) / 2; in single
    precision the inverse covariance has too few digits for needles. `alphas` are the opacities, reduced if
    `antialiased`. `radii` are three standard deviations of the longer axis in pixels. `normals` are the thinnest axes
    in camera axes, toward the camera. `slopes` are the changes of depth per pixel (right, down).
    """

    ids: Int[Tensor, " visible"]
    means2d: Float[Tensor, "visible 2"]
    whitening: Float[Tensor, "visible 3"]
    depths: Float[Tensor, " visible"]
    alphas: Float[Tensor, " visible"]
    radii: Float[Tensor, " visible"]
    normals: Float[Tensor, "visible 3"] | None
    slopes: Float[Tensor, "visible 2"] | None


class BlendedImage(NamedTuple):
    """The blended image with optional outputs.

    `median` is the row of the packed Gaussian at which the transmittance of a pixel falls below 1/2, or -1. `absgrad`
    is filled by the backward pass.
    """

    features: Float[Tensor, "height width channels"]
    alpha: Float[Tensor, "height width"]
    median: Int[Tensor, "height width"] | None
    absgrad: Float[Tensor, "visible 2"] | None


@dataclass(frozen=True, kw_only=True)
class RasterBackend:
    """The functions of a backend.

    Attributes:
        project: maps `GaussianTensors`, view and options to `ProjectedGaussians`.
        colors: maps `SphericalHarmonics`, means, ids and view to the colors of the visible Gaussians.
        blend: maps packed features, `ProjectedGaussians`, view and options to a `BlendedImage`.
    """

    project: Callable[..., ProjectedGaussians]
    colors: Callable[..., Tensor]
    blend: Callable[..., BlendedImage]
