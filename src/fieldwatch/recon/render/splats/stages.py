"""The three stages of drawing splats, as every backend offers them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

THRESHOLD = 1 / 255
"""A smaller alpha does not contribute."""
CEILING = 0.99
"""No alpha is larger, and none of its gradient passes."""
OPAQUE = 1e-4
"""A pixel is finished when no more light than this passes."""


@dataclass(frozen=True, kw_only=True)
class RasterOptions:
    """How Gaussians are projected, and what beside their place and shape is asked for.

    Attributes:
        eps2d: variance added on the image, square pixels.
        antialiased: lower the opacity as the low-pass dilation widens the Gaussian (the 2D Mip filter).
        normals: hand out the thinnest axes.
        slopes: hand out the change of depth per pixel.
        median: find the Gaussian at which half the light is gone.
        absgrad: sum the absolute gradients on the image.
    """

    eps2d: float = 0.3
    antialiased: bool = False
    normals: bool = False
    slopes: bool = False
    median: bool = False
    absgrad: bool = False


class GaussianTensors(NamedTuple):
    """Centres and scales in metres, quaternions (w, x, y, z) of any length, opacities in (0, 1)."""

    means: Float[Tensor, "n 3"]
    quaternions: Float[Tensor, "n 4"]
    scales: Float[Tensor, "n 3"]
    opacities: Float[Tensor, " n"]


class SphericalHarmonics(NamedTuple):
    """Coefficients of degree 0 and of the higher degrees, and up to which degree they count."""

    dc: Float[Tensor, "n 1 3"]
    rest: Float[Tensor, "n k 3"]
    degree: int


class ProjectedGaussians(NamedTuple):
    """The visible Gaussians of a view, in the order they are stored in.

    `whitening` is the triangular (l1, l2, l3) with exponent -((l1 dx + l2 dy)^2 + (l3 dy)^2) / 2: the inverse
    covariance keeps too few digits for needles in single precision. `alphas` are the opacities, lowered where
    `antialiased` asks for it, `radii` three standard deviations of the longer axis in pixels, `normals` the thinnest
    axes in camera axes, towards the camera, `slopes` the change of depth per pixel (right, down).
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
    """The image: blended features, alpha, and what was asked for.

    `median` holds per pixel the row of the packed Gaussian at which the transmittance passes 1/2, -1 where it does not.
    `absgrad` are filled by backward.
    """

    features: Float[Tensor, "height width channels"]
    alpha: Float[Tensor, "height width"]
    median: Int[Tensor, "height width"] | None
    absgrad: Float[Tensor, "visible 2"] | None


@dataclass(frozen=True, kw_only=True)
class RasterBackend:
    """A backend.

    Attributes:
        project: `Gaussians`, view, options -> `Projected`.
        colors: `Harmonics`, means, ids, view -> colours of the visible Gaussians.
        blend: packed features, `Projected`, view, options -> `Blended`.
    """

    project: Callable[..., ProjectedGaussians]
    colors: Callable[..., Tensor]
    blend: Callable[..., BlendedImage]
