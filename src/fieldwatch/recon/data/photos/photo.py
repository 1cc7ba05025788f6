"""Decoded photos and the cameras they were taken with."""

from dataclasses import dataclass

import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from fieldwatch.recon.geometry import Camera


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoPixels:
    """Pixels of one photo, 8 bit, on the CPU.

    Attributes:
        image: RGB image, composited over the background if the photo is transparent.
        mask: 255 where pixels are used, else 0; None if all pixels are used.
        alpha: 255 where the photo is opaque, 0 where the background shows; None if the photo is fully opaque.
    """

    image: UInt8[Tensor, "height width 3"]
    mask: UInt8[Tensor, "height width"] | None = None
    alpha: UInt8[Tensor, "height width"] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory used by image, mask and alpha."""
        return sum(part.nbytes for part in (self.image, self.mask, self.alpha) if part is not None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Photo:
    """One photo of a `PhotoSet`, ready for training.

    Attributes:
        index: index in the `PhotoSet`.
        camera: pose, size and intrinsics of `image`.
        image: RGB image, 8 bit.
        mask: 255 where pixels are used, else 0; None if all pixels are used.
        alpha: 255 where the photo is opaque, 0 where the background shows; None if the photo is fully opaque.
    """

    index: int
    camera: Camera
    image: UInt8[Tensor, "height width 3"]
    mask: UInt8[Tensor, "height width"] | None
    alpha: UInt8[Tensor, "height width"] | None

    @property
    def name(self) -> str:
        """File name relative to the photo folder."""
        return self.camera.name


def border_pixels(image: Shaped[Tensor, "height width 3"], width: int) -> Shaped[Tensor, "n 3"]:
    """Return the pixels along the four sides of an image, each once.

    Args:
        image: image of any type of numbers.
        width: width of the border, pixels.
    """
    inner = image[width:-width]
    sides = (image[:width], image[-width:], inner[:, :width], inner[:, -width:])
    return torch.cat([side.reshape(-1, 3) for side in sides])
