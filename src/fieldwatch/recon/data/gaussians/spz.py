"""Niantic's .spz format: fixed-point positions and bytes for the rest, by attribute, compressed.

Versions 2 and 3 are one gzip stream; version 4 has a plain header and one Zstandard stream per attribute (published
description: README of nianticlabs/spz). The axes of the file are right, up, back (RUB); Gaussians are turned to and
from the axes of 3DGS (right, down, forward) by half a turn about x.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.data.gaussians.error import SplatFileError
from fieldwatch.recon.data.gaussians.quantization import (
    Bytes,
    Floats,
    half_turn_about_x,
    logits_of_opacities,
    opacities_of_logits,
    pack_signed_2_10_10_10,
    to_bytes,
    unit,
    unpack_signed_2_10_10_10,
)
from fieldwatch.recon.data.gaussians.raw import RawGaussians, check_count

GZIP = b"\x1f\x8b"
MAGIC = b"NGSP"

_HEADER = struct.Struct("<4sIIBBBB")  # magic, version, count, SH degree, fractional bits, flags, reserved
_HEADER_4 = struct.Struct("<4sIIBBBBI12x")  # version 4: number of streams instead of reserved, offset of the contents
_FUNCTIONS = (0, 3, 8, 15, 24)  # SH functions above degree 0, by degree
_MOST_FUNCTIONS = 15  # degree 3, the highest that is rendered
_ANTIALIASED = 1
_HAS_EXTENSIONS = 2
_COORDINATES = 0xADBE0003  # extension record that declares other axes than RUB
_RUB = 4
_PIECE = 1 << 22  # bytes that are decompressed at a time
_MOST_FRACTIONAL_BITS = 20
_LARGEST = (1 << 23) - 1  # largest 24-bit fixed-point number
_SH_BITS = (5, 4)  # precision of degree 1 and above it, the defaults of the format


@dataclass(frozen=True, kw_only=True)
class _Header:
    version: int
    count: int
    degree: int
    fractional_bits: int
    flags: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes per Gaussian of positions, opacities, colors, scales, rotations and SH coefficients."""
        return (9, 1, 3, 3, 3 if self.version == 2 else 4, 3 * _FUNCTIONS[self.degree])


def read_spz(path: Path) -> RawGaussians:
    """Read an .spz file of version 2, 3 or 4.

    Raises:
        SplatFileError: if the file is damaged, cut short, of another version, or declares other axes than RUB.
    """
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
        file.seek(0)
        header, parts = _read_zstandard(path, file) if start == MAGIC else _read_gzip(path, file)
    return _decoded(header, parts)


def spz_bytes(raw: RawGaussians, *, antialiased: bool = False) -> bytes:
    """Return the content of an .spz file of version 3, which has the finest fixed point that the positions allow.

    Raises:
        SplatFileError: if a position does not fit in 24 bits.
    """
    means, quaternions, rest = half_turn_about_x(raw.means, raw.quaternions, raw.rest)
    farthest = float(np.abs(means).max())
    bits = _MOST_FRACTIONAL_BITS
    while bits and farthest * (1 << bits) > _LARGEST:
        bits -= 1
    if farthest > _LARGEST:
        raise SplatFileError(
            f"expected positions below {_LARGEST} world units for .spz, got {farthest:g}: scale the scene, or write "
            "another format"
        )
    degree = _FUNCTIONS.index(rest.shape[1])
    fixed = np.rint(means.astype(np.float64) * (1 << bits)).astype("<i4")
    parts: list[NDArray[Any]] = [
        # The three low bytes of each little-endian number.
        np.ascontiguousarray(fixed).view(np.uint8).reshape(-1, 4)[:, :3],
        to_bytes(255 * opacities_of_logits(raw.logits)),
        to_bytes(255 * (0.15 * raw.constant + 0.5)),
        to_bytes(16 * (raw.log_scales + 10)),
        # (x, y, z, w), in contrast to every other format here.
        pack_signed_2_10_10_10(unit(quaternions)[:, [1, 2, 3, 0]]).astype("<u4"),
        np.concatenate([_coarse(rest, 0, 3, _SH_BITS[0]), _coarse(rest, 3, None, _SH_BITS[1])], 1),
    ]
    header = _HEADER.pack(MAGIC, 3, len(means), degree, bits, _ANTIALIASED if antialiased else 0, 0)
    # wbits 31: gzip with an empty header, so that equal Gaussians give equal files.
    # Level 9 takes seven times as long for 2 % less.
    stream = zlib.compressobj(6, zlib.DEFLATED, 31)
    pieces = [stream.compress(header), *(stream.compress(part.tobytes()) for part in parts), stream.flush()]
    return b"".join(pieces)


