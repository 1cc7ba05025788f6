"""Layout of a checkpoint's arrays in their file, for every version of the format.

Version 2, the current one, is a safetensors file: eight bytes with the length of a JSON header (little-endian), the
header with dtype, shape and offsets of each array by name, then the arrays without gaps. Version 1 is a file of raw
arrays, each at a multiple of 64 bytes, without a header.

In both versions, offsets are read from the manifest only. The header repeats them for other programs: it follows from
the manifest, and is compared byte by byte instead of being parsed.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final, runtime_checkable

from fieldwatch.checkpoint.array import item_size

ALIGNMENT: Final = 64
METADATA: Final = "__metadata__"
"""The name that safetensors reserves for metadata."""

_DTYPES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""Names of dtypes in safetensors; only those available since version 0.4."""
_PAIRS: Final = {"complex32": "F16", "complex64": "F32", "complex128": "F64"}
"""Complex numbers are described as pairs, real part first, in an additional last dimension of size 2."""
_RAW: Final = "U8"
"""All other dtypes are described as bytes; each of them takes one byte per element."""


@dataclass(frozen=True, kw_only=True)
class ArrayEntry:
    """Position and type of one array in its file.

    Attributes:
        name: name in the safetensors header; empty in version 1.
        dtype: name of the dtype.
        shape: shape of the array.
        offset: offset of the first byte from the end of the header.
        nbytes: size in bytes.
        sha256: hash of the bytes, in hexadecimal; empty if not known yet.
    """

    name: str = ""
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    nbytes: int
    sha256: str = ""


@runtime_checkable
class ArrayLayout(Protocol):
    """Layout of the arrays' file in one version of the format."""

    @property
    def file(self) -> str:
        """Name of the file."""
        ...

    @property
    def named(self) -> bool:
        """Whether arrays have names."""
        ...

    def offsets(self, entries: Sequence[ArrayEntry]) -> list[int]:
        """Return the offset of each array; the offsets of the entries are ignored."""
        ...

    def header(self, entries: Sequence[ArrayEntry]) -> bytes:
        """Return the header of the file."""
        ...

    def padded(self, nbytes: int) -> int:
        """Return the size of an array of ``nbytes`` bytes including its padding."""
        ...


@final
class RawLayout:
    """Version 1: consecutive arrays, each padded with zeros to a multiple of 64 bytes."""

    file = "tensors.bin"
    named = False

    def offsets(self, entries: Sequence[ArrayEntry]) -> list[int]:
        """Return the offsets in the order of the entries."""
        return _consecutive(range(len(entries)), [self.padded(entry.nbytes) for entry in entries])

    def header(self, entries: Sequence[ArrayEntry]) -> bytes:  # noqa: ARG002  the arrays begin at byte 0, whatever they are
        """Return an empty header."""
        return b""

    def padded(self, nbytes: int) -> int:
        """Round up to a multiple of 64."""
        return aligned(nbytes)


@final
class SafetensorsLayout:
    """Version 2: a safetensors file.

    Arrays with larger elements come first, so that each array is aligned to its element size without padding: the
    format forbids gaps.
    """

    file = "tensors.safetensors"
    named = True

    def offsets(self, entries: Sequence[ArrayEntry]) -> list[int]:
        """Return the offsets when the arrays are ordered by descending element size."""
        # `sorted` is stable: arrays with the same element size keep the order of the entries.
        order = sorted(range(len(entries)), key=lambda i: -item_size(entries[i].dtype))
        return _consecutive(order, [entry.nbytes for entry in entries])

    def header(self, entries: Sequence[ArrayEntry]) -> bytes:
        """Return the length of the JSON followed by the JSON, padded so that the arrays begin at a multiple of 64."""
        # Dtypes without a safetensors name are recorded in the metadata for other readers.
        other_dtypes = {entry.name: entry.dtype for entry in entries if entry.dtype not in _DTYPES}
        metadata = {"format": "pt", "writer": "fieldwatch"}
        metadata |= {f"dtype of {name}": dtype for name, dtype in other_dtypes.items()}
        fields = [f"{json.dumps(METADATA)}:{json.dumps(metadata, separators=(',', ':'))}"]
        fields += [_described(entry) for entry in sorted(entries, key=lambda entry: entry.offset)]
        text = f"{{{','.join(fields)}}}".encode("ascii")
        # JSON allows trailing spaces, which align the first array.
        text = text.ljust(aligned(8 + len(text)) - 8)
        return struct.pack("<Q", len(text)) + text

    def padded(self, nbytes: int) -> int:
        """Return ``nbytes``, because the format has no padding."""
        return nbytes


LAYOUTS: Final[dict[int, ArrayLayout]] = {1: RawLayout(), 2: SafetensorsLayout()}
"""Layouts of all versions that can be read."""
VERSION: Final = 2
"""Version that is written."""


def aligned(offset: int) -> int:
    """Round up to the next multiple of 64."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def file_size(layout: ArrayLayout, header: bytes, entries: Sequence[ArrayEntry]) -> int:
    """Return the size in bytes of a file with a header and these arrays."""
    return len(header) + sum(layout.padded(entry.nbytes) for entry in entries)


def _consecutive(order: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the offset of each part when the parts are stored consecutively in an order."""
    offsets = [0] * len(sizes)
    end = 0
    for i in order:
        offsets[i] = end
        end += sizes[i]
    return offsets


def _described(entry: ArrayEntry) -> str:
    """Return the header's JSON for one array, as ``"name": {...}``."""
    shape = entry.shape
    if entry.dtype in _PAIRS:
        dtype = _PAIRS[entry.dtype]
        shape = (*shape, 2)
    else:
        dtype = _DTYPES.get(entry.dtype, _RAW)
    place = {"dtype": dtype, "shape": shape, "data_offsets": (entry.offset, entry.offset + entry.nbytes)}
    return f"{json.dumps(entry.name)}:{json.dumps(place, separators=(',', ':'))}"
