"""Plain surroundings of an object: the part of each photo, from its border, that has one color and no texture.

Photos say nothing about how far away a surface without texture is: any shell of its color explains them. Unlike a
backdrop (see `plain_backdrop`), the surroundings need not fill the border: the object may stand on a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int32
from numpy.typing import NDArray
from scipy import ndimage
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.geometry import TargetBall
from fieldwatch.recon.pipelines.splats.backdrop import TOLERANCE

_SIZE = 320  # longer side at which photos are examined, pixels
_WINDOW = 3  # pixels
_FLAT = 8 / 255  # largest range of a color channel within the window, where there is no texture
_LEAST_AREA = 0.02  # fraction of a photo, below which its surroundings tell no color
_LEAST_PHOTOS = 0.5  # fraction of the photos that must show the surroundings
_ALIKE = 0.9  # fraction of these that must show the same color
_LARGEST_GAIN = 1.6  # ratio of the brightness to that of the median photo, because exposures differ
_LOOKED_AT = 0.1  # fraction of the photos that may show the surroundings where the cameras look


@dataclass(frozen=True, kw_only=True, eq=False)
class Surroundings:
    """Plain surroundings.

    Attributes:
        color: median color, RGB in [0, 1].
        shown: for the index of each photo, the pixels that show the surroundings, on a coarser grid.
    """

    color: Float64[np.ndarray, "3"]
    shown: Mapping[int, Bool[np.ndarray, "rows columns"]]

    def in_photo(self, index: int, height: int, width: int) -> Bool[torch.Tensor, "height width"]:
        """Return the pixels of a photo that show the surroundings."""
        coarse = torch.from_numpy(self.shown[index])[None, None].float()
        return interpolate(coarse, (height, width), mode="nearest")[0, 0] > 0


def plain_surroundings(photos: PhotoSet, ball: TargetBall) -> Surroundings | None:
    """Return the plain surroundings of the object in the training photos; None if there are none.

    They have the same color in nearly all photos that show them, apart from its brightness, and are not what the
    cameras look at. Photos with alpha or masks define the object themselves.

    Args:
        photos: photos whose cameras go around an object; they are decoded one by one, and not kept.
        ball: the ball that the cameras look at.
    """
    if photos.transparent or photos.masked:
        return None
    photos = photos.having(memory_budget=0)
    found: dict[int, Bool[np.ndarray, "rows columns"]] = {}
    colors: dict[int, Float64[np.ndarray, 3]] = {}
    for index in photos.train:
        found[index], color = _plain_border(_reduced(photos[index].image))
        if color is not None:
            colors[index] = color
    if len(colors) < max(_LEAST_PHOTOS * len(photos.train), 1):
        return None
    of_photos = np.stack(list(colors.values()))
    middle = np.median(of_photos, axis=0)
    alike = dict(zip(colors, _same_color(of_photos, middle), strict=True))
    if np.mean(list(alike.values())) < _ALIKE:
        return None
    # A plain region of another color, such as a part of the object that is cut by the border, is not the surroundings.
    shown = {index: plain if alike.get(index) else np.zeros_like(plain) for index, plain in found.items()}
    if _looked_at(photos, ball, shown) > _LOOKED_AT:
        return None
    return Surroundings(color=middle, shown=shown)


def _reduced(image: torch.Tensor) -> Float64[np.ndarray, "rows columns 3"]:
    """Return an image at the size at which it is examined, RGB in [0, 1]."""
    height, width = image.shape[:2]
    factor = min(_SIZE / max(height, width), 1.0)
    size = (max(round(factor * height), 1), max(round(factor * width), 1))
    # Averages over areas, which remove noise.
    reduced = adaptive_avg_pool2d(image.permute(2, 0, 1)[None].float() / 255, size)
    return reduced[0].permute(1, 2, 0).double().cpu().numpy()


def _plain_border(
    image: Float64[np.ndarray, "rows columns 3"],
) -> tuple[Bool[np.ndarray, "rows columns"], Float64[np.ndarray, "3"] | None]:
    """Return the pixels without texture that are connected to the border and have its color, and that color."""
    window = (_WINDOW, _WINDOW, 1)
    spread = ndimage.maximum_filter(image, window) - ndimage.minimum_filter(image, window)
    flat = spread.max(2) <= _FLAT
    color = _largest_color(image, flat)
    if color is None:
        return np.zeros_like(flat), None
    plain = _from_border(flat & (np.abs(image - color) <= TOLERANCE).all(2))
    return plain, color if plain.mean() >= _LEAST_AREA else None


def _largest_color(
    image: Float64[np.ndarray, "rows columns 3"], flat: Bool[np.ndarray, "rows columns"]
) -> Float64[np.ndarray, "3"] | None:
    """Return the median color of the largest region without texture that touches the border."""
    labels, count = _labeled(_from_border(flat))
    if not count:
        return None
    largest = np.bincount(labels.ravel())[1:].argmax() + 1
    return np.median(image[labels == largest], axis=0)


def _from_border(mask: Bool[np.ndarray, "rows columns"]) -> Bool[np.ndarray, "rows columns"]:
    """Return the part of a mask that is connected to the border of the image."""
    labels, _ = _labeled(mask)
    edges = np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])
    return mask & np.isin(labels, edges[edges > 0])


def _labeled(mask: Bool[np.ndarray, "rows columns"]) -> tuple[Int32[np.ndarray, "rows columns"], int]:
    """Return the connected parts of a mask, numbered from 1, and how many there are."""
    return cast("tuple[NDArray[np.int32], int]", ndimage.label(mask))


def _same_color(colors: Float64[np.ndarray, "n 3"], middle: Float64[np.ndarray, "3"]) -> Bool[np.ndarray, " n"]:
    """Return which colors differ from another one in their brightness only."""
    gains = (colors @ middle) / max(float(middle @ middle), 1e-9)
    # A black backdrop has no brightness to compare.
    bounded = gains.clip(1 / _LARGEST_GAIN, _LARGEST_GAIN)
    return np.asarray((np.abs(colors - bounded[:, None] * middle) <= TOLERANCE).all(1), np.bool_)


def _looked_at(photos: PhotoSet, ball: TargetBall, shown: Mapping[int, Bool[np.ndarray, "rows columns"]]) -> float:
    """Return the fraction of the photos that show the surroundings where the center of the ball is."""
    hits: list[bool] = []
    for index, plain in shown.items():
        camera = photos.cameras[index].to("cpu", torch.float64)
        pixels, depth = camera.project(ball.center[None])
        column, row = (float(value) for value in pixels[0])
        inside = float(depth[0]) > 0 and 0 <= column < camera.width and 0 <= row < camera.height
        place = (int(row * plain.shape[0] / camera.height), int(column * plain.shape[1] / camera.width))
        hits.append(inside and bool(plain[place]))
    return float(np.mean(hits))