def _coarse(rest: Floats, first: int, end: int | None, bits: int) -> Bytes:
    """Return SH coefficients as bytes of which only the first bits are used, so that they compress well."""
    step = 1 << 8 - bits
    return to_bytes(128 + step * np.rint(rest[:, first:end] * 128 / step))


def _read_gzip(path: Path, file: BinaryIO) -> tuple[_Header, list[Bytes]]:
    take = _inflating(path, file)
    header = _parsed(path, bytes(take(_HEADER.size)), (2, 3))
    check_count(path, header.count)
    return header, [take(size * header.count) for size in header.sizes]


def _inflating(path: Path, file: BinaryIO) -> Callable[[int], Bytes]:
    """Return a function that returns the next bytes of a gzip file; memory is used only for bytes that exist."""
    stream = zlib.decompressobj(31)
    waiting = bytearray()

    def take(size: int) -> Bytes:
        try:
            while len(waiting) < size and not stream.eof:
                piece = stream.unconsumed_tail or file.read(_PIECE)
                if not piece:
                    break
                waiting.extend(stream.decompress(piece, _PIECE))
        except zlib.error as error:
            raise SplatFileError(f"{path} is a damaged .spz file ({error}): copy or write it again") from error
        if len(waiting) < size:
            raise SplatFileError(
                f"{path}: expected {size} more bytes of an .spz file, got {len(waiting)}: the file is cut short, copy "
                "it again"
            )
        taken = np.frombuffer(bytes(memoryview(waiting)[:size]), np.uint8)
        del waiting[:size]
        return taken

    return take


def _parsed(path: Path, start: bytes, versions: tuple[int, ...]) -> _Header:
    magic, version, count, degree, bits, flags, _ = _HEADER.unpack(start[: _HEADER.size])
    if magic != MAGIC:
        raise SplatFileError(
            f"{path}: expected a gzip file that begins with {MAGIC.decode()}, as .spz does, got {magic!r}: pass an "
            ".spz file, or decompress this one"
        )
    if version not in versions:
        raise SplatFileError(
            f"{path}: expected .spz of version 2, 3 or 4, got version {version}: write it again with a newer program"
        )
    if degree >= len(_FUNCTIONS) or bits > 24:
        raise SplatFileError(
            f"{path}: expected an SH degree of 0 to 4 and at most 24 fractional bits, got {degree} and {bits}: the "
            "header is damaged, copy the file again"
        )
    return _Header(version=version, count=count, degree=degree, fractional_bits=bits, flags=flags)


def _read_zstandard(path: Path, file: BinaryIO) -> tuple[_Header, list[Bytes]]:
    start = file.read(_HEADER_4.size)
    if len(start) < _HEADER_4.size:
        raise SplatFileError(f"{path}: expected a header of 32 bytes, got {len(start)}: the file is cut short")
    header = _parsed(path, start, (4,))
    check_count(path, header.count)
    streams, offset = _HEADER_4.unpack(start)[6:8]
    size = path.stat().st_size
    sizes = [each * header.count for each in header.sizes if each]
    if streams < len(sizes) or not _HEADER_4.size <= offset <= size - 16 * streams:
        raise SplatFileError(
            f"{path}: expected at least {len(sizes)} streams inside {size} bytes, got {streams} at byte {offset}: the "
            "file is cut short or damaged, copy it again"
        )
    if header.flags & _HAS_EXTENSIONS:
        _refuse_other_axes(path, file.read(offset - _HEADER_4.size))
    file.seek(offset)
    contents = np.frombuffer(file.read(16 * streams), "<u8").reshape(-1, 2).tolist()
    return header, [
        _decompressed(path, file, compressed, declared, expected)
        for (compressed, declared), expected in zip(contents, sizes, strict=False)
    ]


