"""Damaged pictures end in one error, whatever Pillow makes of them."""

import struct
import warnings
import zlib
from collections.abc import Generator
from contextlib import contextmanager

from PIL import Image

from fieldwatch.base.errors import InputError


class UndecodableError(InputError):
    """A picture cannot be opened or decoded: missing, damaged, cut short, of an unknown kind, or of too many pixels."""


@contextmanager
def decoding() -> Generator[None]:
    """Turn what Pillow raises on a damaged picture into one error; for its own calls only.

    Pillow refuses pictures of more than 178 million pixels by their header; it only warns above half of that, which is
    not repeated here.

    Raises:
        UndecodableError: in place of what was raised.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            # a TIFF that is cut short: what is missing is an error as soon as it is needed
            warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.TiffImagePlugin")
            yield
    except (
        OSError,
        SyntaxError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        EOFError,
        ArithmeticError,
        MemoryError,  # a chunk that announces gigabytes
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise UndecodableError(f"expected a whole picture, got {type(error).__name__}: {error}") from error
