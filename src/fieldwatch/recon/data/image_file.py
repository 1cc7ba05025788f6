"""One image file as 8-bit RGB, whatever its mode: grey, palette, alpha, 16 bit, EXIF-turned."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from fieldwatch.files import UndecodableError, decoding
from fieldwatch.recon.data.clip_error import ClipError

_TURNED = frozenset({5, 6, 7, 8})  # EXIF orientations that swap height and width
_ORIENTATION = 0x0112


class Decoded(NamedTuple):
    """An image in 8-bit RGB, and what had to be done to make it so (one word each, counted by the caller)."""

    image: Image.Image
    changes: frozenset[str]


def image_size(path: Path) -> tuple[int, int]:
    """Return (height, width) as shown, from the header alone.

    Raises:
        ClipError: when the file is no image that can be read.
    """
    with _opened(path) as image:
        # a PNG would decode all its pixels in search of EXIF behind them
        seen = image.format != "PNG" or "exif" in image.info
        turned = seen and image.getexif().get(_ORIENTATION) in _TURNED
        return (image.width, image.height) if turned else (image.height, image.width)


def read_image(path: Path) -> Decoded:
    """Decode one image file to RGB.

    Alpha is composited on black, grey is repeated, 16-bit grey is divided by 257 and rounded, EXIF orientation applied.

    Raises:
        ClipError: when the file is unreadable or cut short, or holds floats whose range nobody stated.
    """
    with _opened(path) as image:
        try:
            with decoding():
                image.load()
        except UndecodableError as error:
            msg = f"{path} is cut short or damaged ({error}): copy or render this frame again, or remove the file"
            raise ClipError(msg) from error
        orientation = image.getexif().get(_ORIENTATION, 1)
        shown = ImageOps.exif_transpose(image)
    changes = {"turned upright by EXIF orientation"} if orientation not in {0, 1} else set[str]()
    return _to_rgb(shown, path, changes)


def _opened(path: Path) -> Image.Image:
    try:
        with decoding():
            return Image.open(path)
    except UndecodableError as error:
        msg = f"{path} cannot be read as an image ({error}): replace the file, or move it out of the folder"
        raise ClipError(msg) from error


def _to_rgb(image: Image.Image, path: Path, changes: set[str]) -> Decoded:
    mode = image.mode
    if mode == "F":
        msg = f"{path} holds 32-bit floats, whose range is not stated: convert the frames to 8- or 16-bit PNG"
        raise ClipError(msg)
    if mode.startswith("I"):
        grey = np.asarray(image.convert("I"), np.int64)
        image = Image.fromarray(((grey.clip(0, 65535) + 128) // 257).astype(np.uint8))
        changes.add("16-bit, rounded to 8 bit")
    if mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info:
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema() != (255, 255):
            black = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
            rgba = Image.alpha_composite(black, rgba)
            changes.add("transparent, composited on black")
        image = rgba
    if mode in {"1", "L", "LA", "I", "I;16"}:
        changes.add("grey, repeated in three channels")
    return Decoded(image if image.mode == "RGB" else image.convert("RGB"), frozenset(changes))