def _decompressed(path: Path, file: BinaryIO, compressed: int, declared: int, expected: int) -> Bytes:
    """Return the next Zstandard stream.

    pyarrow decompresses it: the Python library has Zstandard from 3.14 on only.
    """
    import pyarrow as pa  # noqa: PLC0415  optional, and 0.3 s

    piece = file.read(min(compressed, path.stat().st_size))
    if declared != expected or len(piece) < compressed:
        raise SplatFileError(
            f"{path}: expected a stream of {expected} bytes, compressed to {compressed}, got {declared} and "
            f"{len(piece)}: the file is cut short or damaged, copy it again"
        )
    try:
        return np.frombuffer(pa.decompress(piece, expected, codec="zstd", asbytes=True), np.uint8)
    # pyarrow's errors for damaged data are OSErrors.
    except OSError as error:
        raise SplatFileError(f"{path} is a damaged .spz file ({error}): copy or write it again") from error


def _refuse_other_axes(path: Path, records: bytes) -> None:
    """Raise an error if an extension record (type, length, payload) declares other axes than RUB."""
    offset = 0
    while offset + 8 <= len(records):
        kind, length = struct.unpack_from("<II", records, offset)
        payload = records[offset + 8 : offset + 8 + length]
        if kind == _COORDINATES and payload[:1] != bytes([_RUB]):
            raise SplatFileError(
                f"{path}: expected the axes of .spz, right-up-back, got an extension that declares others (number "
                f"{payload[:1].hex()}): write the file again without SPZ_ADOBE_coordinate_system"
            )
        offset += 8 + length


def _decoded(header: _Header, parts: list[Bytes]) -> RawGaussians:
    count = header.count
    triples = parts[0].reshape(count, 3, 3).astype(np.int32)
    fixed = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    # Bit 23 is the sign.
    signed = np.where(fixed > _LARGEST, fixed - (1 << 24), fixed)
    stored = parts[5] if header.degree else np.empty(0, np.uint8)
    # Functions above degree 3 are dropped while they are bytes.
    coefficients = stored.reshape(count, _FUNCTIONS[header.degree], 3)[:, :_MOST_FUNCTIONS].astype(np.float32)
    means, quaternions, rest = half_turn_about_x(
        (signed / (1 << header.fractional_bits)).astype(np.float32),
        _quaternions(header, parts[4]),
        (coefficients - 128) / 128,
    )
    return RawGaussians(
        means=means,
        log_scales=parts[3].reshape(count, 3).astype(np.float32) / 16 - 10,
        quaternions=quaternions,
        logits=logits_of_opacities(parts[1].astype(np.float32) / 255),
        constant=(parts[2].reshape(count, 3).astype(np.float32) / 255 - 0.5) / 0.15,
        rest=rest,
        notes=_notes(header),
    )


def _quaternions(header: _Header, stored: Bytes) -> Floats:
    """Return rotations as (w, x, y, z)."""
    if header.version == 2:
        axes = stored.reshape(-1, 3).astype(np.float32) / 127.5 - 1
        w = np.sqrt((1 - np.square(axes).sum(1, keepdims=True)).clip(0))
        return np.concatenate([w, axes], 1)
    return unpack_signed_2_10_10_10(np.ascontiguousarray(stored).view("<u4"))[:, [3, 0, 1, 2]]


def _notes(header: _Header) -> tuple[str, ...]:
    notes: list[str] = []
    if header.flags & _ANTIALIASED:
        notes.append("the Gaussians were trained with antialiasing: render them with --antialiased")
    if header.degree == len(_FUNCTIONS) - 1:
        notes.append("the file has SH degree 4: the coefficients above degree 3 are left out")
    return tuple(notes)
