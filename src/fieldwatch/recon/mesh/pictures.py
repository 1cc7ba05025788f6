"""Textures as picture files: PNG out; PNG, JPEG and what else Pillow reads in."""

from io import BytesIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from fieldwatch.files import UndecodableError, decoding
from fieldwatch.recon.mesh.error import MeshError


def png_bytes(picture: UInt8[np.ndarray, "height width 3"]) -> bytes:
    """Return a picture as PNG; its first row is the upper one."""
    stream = BytesIO()
    Image.fromarray(picture).save(stream, "PNG")
    return stream.getvalue()


def read_picture(data: bytes, name: str) -> UInt8[np.ndarray, "height width 3"]:
    """Return the picture that a file holds, as 8-bit red, green and blue; transparency is left out.

    Args:
        data: the file.
        name: what to call it in a message.

    Raises:
        MeshError: it is no picture, or cut short.
    """
    try:
        with decoding(), Image.open(BytesIO(data)) as image:
            return np.array(image.convert("RGB"))
    except UndecodableError as error:
        msg = f"the texture {name} cannot be read as a picture ({error}): copy or export it again"
        raise MeshError(msg) from error
