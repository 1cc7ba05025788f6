"""Textures as image files: written as PNG, read from any format that Pillow decodes."""

from io import BytesIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from fieldwatch.files import UndecodableError, decoding
from fieldwatch.recon.mesh.error import MeshError


def png_bytes(picture: UInt8[np.ndarray, "height width 3"]) -> bytes:
    """Encode an image as PNG; the first row is the top row."""
    stream = BytesIO()
    Image.fromarray(picture).save(stream, "PNG")
    return stream.getvalue()


def read_picture(data: bytes, name: str) -> UInt8[np.ndarray, "height width 3"]:
    """Decode an image file to 8-bit RGB; the alpha channel is dropped.

    Args:
        data: contents of the file.
        name: name of the texture in error messages.

    Raises:
        MeshError: the data is not an image, or is truncated.
    """
    try:
        with decoding(), Image.open(BytesIO(data)) as image:
            return np.array(image.convert("RGB"))
    except UndecodableError as error:
        msg = f"the texture {name} cannot be read as a picture ({error}): copy or export it again"
        raise MeshError(msg) from error
