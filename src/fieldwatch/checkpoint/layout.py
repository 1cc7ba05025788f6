"""Where the arrays of a checkpoint lie in their file, for every version of the format.

Version 2, which is written today, is a file in the safetensors layout: eight bytes with the length of a JSON header
(little endian), the header with dtype, shape and place of each array by name, then the arrays without gaps. Version 1
is a file of raw arrays, each at a multiple of 64 bytes, without a header.

In both versions the manifest alone says where an array lies. The header repeats it for other readers: it follows from
the manifest, and a reader compares it byte by byte instead of parsing it.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final, runtime_checkable

from fieldwatch.checkpoint.array import item_size

ALIGNMENT: Final = 64
METADATA: Final = "__metadata__"
"""The one name that safetensors reserves."""

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
"""What safetensors calls a dtype; only names that it has known since version 0.4."""
_PAIRS: Final = {"complex32": "F16", "complex64": "F32", "complex128": "F64"}
"""Complex numbers are described as pairs, real part first, in a last dimension of size 2."""
_RAW: Final = "U8"
"""How all other dtypes are described: as their bytes. Each of them takes one byte per element."""


@dataclass(frozen=True, kw_only=True)
class ArrayEntry:
    """Where one array lies in its file.

    Attributes:
        name: its name in a safetensors header; empty in version 1.
        dtype: its dtype's name.
        shape: its sizes.
        offset: its first byte, counted from the end of the header.
        nbytes: its length.
        sha256: of its bytes, in hexadecimal; empty while it is not known.
    """

    name: str = ""
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    nbytes: int
    sha256: str = ""


@runtime_checkable
class ArrayLayout(Protocol):
    """One version's way to put arrays into a file."""

    @property
    def file(self) -> str:
        """The name of the file."""
        ...

    @property
    def named(self) -> bool:
        """Whether arrays have names."""
        ...

    def offsets(self, entries: Sequence[ArrayEntry]) -> list[int]:
        """Return where each array has to lie; the offsets that the entries have are ignored."""
        ...

    def header(self, entries: Sequence[ArrayEntry]) -> bytes:
        """Return what the file begins with."""
        ...

    def padded(self, nbytes: int) -> int:
        """Return what an array of that length takes, with the zeros after it."""
        ...


@final
class RawLayout:
    """Version 1: arrays one after the other, each padded with zeros to a multiple of 64 bytes."""

    file = "tensors.bin"
    named = False

    def offsets(self, entries: Sequence[ArrayEntry]) -> list[int]:
        """Return the places in the order of the entries."""
        return _consecutive(range(len(entries)), [self.padded(entry.nbytes) for entry in entries])

    def header(self, entries: Sequence[ArrayEntry]) -> bytes:  # noqa: ARG002  the arrays begin at byte 0, whatever they are
        """Return nothing."""
        return b""

    def padded(self, nbytes: int) -> int:
        """Round up to a multiple of 64."""
        return aligned(nbytes)


@final
class SafetensorsLayout:
    """Version 2: a safetensors file.

    Arrays of larger elements come first. So each begins at a multiple of its element's size though nothing lies between
    them: the format forbids gaps.
    """

    file = "tensors.safetensors"
    named = True

    def offsets(self, entries: Sequence[ArrayEntry]) -> list[int]:
        """Return the places by falling element size, and otherwise in the order of the entries."""
        # `sorted` is stable: arrays of one element size keep the order of the entries.
        order = sorted(range(len(entries)), key=lambda i: -item_size(entries[i].dtype))
        return _consecutive(order, [entry.nbytes for entry in entries])

    def header(self, entries: Sequence[ArrayEntry]) -> bytes:
        """Return the length of the JSON and the JSON, padded with spaces so that the arrays begin at 64 bytes."""
        other_dtypes = {entry.name: entry.dtype for entry in entries if entry.dtype not in _DTYPES}
        metadata = {"format": "pt", "writer": "fieldwatch"}
        metadata |= {f"dtype of {name}": dtype for name, dtype in other_dtypes.items()}
        fields = [f"{json.dumps(METADATA)}:{json.dumps(metadata, separators=(',', ':'))}"]
        fields += [_described(entry) for entry in sorted(entries, key=lambda entry: entry.offset)]
        text = f"{{{','.join(fields)}}}".encode("ascii")
        # JSON allows spaces at its end; the first array then begins at a multiple of 64 bytes.
        text = text.ljust(aligned(8 + len(text)) - 8)
        return struct.pack("<Q", len(text)) + text

    def padded(self, nbytes: int) -> int:
        """Return the length itself."""
        return nbytes


LAYOUTS: Final[dict[int, ArrayLayout]] = {1: RawLayout(), 2: SafetensorsLayout()}
"""The layout of every version that can be read. A version stays here for as long as somebody may have a checkpoint."""
VERSION: Final = 2
"""The version that is written."""


def aligned(offset: int) -> int:
    """Round up to the next multiple of 64."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def file_size(layout: ArrayLayout, header: bytes, entries: Sequence[ArrayEntry]) -> int:
    """Return the bytes of the file that holds a header and these arrays."""
    return len(header) + sum(layout.padded(entry.nbytes) for entry in entries)


def _consecutive(order: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the offset of each part when the parts follow one another in an order."""
    offsets = [0] * len(sizes)
    end = 0
    for i in order:
        offsets[i] = end
        end += sizes[i]
    return offsets


def _described(entry: ArrayEntry) -> str:
    """Return one member of the header's object."""
    shape = entry.shape
    if entry.dtype in _PAIRS:
        dtype = _PAIRS[entry.dtype]
        shape = (*shape, 2)
    else:
        dtype = _DTYPES.get(entry.dtype, _RAW)
    place = {"dtype": dtype, "shape": shape, "data_offsets": (entry.offset, entry.offset + entry.nbytes)}
    return f"{json.dumps(entry.name)}:{json.dumps(place, separators=(',', ':'))}"
