"""One photo on the disk: decoded, straightened, brought to the size of its camera."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from fieldwatch.files import UndecodableError, decoding
from fieldwatch.recon.data.git_lfs import pointer_text
from fieldwatch.recon.data.photos.error import PhotoError
from fieldwatch.recon.data.photos.photo import Picture
from fieldwatch.recon.data.photos.resampling import Pixels, Straightening, by_area

_WITH_ALPHA = frozenset({"RGBA", "LA", "PA", "RGBa", "La"})
_ORIENTATION = 0x0112
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})


@dataclass(frozen=True, kw_only=True)
class PhotoFacts:
    """What is known of a photo that was checked.

    Attributes:
        transparent: whether it has an alpha channel, or a transparent color.
    """

    transparent: bool


def check_photo(path: Path) -> PhotoFacts:
    """Look whether a photo is whole, as cheaply as its format allows.

    A JPEG is decoded at an eighth of its size, which reads all of its data; of a PNG the checksums are compared, which
    cover all of its data; anything else is decoded.

    Raises:
        PhotoError: the file is missing, no image that can be read, cut short or damaged.
    """
    with _opened(path) as image:
        transparent = image.mode in _WITH_ALPHA or "transparency" in image.info
        if image.mode == "F":
            _eight_bit(image, path)
        try:
            with decoding():
                if image.format == "PNG":
                    image.verify()
                else:
                    image.draft(None, (max(image.width // 8, 1), max(image.height // 8, 1)))
                    image.load()
        except UndecodableError as error:
            raise PhotoError(_damaged(path, error)) from error
    return PhotoFacts(transparent=transparent)


def mask_is_black(path: Path) -> bool:
    """Tell whether a mask leaves no pixel of its photo.

    Raises:
        PhotoError: it cannot be read.
    """
    return _black_or_white(_decoded(path)).getextrema()[1] == 0


def stored_size(path: Path) -> tuple[int, int]:
    """Return (width, height) of a photo as stored, from the header alone; EXIF orientation is not applied.

    Raises:
        PhotoError: the file is missing or no image that can be read.
    """
    with _opened(path) as image:
        return image.size


def upright_size(path: Path, stored: tuple[int, int]) -> tuple[int, int]:
    """Return (width, height) that a photo will have as its camera was calibrated, from the header alone.

    Args:
        path: of the photo.
        stored: (width, height) of the calibration, which the photo fits up to a factor: as stored, or else as its EXIF
            orientation turns it.

    Raises:
        PhotoError: the file is missing, no image that can be read, or of another shape.
    """
    with _opened(path) as image:
        turned = _turns(image, path, stored)
        return (image.height, image.width) if turned else image.size


@dataclass(frozen=True, kw_only=True)
class PhotoFile:
    """How one photo is read.

    Attributes:
        path: of the photo.
        stored: (width, height) the calibration speaks of, up to a factor; a photo that fits it only when turned by its
            EXIF orientation is turned.
        width: wanted, in pixels.
        height: wanted, in pixels.
        background: red, green and blue that show where the photo is transparent.
        mask: of an image that is black where the photo is not to be used; None if there is none.
        straightening: None for a photo without distortion.
    """

    path: Path
    stored: tuple[int, int]
    width: int
    height: int
    background: tuple[int, int, int] = (0, 0, 0)
    mask: Path | None = None
    straightening: Straightening | None = None

    def read(self) -> Picture:
        """Decode it.

        Raises:
            PhotoError: the file is unreadable, cut short, or not of the shape that its camera has.
        """
        decoded = self._upright(self.path)
        alpha = None
        if decoded.mode in _WITH_ALPHA or "transparency" in decoded.info:
            decoded = decoded.convert("RGBA")
            alpha = decoded.getchannel("A")
            ground = Image.new("RGBA", decoded.size, (*self.background, 255))
            decoded = Image.alpha_composite(ground, decoded)
            alpha = None if alpha.getextrema() == (255, 255) else alpha
        picture = np.array(self._brought(_eight_bit(decoded, self.path)))
        return Picture(
            image=torch.from_numpy(picture),
            mask=_tensor(self._mask()),
            alpha=_tensor(None if alpha is None else np.array(self._brought(alpha))),
        )

    def _brought(self, image: Image.Image) -> Image.Image:
        if self.straightening is not None:
            return self.straightening.apply(image)
        return by_area(image, self.width, self.height)

    def _mask(self) -> Pixels | None:
        """Return 255 where the photo is to be used, 0 where not: a pixel counts only where all of it does."""
        seen = None if self.straightening is None else self.straightening.seen
        if self.mask is None:
            return seen
        drawn = _black_or_white(self._upright(self.mask))
        mask = np.where(np.asarray(self._brought(drawn)) == 255, 255, 0).astype(np.uint8)
        return mask if seen is None else np.minimum(mask, seen)

    def _upright(self, path: Path) -> Image.Image:
        image = _decoded(path)
        return ImageOps.exif_transpose(image) if _turns(image, path, self.stored) else image


def _black_or_white(mask: Image.Image) -> Image.Image:
    if "A" in mask.getbands() and mask.convert("L").getextrema()[0] == 255:
        mask = mask.getchannel("A")  # cut out instead of painted
    # half way, so that masks saved as JPEG keep their edge
    return mask.convert("L").point([255 * (value > 127) for value in range(256)])


def _turns(image: Image.Image, path: Path, stored: tuple[int, int]) -> bool:
    """Tell whether a photo fits its camera only as its EXIF orientation turns it."""
    if _fits(image.size, stored):
        return False
    if image.getexif().get(_ORIENTATION, 1) != 1 and _fits((image.height, image.width), stored):
        return True
    msg = (
        f"{path} is {image.width}x{image.height}, its camera was calibrated at {stored[0]}x{stored[1]}, which is "
        "another shape: give the photos (and masks) that belong to this reconstruction"
    )
    raise PhotoError(msg)


def _fits(size: tuple[int, int], stored: tuple[int, int]) -> bool:
    """Tell whether two sizes have one shape, give or take a pixel of rounding each way."""
    scale = max(size[0] / stored[0], size[1] / stored[1])
    return all(abs(stored[i] * scale - size[i]) <= 1.0 + scale for i in (0, 1))


def _opened(path: Path) -> Image.Image:
    try:
        with decoding():
            return Image.open(path)
    except UndecodableError as error:
        known = (pointer_text(path) or _heic_text(path)) if path.is_file() else ""
        msg = known or f"photo {path} cannot be read ({error}): copy it again from where it was taken"
        raise PhotoError(msg) from error


def _heic_text(path: Path) -> str:
    """Say what to do with a photo in the format of iPhones; nothing where it is none."""
    with path.open("rb") as file:
        start = file.read(12)
    if start[4:8] != b"ftyp" or start[8:12] not in _HEIC_BRANDS:
        return ""
    return (
        f"photo {path} is in the HEIC format, which cannot be read: expected JPEG, PNG, TIFF, WebP or BMP; convert "
        "the photos to JPEG under the same names, with `heif-convert` on Linux or `sips -s format jpeg` on a Mac"
    )


def _damaged(path: Path, error: Exception) -> str:
    return f"photo {path} is cut short or damaged ({error}): copy it again from where it was taken"


def _decoded(path: Path) -> Image.Image:
    with _opened(path) as image:
        try:
            with decoding():
                image.load()
        except UndecodableError as error:
            raise PhotoError(_damaged(path, error)) from error
        return image


def _eight_bit(image: Image.Image, path: Path) -> Image.Image:
    if image.mode == "F":
        msg = f"photo {path} holds 32-bit floats, whose range is not stated: convert it to an 8- or 16-bit PNG"
        raise PhotoError(msg)
    if image.mode.startswith("I"):
        grey = np.asarray(image.convert("I"), np.int64)
        image = Image.fromarray(((grey.clip(0, 65535) + 128) // 257).astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def _tensor(pixels: Pixels | None) -> torch.Tensor | None:
    return None if pixels is None else torch.from_numpy(pixels)
