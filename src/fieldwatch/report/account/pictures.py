"""Embedding of pictures in a page: scales untrusted pictures down to a size limit."""

import base64
import io
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import Image

from fieldwatch.base import UndecodableError, decoding
from fieldwatch.report.account.event_pictures import PNG

_MOST_PIXELS = 60_000_000
"""Maximum size of a picture that is decoded: it takes three bytes per pixel."""
_MOST_BYTES = 64 << 20
"""Maximum size of a file that is read."""
_TRIES = ((960, 82), (720, 78), (560, 74), (420, 68), (280, 60))
"""Longer side in pixels and JPEG quality, tried in order until the picture fits."""
_SMALL = 12_000
"""Size in bytes up to which a PNG is embedded as it is: small pictures are diagrams or thumbnails."""


@dataclass(frozen=True, kw_only=True)
class EmbeddedPicture:
    """A picture that can be embedded in a page.

    Attributes:
        source: ``data:`` URI.
        width: width of the original, in pixels.
        height: height of the original, in pixels.
    """

    source: str
    width: int
    height: int


@lru_cache(maxsize=64)
def picture_of(png: bytes, most: int) -> EmbeddedPicture | None:
    """Return a PNG as a data URI of at most about ``most`` bytes; None if it cannot be decoded.

    Results are cached, because a live view requests the same pictures repeatedly.
    """
    size = _size(png)
    if size is None:
        return None
    width, height = size
    # Base64 writes three bytes as four characters.
    if len(png) <= min(_SMALL, most * 3 // 4):
        return EmbeddedPicture(source=_uri("png", png), width=width, height=height)
    smaller = _as_jpeg(png, most * 3 // 4)
    return None if smaller is None else EmbeddedPicture(source=_uri("jpeg", smaller), width=width, height=height)


def read_png(path: Path) -> bytes:
    """Return the content of a file; empty if the file is too large or cannot be read."""
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= _MOST_BYTES else b""
    except OSError:
        return b""


def _size(png: bytes) -> tuple[int, int] | None:
    """Return width and height from the header, so that a decompression bomb is never decoded."""
    if not png.startswith(PNG) or len(png) < 33:
        return None
    # The IHDR chunk is always first, at a fixed offset.
    width, height = struct.unpack(">II", png[16:24])
    return (width, height) if 0 < width * height <= _MOST_PIXELS else None


def _as_jpeg(png: bytes, most: int) -> bytes | None:
    try:
        with decoding():
            image = Image.open(io.BytesIO(png)).convert("RGB")
    except UndecodableError:
        return None
    for side, quality in _TRIES:
        # thumbnail() works in place, and a second reduction of the same picture would blur it.
        scaled = image.copy()
        scaled.thumbnail((side, side))
        out = io.BytesIO()
        scaled.save(out, "JPEG", quality=quality, optimize=True)
        if out.tell() <= most:
            return out.getvalue()
    return None


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
