"""What is seen in a photo, and through which camera."""

from dataclasses import dataclass

from jaxtyping import UInt8
from torch import Tensor

from fieldwatch.recon.geometry import Camera


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoPixels:
    """Pixels of one photo, 8 bit, on the host.

    Attributes:
        image: red, green, blue; on the background where the photo is transparent.
        mask: 255 where the photo is to be used, else 0; None: everywhere.
        alpha: 255 where the photo is opaque, 0 where the background shows; None: opaque everywhere.
    """

    image: UInt8[Tensor, "height width 3"]
    mask: UInt8[Tensor, "height width"] | None = None
    alpha: UInt8[Tensor, "height width"] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory it takes."""
        return sum(part.nbytes for part in (self.image, self.mask, self.alpha) if part is not None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Photo:
    """One photo, as training takes it.

    Attributes:
        index: place in its `PhotoSet`.
        camera: size and intrinsics are those of `image`.
        image: red, green, blue; 8 bit.
        mask: 255 where the photo is to be used, else 0; None: everywhere.
        alpha: 255 where the photo is opaque, 0 where the background shows; None: opaque everywhere.
    """

    index: int
    camera: Camera
    image: UInt8[Tensor, "height width 3"]
    mask: UInt8[Tensor, "height width"] | None
    alpha: UInt8[Tensor, "height width"] | None

    @property
    def name(self) -> str:
        """Name of the photo, relative to its folder."""
        return self.camera.name
