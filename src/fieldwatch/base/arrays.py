"""Read NumPy files with a size limit that is checked before anything is allocated.

A header can declare any shape, and a compressed member can expand a thousandfold. Therefore headers are parsed first,
here and not by NumPy's parser (which evaluates them), and an array is read only if its size is within the limit.
"""

import ast
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BufferedIOBase, BytesIO
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base.errors import InputError

LARGEST_ARRAY = 4 * 2**30
"""Default limit for the size of an array in bytes."""

_MAGIC = b"\x93NUMPY"
# The default `max_header_size` of numpy.load.
_MAX_HEADER_BYTES = 10_000
# Byte order, kind and size of integers, floats and complex numbers, or a boolean; no objects and no structured types.
_NUMERIC_TYPE = re.compile(r"[<>|=]?(?:[iufc][0-9]{1,2}|b1)")
_ZIP_MAGIC = b"PK"
_ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,  # a password, or an unavailable compression
    ValueError,
    OverflowError,
)


class ArrayFileError(InputError):
    """A NumPy file is damaged, contains something other than numbers, or is too large."""


@dataclass(frozen=True)
class ArrayHeader:
    """Header of an array in a NumPy file.

    Attributes:
        shape: shape of the array.
        dtype: numeric or boolean type of the array.
        fortran: whether the array is stored in column-major (Fortran) order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return prod(self.shape) * self.dtype.itemsize


def read_npy(source: Path | bytes, *, largest: int = LARGEST_ARRAY) -> NDArray[Any]:
    """Read the array of a ``.npy`` file; data after the array are ignored.

    Args:
        source: path of the file, or its content.
        largest: maximum size of the array in bytes.

    Raises:
        ArrayFileError: the file is not a ``.npy`` file, is damaged or truncated, does not contain numbers, or its array
            is larger than ``largest``.
        OSError: the file cannot be read.
    """
    name = str(source) if isinstance(source, Path) else "the array"
    with source.open("rb") if isinstance(source, Path) else BytesIO(source) as file:
        if file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC:
            raise ArrayFileError(f"{name} is an .npz archive: expected a single array, as written by numpy.save")
        file.seek(0)
        return _array(file, name, largest)


def read_npz_headers(path: Path) -> Mapping[str, ArrayHeader]:
    """Return the headers of the arrays in a ``.npz`` file by name; no array is read.

    Raises:
        ArrayFileError: the file is not a ``.npz`` file, is damaged, or a member is not a numeric array.
        OSError: the file cannot be read.
    """
    with _members(path) as members:
        return {name: _header(file, f"{path}, {name}") for name, file in members}


def read_npz(
    path: Path, names: Collection[str] | None = None, *, largest: int = LARGEST_ARRAY
) -> Mapping[str, NDArray[Any]]:
    """Read arrays of a ``.npz`` file by name.

    Args:
        path: file to read.
        names: names of the arrays to read; all others are skipped, whatever their headers declare. None reads all.
        largest: maximum total size of the arrays in bytes.

    Raises:
        ArrayFileError: the file is not a ``.npz`` file, is damaged or truncated, does not contain numbers, or its
            arrays are larger than ``largest``.
        OSError: the file cannot be read.
    """
    arrays: dict[str, NDArray[Any]] = {}
    with _members(path) as members:
        for name, file in members:
            if names is None or name in names:
                arrays[name] = _array(file, f"{path}, {name}", largest)
                largest -= arrays[name].nbytes
    return arrays


@contextmanager
def _members(path: Path) -> Generator[Iterator[tuple[str, BufferedIOBase]]]:
    """Open an archive, and yield an iterator over the names of its arrays and their open files."""

    def opened(archive: zipfile.ZipFile) -> Generator[tuple[str, BufferedIOBase]]:
        for member in archive.infolist():
            with archive.open(member) as file:
                yield member.filename.removesuffix(".npy"), cast("BufferedIOBase", file)

    try:
        with path.open("rb") as raw, zipfile.ZipFile(raw) as archive, closing(opened(archive)) as members:
            yield members
    # An ArrayFileError is a ValueError too, and must not be wrapped.
    except ArrayFileError:
        raise
    except _ARCHIVE_ERRORS as error:
        raise ArrayFileError(f"{path} is not a valid .npz file ({error}): write it again with numpy.savez") from error


def _array(file: BufferedIOBase, name: str, largest: int) -> NDArray[Any]:
    header = _header(file, name)
    # Check the header before anything is read: a compressed member may expand a thousandfold.
    if header.nbytes > largest:
        raise ArrayFileError(
            f"{name} has shape {header.shape} of {header.dtype}, {header.nbytes:,} bytes: expected at most "
            f"{max(largest, 0):,} bytes"
        )
    data = _read(file, header.nbytes)
    if len(data) < header.nbytes:
        raise ArrayFileError(
            f"{name} is truncated: expected {header.nbytes:,} bytes after the header, got {len(data):,}; copy it again"
        )
    flat = np.frombuffer(data, header.dtype)
    # Convert to native byte order, the only one that torch accepts.
    flat = flat if header.dtype.isnative else flat.astype(header.dtype.newbyteorder("="))
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _read(file: BufferedIOBase, size: int) -> bytearray:
    """Read up to ``size`` bytes in pieces, so that memory grows with the actual and not the declared size."""
    data = bytearray()
    while len(data) < size and (piece := file.read(min(size - len(data), 1 << 24))):
        data += piece
    return data


def _header(file: BufferedIOBase, name: str) -> ArrayHeader:
    start = file.read(len(_MAGIC) + 2)
    if len(start) < len(_MAGIC) + 2 or not start.startswith(_MAGIC):
        raise ArrayFileError(f"{name} is not a .npy file (starts with {bytes(start[:8])!r}): write it with numpy.save")
    major = start[len(_MAGIC)]
    if major not in (1, 2, 3):
        raise ArrayFileError(f"{name} has .npy format version {major}: expected 1, 2 or 3")
    # The header length has two bytes in version 1 of the format, and four in later versions.
    width = "<H" if major == 1 else "<I"
    raw = file.read(struct.calcsize(width))
    length = struct.unpack(width, raw)[0] if len(raw) == struct.calcsize(width) else 0
    if not 0 < length <= _MAX_HEADER_BYTES:
        raise ArrayFileError(f"{name} has a header of {length:,} bytes: expected 1 to {_MAX_HEADER_BYTES:,}")
    text = file.read(length).decode("latin-1")
    try:
        about = ast.literal_eval(text.strip())
        shape = about["shape"]
        kind = about["descr"]
        fortran = about["fortran_order"]
        numbers = isinstance(kind, str) and _NUMERIC_TYPE.fullmatch(kind) is not None
        # Pass only matching types to NumPy, which would accept structured and object types too.
        dtype = np.dtype(kind if numbers else "V")
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise _damaged(name, text) from error
    # `type(...) is int` because True is an int too; NumPy 1 allows at most 32 dimensions.
    whole = isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape) and len(shape) <= 32
    if not whole or not isinstance(fortran, bool):
        raise _damaged(name, text)
    if not numbers:
        raise ArrayFileError(f"{name} contains {kind!r}: expected numbers")
    return ArrayHeader(shape, dtype, fortran)


def _damaged(name: str, text: str) -> ArrayFileError:
    return ArrayFileError(f"{name} has a damaged array header ({text[:60]!r}): write the file again")
