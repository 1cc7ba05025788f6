"""Read an image file as 8-bit RGB, whatever its mode: grayscale, palette, alpha, 16 bit, EXIF-rotated."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from fieldwatch.files import UndecodableError, decoding
from fieldwatch.recon.data.clip_error import ClipError

_ROTATED_ORIENTATIONS = frozenset({5, 6, 7, 8})  # EXIF orientations that swap height and width
_ORIENTATION = 0x0112  # EXIF tag


class DecodedImage(NamedTuple):
    """An 8-bit RGB image and short descriptions of the conversions that were applied."""

    image: Image.Image
    changes: frozenset[str]


def image_size(path: Path) -> tuple[int, int]:
    """Return the upright (height, width) from the header.

    Raises:
        ClipError: if the file is not a readable image.
    """
    with _opened(path) as image:
        # Pillow's getexif decodes all pixels of a PNG to find EXIF data behind them.
        exif_in_header = image.format != "PNG" or "exif" in image.info
        rotated = exif_in_header and image.getexif().get(_ORIENTATION) in _ROTATED_ORIENTATIONS
        return (image.width, image.height) if rotated else (image.height, image.width)


def read_image(path: Path) -> DecodedImage:
    """Decode one image file to 8-bit RGB.

    Alpha is composited over black, gray is repeated in three channels, 16-bit gray is divided by 257 and rounded, and
    the EXIF orientation is applied.

    Raises:
        ClipError: if the file is unreadable or truncated, or contains floats of unknown range.
    """
    with _opened(path) as image:
        try:
            with decoding():
                image.load()
        except UndecodableError as error:
            msg = f"{path} is cut short or damaged ({error}): copy or render this frame again, or remove the file"
            raise ClipError(msg) from error
        orientation = image.getexif().get(_ORIENTATION, 1)
        upright = ImageOps.exif_transpose(image)
    changes = {"rotated by EXIF orientation"} if orientation not in {0, 1} else set[str]()
    return _to_rgb(upright, path, changes)


def _opened(path: Path) -> Image.Image:
    try:
        with decoding():
            return Image.open(path)
    except UndecodableError as error:
        msg = f"{path} cannot be read as an image ({error}): replace the file, or move it out of the folder"
        raise ClipError(msg) from error


def _to_rgb(image: Image.Image, path: Path, changes: set[str]) -> DecodedImage:
    mode = image.mode
    # Float TIFFs may range to 1, to 255 or to physical units.
    if mode == "F":
        msg = f"{path} contains 32-bit floats of unknown range: convert the frames to 8- or 16-bit PNG"
        raise ClipError(msg)
    # 65535 / 257 = 255, so black and white map to 8 bits exactly.
    if mode.startswith("I"):
        gray = np.asarray(image.convert("I"), np.int64)
        image = Image.fromarray(((gray.clip(0, 65535) + 128) // 257).astype(np.uint8))
        changes.add("16-bit, rounded to 8 bit")
    if mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info:
        # Palettes with a transparent entry have no alpha channel before this conversion.
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema() != (255, 255):
            black = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
            rgba = Image.alpha_composite(black, rgba)
            changes.add("transparent, composited on black")
        image = rgba
    if mode in {"1", "L", "LA", "I", "I;16"}:
        changes.add("gray, repeated in three channels")
    return DecodedImage(image if image.mode == "RGB" else image.convert("RGB"), frozenset(changes))
