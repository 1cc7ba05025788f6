"""What transparent photos say about the surface: nothing opaque lies where they show the background."""

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
"""Photos that must show the background at a point before it counts as empty: one alone may be mistaken."""
SOLID = 128
"""Alpha from which a pixel shows the surface."""
_MAX_BACKGROUND_ALPHA = 8  # up to it a pixel shows nothing but the background
_MARGIN = 2  # pixels around what is not background: the edge of a silhouette is not carved
_MAX_SIZE = 512  # pixels of a silhouette: enough for carving, and small enough to keep one for every photo


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoMask:
    """Which pixels of a photo say something about the surface.

    Attributes:
        counted: those that the mask leaves; None: all.
        solid: those that are opaque, where the others show the background; None: all.
    """

    counted: Bool[Tensor, "height width"] | None = None
    solid: Bool[Tensor, "height width"] | None = None

    @property
    def usable(self) -> Bool[Tensor, "height width"] | None:
        """Pixels that show the surface; None: all may."""
        parts = [part for part in (self.counted, self.solid) if part is not None]
        return torch.stack(parts).all(0) if parts else None


@dataclass(frozen=True, eq=False)
class _Silhouette:
    """The pixels of a photo that are not background: a coarse grid with a margin, eight pixels per byte."""

    camera: Camera
    stride: int
    bits: UInt8[np.ndarray, "rows bytes"]

    def shows(self, points: Float64[Tensor, "n 3"]) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Tell which points lie inside the image, and at which of them it shows the background."""
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
    """What lies inside the silhouettes of transparent photos (Laurentini 1994).

    Points that two photos show as background are outside; photos without alpha say nothing, nor do masked pixels.

    Args:
        silhouettes: of the photos that have any.
    """

    def __init__(self, silhouettes: list[_Silhouette]) -> None:
        self._silhouettes = silhouettes

    @classmethod
    def of(cls, photos: PhotoSet) -> Self:
        """Read the alpha of the training photos; none is read where no photo has any, none stays in memory."""
        photos = photos.having(memory_budget=0)
        silhouettes: list[_Silhouette] = []
        for index in photos.train if photos.transparent else ():
            photo = photos[index]
            if photo.alpha is not None:
                covered = photo.alpha.cpu() > _MAX_BACKGROUND_ALPHA
                # Masked pixels tell nothing, so that they must not carve.
                covered |= torch.zeros_like(covered) if photo.mask is None else photo.mask.cpu() <= 127
                silhouettes.append(_silhouette(photo.camera, covered))
        return cls(silhouettes)

    def __len__(self) -> int:
        """Number of photos that it is made of."""
        return len(self._silhouettes)

    def outside(self, points: Float64[np.ndarray, "n 3"]) -> Bool[np.ndarray, " n"]:
        """Tell which points at least two photos show as background."""
        positions = torch.from_numpy(points).double()
        votes = np.zeros(len(points), np.uint8)
        for silhouette in self._silhouettes:
            undecided = votes < VOTES  # only these are projected
            votes[undecided] += silhouette.shows(positions[torch.from_numpy(undecided)])[1]
        return votes >= VOTES

    def covers(self, points: Float64[np.ndarray, "n 3"]) -> Bool[np.ndarray, " n"]:
        """Tell which points at least two photos have in their silhouettes, and that are not outside."""
        votes = np.zeros(len(points), np.int64)
        inside = ~self.outside(points)
        positions = torch.from_numpy(points[inside]).double()
        for silhouette in self._silhouettes:
            visible, background = silhouette.shows(positions)
            votes[inside] += visible & ~background
        return votes >= VOTES


def mask_of_photo(photos: PhotoSet, number: int) -> PhotoMask:
    """Read which pixels of a training photo, by its index among them, say something about the surface."""
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
    # Maximum pooling: a coarse pixel is background only where all of its pixels are.
    stride = -(-max(covered.shape) // _MAX_SIZE)
    coarse = functional.max_pool2d(widened, stride, ceil_mode=True)[0] > 0
    return _Silhouette(camera.to("cpu", torch.float64), stride, np.packbits(coarse.numpy(), axis=1))
