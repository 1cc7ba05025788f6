"""Read one photo from disk: decode, undistort and resize it to its camera."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps

from fieldwatch.files import UndecodableError, decoding
from fieldwatch.recon.data.git_lfs import pointer_text
from fieldwatch.recon.data.image_names import is_heic
from fieldwatch.recon.data.photos.error import PhotoError
from fieldwatch.recon.data.photos.photo import PhotoPixels
from fieldwatch.recon.data.photos.resampling import Pixels, Undistortion, by_area

# Pillow's modes with an alpha channel; palettes may also have a transparent entry in `info`.
_WITH_ALPHA = frozenset({"RGBA", "LA", "PA", "RGBa", "La"})
_END = 4096  # bytes in which the end marker of a JPEG is looked for
_ORIENTATION = 0x0112  # EXIF tag


@dataclass(frozen=True, kw_only=True)
class PhotoFacts:
    """Properties of a checked photo.

    Attributes:
        transparent: whether the photo has an alpha channel or a transparent color.
    """

    transparent: bool


def check_photo(path: Path, *, decode: bool = True) -> PhotoFacts:
    """Check that a photo is complete, as cheaply as its format allows.

    A JPEG is decoded at an eighth of its size, which reads all of its data. A PNG is verified by its checksums, which
    cover all of its data. Other formats are decoded.

    Args:
        path: path of the photo.
        decode: False accepts a JPEG that has a header and an end, which one that was cut short has not.

    Raises:
        PhotoError: if the file is missing, not a readable image, truncated or damaged.
    """
    with _opened(path) as image:
        transparent = image.mode in _WITH_ALPHA or "transparency" in image.info
        # Only raises: floats are rejected here already, and not when training reads the photo.
        if image.mode == "F":
            _eight_bit(image, path)
        try:
            with decoding():
                if image.format == "PNG":
                    # For PNG, Pillow compares the chunk checksums without inflating the pixels.
                    image.verify()
                elif decode or image.format != "JPEG" or not _has_end(path):
                    # In draft mode libjpeg decodes at a lower scale: it reads all data but computes few pixels.
                    image.draft(None, (max(image.width // 8, 1), max(image.height // 8, 1)))
                    image.load()
        except UndecodableError as error:
            raise PhotoError(_damaged(path, error)) from error
    return PhotoFacts(transparent=transparent)


def _has_end(path: Path) -> bool:
    """Return whether a JPEG has its end marker near the end of the file; some phones append further data."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _END, 0))
        return b"\xff\xd9" in file.read()


def mask_is_black(path: Path) -> bool:
    """Return whether a mask excludes every pixel of its photo.

    Raises:
        PhotoError: if the mask cannot be read.
    """
    return _black_or_white(_decoded(path)).getextrema()[1] == 0


def stored_size(path: Path) -> tuple[int, int]:
    """Return (width, height) of a photo as stored, from the header; EXIF orientation is not applied.

    Raises:
        PhotoError: if the file is missing or not a readable image.
    """
    with _opened(path) as image:
        return image.size


def upright_size(path: Path, stored: tuple[int, int]) -> tuple[int, int]:
    """Return (width, height) of a photo in the orientation of its calibration, from the header.

    Args:
        path: path of the photo.
        stored: (width, height) of the calibration. The photo must have this aspect ratio, either as stored or after its
            EXIF orientation is applied.

    Raises:
        PhotoError: if the file is missing, not a readable image, or has another aspect ratio.
    """
    with _opened(path) as image:
        rotated = _needs_rotation(image, path, stored)
        return (image.height, image.width) if rotated else image.size


