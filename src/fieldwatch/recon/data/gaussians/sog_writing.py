"""Write PlayCanvas' SOG format, version 2; `sog.py` reads it.

Images are stored as WebP without loss. SH coefficients above degree 0 come from a palette of at most 65,536 entries:
scenes of up to as many Gaussians lose nothing by it.
"""

import io
import json
import math
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fieldwatch.recon.data.gaussians.codebook import codebook_of, nearest_codes, palette_of
from fieldwatch.recon.data.gaussians.quantization import (
    Bytes,
    Floats,
    opacities_of_logits,
    to_bytes,
    unit,
    without_largest,
)
from fieldwatch.recon.data.gaussians.raw import RawGaussians
from fieldwatch.recon.data.gaussians.sog import CODES, ENTRIES_PER_ROW, FIRST_MODE, FUNCTIONS, META

_VERSION = 2
_LARGEST_PALETTE = 1 << 16  # labels have 16 bits
_LEVELS = (1 << 16) - 1
_GENERATOR = "fieldwatch"
# Zip files carry times; a fixed one makes equal Gaussians equal files.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def sog_bytes(raw: RawGaussians, *, antialiased: bool = False) -> bytes:
    """Return the content of a .sog archive; neighbors in the order of `raw` become neighboring pixels."""
    images, meta = _means(raw.means)
    meta = {"version": _VERSION, "asset": {"generator": _GENERATOR}, "count": len(raw.means), **meta}
    meta["antialias"] = antialiased
    scales = codebook_of(raw.log_scales, CODES)
    images["scales"] = _per_gaussian(nearest_codes(raw.log_scales, scales))
    meta["scales"] = {"codebook": _numbers(scales), "files": ["scales.webp"]}
    largest, others = without_largest(unit(raw.quaternions))
    kept = to_bytes(255 * (others / math.sqrt(2) + 0.5))
    images["quats"] = _per_gaussian(np.concatenate([kept, (largest[:, None] + FIRST_MODE).astype(np.uint8)], 1))
    meta["quats"] = {"files": ["quats.webp"]}
    colors = codebook_of(raw.constant, CODES)
    opacities = to_bytes(255 * opacities_of_logits(raw.logits))
    images["sh0"] = _per_gaussian(np.concatenate([nearest_codes(raw.constant, colors), opacities[:, None]], 1))
    meta["sh0"] = {"codebook": _numbers(colors), "files": ["sh0.webp"]}
    if raw.rest.shape[1]:
        palette_images, meta["shN"] = _palette(raw.rest)
        images |= palette_images
    return _archive(images, meta)


def _means(means: Floats) -> tuple[dict[str, Bytes], dict[str, Any]]:
    """Return the images of the centers, as 16-bit fractions of the range of their logarithms; and their entry."""
    wide = means.astype(np.float64)
    logarithms = np.sign(wide) * np.log1p(np.abs(wide))
    low = logarithms.min(0)
    extent = logarithms.max(0) - low
    steps = np.rint((logarithms - low) / np.where(extent > 0, extent, 1) * _LEVELS).astype(np.uint16)
    images = {
        "means_l": _per_gaussian((steps & 255).astype(np.uint8)),
        "means_u": _per_gaussian((steps >> 8).astype(np.uint8)),
    }
    entry = {"mins": low.tolist(), "maxs": (low + extent).tolist(), "files": ["means_l.webp", "means_u.webp"]}
    return images, {"means": entry}


def _palette(rest: Floats) -> tuple[dict[str, Bytes], dict[str, Any]]:
    """Return the images of the palette of SH coefficients and of its labels; and their entry."""
    count, functions = rest.shape[:2]
    entries, labels = palette_of(rest.reshape(count, -1), _LARGEST_PALETTE)
    book = codebook_of(entries, CODES)
    rows = -(-len(entries) // ENTRIES_PER_ROW)
    pixels = np.zeros((rows * ENTRIES_PER_ROW, functions, 3), np.uint8)
    pixels[: len(entries)] = nearest_codes(entries, book).reshape(-1, functions, 3)
    low = (labels & 255).astype(np.uint8)
    high = (labels >> 8).astype(np.uint8)
    images = {
        "shN_centroids": pixels.reshape(rows, ENTRIES_PER_ROW * functions, 3),
        "shN_labels": _per_gaussian(np.stack([low, high, np.zeros_like(low)], 1)),
    }
    bands = next(bands for bands, number in FUNCTIONS.items() if number == functions)
    files = [f"{name}.webp" for name in images]
    return images, {"count": len(entries), "bands": bands, "codebook": _numbers(book), "files": files}


def _per_gaussian(values: Bytes) -> Bytes:
    """Return an image with one pixel per Gaussian, nearly square; sides are multiples of 4, as other writers do."""
    count, channels = values.shape
    width = 4 * math.ceil(math.sqrt(count) / 4)
    height = 4 * math.ceil(count / width / 4)
    pixels = np.zeros((height * width, channels), np.uint8)
    pixels[:count] = values
    return pixels.reshape(height, width, channels)


def _numbers(book: Floats) -> list[float]:
    return [float(value) for value in book.astype(np.float32)]


def _archive(images: dict[str, Bytes], meta: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    # WebP is compressed already.
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, pixels in images.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.webp", _EPOCH), _webp(pixels))
        archive.writestr(zipfile.ZipInfo(META, _EPOCH), json.dumps(meta, allow_nan=False).encode())
    return stream.getvalue()


def _webp(pixels: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    # `exact` keeps the colors of transparent pixels: the alpha channel holds opacities and modes of quaternions.
    Image.fromarray(pixels).save(stream, "WEBP", lossless=True, exact=True)
    return stream.getvalue()
