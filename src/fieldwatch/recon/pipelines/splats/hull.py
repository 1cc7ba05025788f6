"""Visual hull of transparent photos: no opaque surface is where they show the background."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Float64, UInt8
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.geometry import Camera

VOTES = 2
"""Number of photos that must show the background at a point for it to count as empty; a single one may be wrong."""
SOLID = 128
"""Alpha (0 .. 255) from which a pixel shows the surface."""
_SHARE = 0.08  # the same of photos with plain surroundings, as a fraction
_MAX_BACKGROUND_ALPHA = 8  # alpha (0 .. 255) up to which a pixel shows only background
_MARGIN = 2  # pixels by which silhouettes are widened, so that their edges are not carved
_MAX_SIZE = 512  # maximum side of a silhouette, pixels: enough for carving, small enough to keep one per photo


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoMask:
    """Pixels of a photo that are informative about the surface.

    Attributes:
        counted: pixels inside the photo's mask; None for all.
        solid: opaque pixels, where all others show the background; None for all.
    """

    counted: Bool[Tensor, "height width"] | None = None
    solid: Bool[Tensor, "height width"] | None = None

    @property
    def usable(self) -> Bool[Tensor, "height width"] | None:
        """Pixels that show the surface; None for all."""
        parts = [part for part in (self.counted, self.solid) if part is not None]
        # Both conditions hold for pixels that show the surface.
        return torch.stack(parts).all(0) if parts else None


@dataclass(frozen=True, eq=False)
class _Silhouette:
    """Pixels of a photo that are not background, widened by a margin, on a coarse grid with eight pixels per byte."""

    camera: Camera
    stride: int
    bits: UInt8[np.ndarray, "rows bytes"]

    def shows(self, points: Float64[Tensor, "n 3"]) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Return masks of the points inside the image, and of those at which it shows the background."""
        pixels, depth = self.camera.project(points)
        column, row = pixels.unbind(-1)
        inside = (depth > 0) & (column >= 0) & (row >= 0) & (column < self.camera.width) & (row < self.camera.height)
        visible = inside.numpy()
        background = visible.copy()
        across = (column[inside].long() // self.stride).numpy()
        down = (row[inside].long() // self.stride).numpy()
        # np.packbits stores the first of eight pixels in the highest bit.
        background[visible] = (self.bits[down, across >> 3] >> (7 - (across & 7)) & 1) == 0
        return visible, background


class VisualHull:
    """Intersection of the silhouettes of transparent photos (Laurentini 1994).

    Points that two photos show as background are outside. Photos without alpha and masked pixels do not vote.

    Args:
        silhouettes: silhouettes of the photos with alpha.
        votes: number of photos that must show the background at a point for it to be outside.
    """

    def __init__(self, silhouettes: list[_Silhouette], votes: int = VOTES) -> None:
        self._silhouettes = silhouettes
        self._votes = votes

    @classmethod
    def of(cls, photos: PhotoSet) -> Self:
        """Build the hull from the alpha of the training photos; photos are not kept in memory."""
        photos = photos.having(memory_budget=0)
        silhouettes: list[_Silhouette] = []
        # Without any alpha channel, no photo has to be decoded.
        for index in photos.train if photos.transparent else ():
            photo = photos[index]
            if photo.alpha is not None:
                covered = photo.alpha.cpu() > _MAX_BACKGROUND_ALPHA
                # Masked pixels are unknown and must not carve: treat them as covered.
                covered |= torch.zeros_like(covered) if photo.mask is None else photo.mask.cpu() <= 127
                silhouettes.append(_silhouette(photo.camera, covered))
        return cls(silhouettes)

    @classmethod
    def of_backgrounds(cls, cameras: Iterable[Camera], backgrounds: Iterable[Bool[Tensor, "height width"]]) -> Self:
        """Build the hull from the pixels that show the background, for each camera.

        Colors are less certain than alpha, so that a share of the photos must show it.
        """
        silhouettes = [_silhouette(camera, ~shown) for camera, shown in zip(cameras, backgrounds, strict=True)]
        return cls(silhouettes, max(VOTES, math.ceil(_SHARE * len(silhouettes))))

    def __len__(self) -> int:
        """Return the number of photos with a silhouette."""
        return len(self._silhouettes)

    def outside(self, points: Float64[np.ndarray, "n 3"]) -> Bool[np.ndarray, " n"]:
        """Return a mask of the points that enough photos show as background."""
        positions = torch.from_numpy(points).double()
        votes = np.zeros(len(points), np.int64)
        for silhouette in self._silhouettes:
            undecided = votes < self._votes  # project only these
            votes[undecided] += silhouette.shows(positions[torch.from_numpy(undecided)])[1]
        return votes >= self._votes

    def covers(self, points: Float64[np.ndarray, "n 3"]) -> Bool[np.ndarray, " n"]:
        """Return a mask of the points inside the silhouettes of at least two photos and not `outside`."""
        votes = np.zeros(len(points), np.int64)
        inside = ~self.outside(points)
        positions = torch.from_numpy(points[inside]).double()
        for silhouette in self._silhouettes:
            visible, background = silhouette.shows(positions)
            votes[inside] += visible & ~background
        return votes >= VOTES


def mask_of_photo(photos: PhotoSet, number: int) -> PhotoMask:
    """Return the informative pixels of a training photo, given its index among the training photos."""
    photos = photos.having(memory_budget=0)
    if not (photos.masked or photos.transparent):
        return PhotoMask()
    photo = photos[photos.train[number]]
    return PhotoMask(
        counted=None if photo.mask is None else photo.mask.cpu() > 127,
        solid=None if photo.alpha is None else photo.alpha.cpu() >= SOLID,
    )


def _silhouette(camera: Camera, covered: Bool[Tensor, "height width"]) -> _Silhouette:
    widened = functional.max_pool2d(covered[None].float(), 2 * _MARGIN + 1, stride=1, padding=_MARGIN)
    # Maximum pooling: a coarse pixel is background only if all of its pixels are.
    stride = -(-max(covered.shape) // _MAX_SIZE)
    coarse = functional.max_pool2d(widened, stride, ceil_mode=True)[0] > 0
    return _Silhouette(camera.to("cpu", torch.float64), stride, np.packbits(coarse.numpy(), axis=1))