def read_reduced(path: Path, longer_side: int) -> UInt8[torch.Tensor, "height width 3"]:
    """Read a photo as stored, reduced to about `longer_side`; a JPEG is decoded at a fraction of its size.

    Raises:
        PhotoError: if the file is missing, not a readable image, truncated or damaged.
    """
    with _opened(path) as image:
        try:
            with decoding():
                image.draft(None, (longer_side, longer_side))
                image.load()
        except UndecodableError as error:
            raise PhotoError(_damaged(path, error)) from error
        factor = max(max(image.size) // longer_side, 1)
        return torch.from_numpy(np.array(_eight_bit(image, path).reduce(factor)))


@dataclass(frozen=True, kw_only=True)
class PhotoFile:
    """A photo on disk and the steps to read it.

    Attributes:
        path: path of the photo.
        stored: (width, height) of the calibration, up to a factor. A photo that matches this aspect ratio only after
            its EXIF orientation is applied is rotated.
        width: output width in pixels.
        height: output height in pixels.
        background: RGB color (0 to 255) behind transparent pixels.
        mask: path of an image that is black where pixels must not be used; None if there is none.
        undistortion: resampling to a pinhole camera; None for a photo without distortion.
    """

    path: Path
    stored: tuple[int, int]
    width: int
    height: int
    background: tuple[int, int, int] = (0, 0, 0)
    mask: Path | None = None
    undistortion: Undistortion | None = None

    def read(self) -> PhotoPixels:
        """Decode, composite, undistort and resize the photo and its mask.

        Raises:
            PhotoError: if a file is unreadable, truncated, or does not have the aspect ratio of its camera.
        """
        decoded = self._upright(self.path)
        alpha = None
        if decoded.mode in _WITH_ALPHA or "transparency" in decoded.info:
            decoded = decoded.convert("RGBA")
            alpha = decoded.getchannel("A")
            background_image = Image.new("RGBA", decoded.size, (*self.background, 255))
            decoded = Image.alpha_composite(background_image, decoded)
            # A fully opaque alpha channel carries no information; dropping it saves memory.
            alpha = None if alpha.getextrema() == (255, 255) else alpha
        picture = np.array(self._resized(_eight_bit(decoded, self.path)))
        return PhotoPixels(
            image=torch.from_numpy(picture),
            mask=_tensor(self._mask()),
            alpha=_tensor(None if alpha is None else np.array(self._resized(alpha))),
        )

    def _resized(self, image: Image.Image) -> Image.Image:
        if self.undistortion is not None:
            return self.undistortion.apply(image)
        return by_area(image, self.width, self.height)

    def _mask(self) -> Pixels | None:
        """Return 255 where pixels are used, else 0; a resized pixel is used only if all of its area is."""
        field_of_view = None if self.undistortion is None else self.undistortion.field_of_view
        if self.mask is None:
            return field_of_view
        black_and_white = _black_or_white(self._upright(self.mask))
        # Averaged values below 255 cover some excluded area.
        mask = np.where(np.asarray(self._resized(black_and_white)) == 255, 255, 0).astype(np.uint8)
        # A pixel must be inside both the user's mask and the field of view of the lens.
        return mask if field_of_view is None else np.minimum(mask, field_of_view)

    def _upright(self, path: Path) -> Image.Image:
        image = _decoded(path)
        return ImageOps.exif_transpose(image) if _needs_rotation(image, path, self.stored) else image


def _black_or_white(mask: Image.Image) -> Image.Image:
    if "A" in mask.getbands() and mask.convert("L").getextrema()[0] == 255:
        mask = mask.getchannel("A")  # a white image whose mask is its alpha channel
    # Thresholding at the midpoint keeps the edges of masks saved as JPEG.
    return mask.convert("L").point([255 * (value > 127) for value in range(256)])


def _needs_rotation(image: Image.Image, path: Path, stored: tuple[int, int]) -> bool:
    """Return whether a photo has the aspect ratio of its camera only after its EXIF orientation is applied.

    Raises:
        PhotoError: if the photo has another aspect ratio in either orientation.
    """
    if _fits(image.size, stored):
        return False
    if image.getexif().get(_ORIENTATION, 1) != 1 and _fits((image.height, image.width), stored):
        return True
    msg = (
        f"{path} is {image.width}x{image.height}, but its camera was calibrated at {stored[0]}x{stored[1]}, a "
        "different aspect ratio: pass the photos (and masks) that belong to this reconstruction"
    )
    raise PhotoError(msg)


def _fits(size: tuple[int, int], stored: tuple[int, int]) -> bool:
    """Return whether two sizes have the same aspect ratio, up to a pixel of rounding per side."""
    # The scaled calibration and the photo may each be rounded by up to a pixel.
    scale = max(size[0] / stored[0], size[1] / stored[1])
    return all(abs(stored[i] * scale - size[i]) <= 1.0 + scale for i in (0, 1))


def _opened(path: Path) -> Image.Image:
    try:
        with decoding():
            return Image.open(path)
    except UndecodableError as error:
        explanation = (pointer_text(path) or _heic_text(path)) if path.is_file() else ""
        msg = explanation or f"photo {path} cannot be read ({error}): copy it again from the original"
        raise PhotoError(msg) from error


def _heic_text(path: Path) -> str:
    """Return an error message with the remedy if the file is a HEIC photo (the iPhone format), else ''."""
    if not is_heic(path):
        return ""
    return (
        f"photo {path} is in HEIC format, which is not supported: expected JPEG, PNG, TIFF, WebP or BMP; convert the "
        "photos to JPEG under the same names, with `heif-convert` on Linux or `sips -s format jpeg` on macOS, or find "
        "cameras for them anew with `fieldwatch data photos`"
    )


def _damaged(path: Path, error: Exception) -> str:
    return f"photo {path} is cut short or damaged ({error}): copy it again from the original"


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
        msg = f"photo {path} contains 32-bit floats of unknown range: convert it to an 8- or 16-bit PNG"
        raise PhotoError(msg)
    if image.mode.startswith("I"):
        # Pillow's own conversion clips 16-bit values at 255 instead of scaling them; 257 = 65535 / 255.
        gray = np.asarray(image.convert("I"), np.int64)
        image = Image.fromarray(((gray.clip(0, 65535) + 128) // 257).astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def _tensor(pixels: Pixels | None) -> torch.Tensor | None:
    return None if pixels is None else torch.from_numpy(pixels)
