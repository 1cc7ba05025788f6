"""Uniform errors for damaged images, whatever Pillow raises."""

import struct
import warnings
import zlib
from collections.abc import Generator
from contextlib import contextmanager

from PIL import Image

from fieldwatch.base.errors import InputError


class UndecodableError(InputError):
    """An image cannot be opened or decoded: missing, damaged, truncated, of an unknown format, or too large."""


@contextmanager
def decoding() -> Generator[None]:
    """Convert the exceptions that Pillow raises on damaged images; the block should contain only Pillow calls.

    Pillow refuses images with more than 178 million pixels by their header. Its warning above half of that is
    suppressed.

    Raises:
        UndecodableError: Pillow raised an exception, which is chained.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            # Truncated TIFF: missing data raise an error as soon as they are needed, so the warning is redundant.
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
        MemoryError,  # a chunk that declares gigabytes
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise UndecodableError(f"expected a complete image, got {type(error).__name__}: {error}") from error
