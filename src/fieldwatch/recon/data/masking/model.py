"""Data classes of foreground masks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Float64

Progress = Callable[[int, int], None]
"""Called with the number of items done and their total."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskingView:
    """A photo, reduced for masking, and its camera.

    Attributes:
        name: name of the photo.
        image: colors from 0 to 1.
        project: function from world points to pixels (columns, rows) and whether they are in the image.
        nearness: for every pixel, the distance of its ray to the center of the object, in radii of the object's ball.
    """

    name: str
    image: Float32[np.ndarray, "height width 3"]
    project: Callable[[Float64[np.ndarray, "n 3"]], tuple[Float64[np.ndarray, "n 2"], Bool[np.ndarray, " n"]]]
    nearness: Float32[np.ndarray, "height width"]


@dataclass(frozen=True, kw_only=True)
class MaskAgreement:
    """How far the mask of a photo agrees with those of the others.

    Attributes:
        name: name of the photo.
        agreement: intersection over union of its mask and the silhouette of the visual hull of all masks.
        share: fraction of the photo that the mask covers.
    """

    name: str
    agreement: float
    share: float
