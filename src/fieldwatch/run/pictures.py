"""Encoding of images for sinks."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode ``[height, width, 3]`` or ``[height, width]`` 8-bit pixels as a PNG file.

    Raises:
        ValueError: the pixels have another dtype or shape.
    """
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ValueError(
            f"an image must be [height, width, 3] or [height, width] uint8, got {pixels.dtype} {pixels.shape}: "
            "scale to 0..255, move channels last"
        )
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()
