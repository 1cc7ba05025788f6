"""Arrays of numpy's files, bounded before anything is allocated.

A header can announce any shape, and a compressed member can expand a thousandfold. So headers are read first, here and
not by numpy's own parser (which evaluates them), and an array is read only when its size is within a bound.
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
"""Bytes of one array, unless a reader knows better."""

_MAGIC = b"\x93NUMPY"
# The limit of numpy's own reader (`max_header_size`).
_MAX_HEADER_BYTES = 10_000
# Byte order, kind and bytes of integers, floats and complex numbers, or a boolean; no objects, no records.
_NUMERIC_TYPE = re.compile(r"[<>|=]?(?:[iufc][0-9]{1,2}|b1)")
_ZIP_MAGIC = b"PK"
_ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,  # a password, or a compression that is not there
    ValueError,
    OverflowError,
)


class ArrayFileError(InputError):
    """A file of numpy's is damaged, holds something else than numbers, or is too large."""


@dataclass(frozen=True)
class ArrayHeader:
    """What a file says about its array.

    Attributes:
        shape: rows first.
        dtype: of numbers or booleans.
        fortran: whether columns come first in the file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * self.dtype.itemsize


def read_npy(source: Path | bytes, *, largest: int = LARGEST_ARRAY) -> NDArray[Any]:
    """Read the array of a ``.npy`` file; what follows it is not looked at.

    Args:
        source: the file, or what is in it.
        largest: bytes of the array at most.

    Raises:
        ArrayFileError: it is no such file, is damaged or cut short, holds no numbers, or more than ``largest`` bytes.
        OSError: it cannot be read.
    """
    name = str(source) if isinstance(source, Path) else "the array"
    with source.open("rb") if isinstance(source, Path) else BytesIO(source) as file:
        if file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC:
            raise ArrayFileError(f"{name} is an archive of several arrays: expected one array, as numpy.save writes it")
        file.seek(0)
        return _array(file, name, largest)


def read_npz_headers(path: Path) -> Mapping[str, ArrayHeader]:
    """Return what a ``.npz`` file says about its arrays, by name; no array is read.

    Raises:
        ArrayFileError: it is no such file, or is damaged, or a member is no array of numbers.
        OSError: it cannot be read.
    """
    with _members(path) as members:
        return {name: _header(file, f"{path}, {name}") for name, file in members}


def read_npz(
    path: Path, names: Collection[str] | None = None, *, largest: int = LARGEST_ARRAY
) -> Mapping[str, NDArray[Any]]:
    """Read arrays of a ``.npz`` file, by name.

    Args:
        path: the file.
        names: which to read; the others are passed over, whatever they announce. None reads all.
        largest: bytes of all these arrays together at most.

    Raises:
        ArrayFileError: it is no such file, is damaged or cut short, holds no numbers, or more than ``largest`` bytes.
        OSError: it cannot be read.
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
    """Give out the names of an archive's arrays, each with its file, open."""

    def opened(archive: zipfile.ZipFile) -> Generator[tuple[str, BufferedIOBase]]:
        for member in archive.infolist():
            with archive.open(member) as file:
                yield member.filename.removesuffix(".npy"), cast("BufferedIOBase", file)

    try:
        with path.open("rb") as raw, zipfile.ZipFile(raw) as archive, closing(opened(archive)) as members:
            yield members
    except ArrayFileError:
        raise
    except _ARCHIVE_ERRORS as error:
        raise ArrayFileError(f"{path} is no whole .npz file ({error}): write it again with numpy.savez") from error


def _array(file: BufferedIOBase, name: str, largest: int) -> NDArray[Any]:
    header = _header(file, name)
    # The header decides, before anything is read: a compressed member may expand a thousandfold.
    if header.nbytes > largest:
        raise ArrayFileError(
            f"{name} announces {header.dtype} of shape {header.shape}, {header.nbytes:,} bytes: expected at most "
            f"{max(largest, 0):,}"
        )
    data = _read(file, header.nbytes)
    if len(data) < header.nbytes:
        raise ArrayFileError(
            f"{name} is cut short: its header announces {header.nbytes:,} bytes, {len(data):,} follow; copy it again"
        )
    flat = np.frombuffer(data, header.dtype)
    # Arrays of the other byte order are converted: torch refuses them.
    flat = flat if header.dtype.isnative else flat.astype(header.dtype.newbyteorder("="))
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _read(file: BufferedIOBase, size: int) -> bytearray:
    """Read up to so many bytes in pieces: memory grows with what is there, not with what is announced."""
    data = bytearray()
    while len(data) < size and (piece := file.read(min(size - len(data), 1 << 24))):
        data += piece
    return data


def _header(file: BufferedIOBase, name: str) -> ArrayHeader:
    start = file.read(len(_MAGIC) + 2)
    if len(start) < len(_MAGIC) + 2 or not start.startswith(_MAGIC):
        raise ArrayFileError(f"{name} is no array of numpy's (it begins with {bytes(start[:8])!r}): use numpy.save")
    major = start[len(_MAGIC)]
    if major not in (1, 2, 3):
        raise ArrayFileError(f"{name} has version {major} of numpy's format: expected 1, 2 or 3")
    # Version 1 of the format has a length of two bytes, later ones have four.
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
        # Only types that matched reach numpy, which would accept records and objects as well.
        dtype = np.dtype(kind if numbers else "V")
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise _damaged(name, text) from error
    # `type(...) is int` because True is an int, too; 32 dimensions are the most that numpy 1 allows.
    whole = isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape) and len(shape) <= 32
    if not whole or not isinstance(fortran, bool):
        raise _damaged(name, text)
    if not numbers:
        raise ArrayFileError(f"{name} holds {kind!r}: expected numbers")
    return ArrayHeader(shape, dtype, fortran)


def _damaged(name: str, text: str) -> ArrayFileError:
    return ArrayFileError(f"{name} has a header that is no array's ({text[:60]!r}): it is damaged, write it again")
