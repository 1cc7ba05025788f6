"""File layout: preamble, compressed JSON header, tables, payload, SHA-256 of everything before it.

    8 bytes   magic: FWVIDEO and a line feed
    2 bytes   layout version
    3 x 8     lengths of header, tables and payload
    header    JSON, deflated
    tables    minima and scales, tensors that are stored uncoded
    payload   range-coded symbols
    32 bytes  SHA-256

All numbers are little-endian.
"""

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwatch import InputError
from fieldwatch.files import write_file

MAGIC = b"FWVIDEO\n"
LAYOUT = 1
_PREAMBLE = struct.Struct("<8sHQQQ")
_CHECKSUM = 32


class BitstreamError(InputError):
    """The file is not a bitstream, is incomplete, or has a newer layout."""


@dataclass(frozen=True, kw_only=True)
class BitstreamSections:
    """Contents of a file; ``header`` as JSON values, the others as bytes."""

    header: dict[str, Any]
    tables: bytes
    payload: bytes


@dataclass(frozen=True, kw_only=True)
class SectionSizes:
    """Bytes per section, which sum to the size of the file."""

    preamble: int
    header: int
    tables: int
    payload: int
    checksum: int


def write_sections(path: Path, sections: BitstreamSections) -> SectionSizes:
    """Write the file atomically and return the sizes of its sections."""
    # No spaces after separators: the header is part of the file size that is reported.
    header = zlib.compress(json.dumps(sections.header, separators=(",", ":")).encode(), 9)
    preamble = _PREAMBLE.pack(MAGIC, LAYOUT, len(header), len(sections.tables), len(sections.payload))
    content = preamble + header + sections.tables + sections.payload
    write_file(path, content + hashlib.sha256(content).digest(), durable=True)
    return SectionSizes(
        preamble=len(preamble),
        header=len(header),
        tables=len(sections.tables),
        payload=len(sections.payload),
        checksum=_CHECKSUM,
    )


def read_sections(path: Path) -> tuple[BitstreamSections, SectionSizes]:
    """Read and verify a file.

    Raises:
        BitstreamError: the file is not a bitstream, has a newer layout, or is truncated or modified.
    """
    content = path.read_bytes()
    header, tables, payload = _lengths(path, content)
    # Verified before the header is parsed: damaged JSON would give a confusing error.
    if hashlib.sha256(content[:-_CHECKSUM]).digest() != content[-_CHECKSUM:]:
        msg = f"{path} does not match its checksum, so it was modified: copy or write it again"
        raise BitstreamError(msg)
    edges = [_PREAMBLE.size, _PREAMBLE.size + header, _PREAMBLE.size + header + tables]
    sections = BitstreamSections(
        header=json.loads(zlib.decompress(content[edges[0] : edges[1]])),
        tables=content[edges[1] : edges[2]],
        payload=content[edges[2] : edges[2] + payload],
    )
    sizes = SectionSizes(preamble=_PREAMBLE.size, header=header, tables=tables, payload=payload, checksum=_CHECKSUM)
    return sections, sizes


def _lengths(path: Path, content: bytes) -> tuple[int, int, int]:
    """Return the lengths of header, tables and payload after checking that they account for every byte."""
    if content[: len(MAGIC)] != MAGIC[: len(content)] or not content:
        raise BitstreamError(f"{path} is not a fieldwatch video bitstream: it starts with {content[:8]!r}")
    if len(content) < _PREAMBLE.size:
        raise BitstreamError(f"{path} is truncated: its {len(content)} bytes do not even contain the preamble")
    _, layout, header, tables, payload = _PREAMBLE.unpack_from(content)
    if layout != LAYOUT:
        msg = f"{path}: expected layout {LAYOUT}, got {layout}: read it with the version of fieldwatch that wrote it"
        raise BitstreamError(msg)
    # The length is checked first, to tell truncation from modification.
    expected = _PREAMBLE.size + header + tables + payload + _CHECKSUM
    if len(content) != expected:
        state = "truncated" if len(content) < expected else "too long"
        msg = f"{path} is {state}: expected {expected} bytes by its preamble, got {len(content)}; copy it again"
        raise BitstreamError(msg)
    return header, tables, payload
