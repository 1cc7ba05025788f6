"""The .ksplat format of mkkellogg's GaussianSplats3D: sections of Gaussians, positions relative to buckets.

A header of 4096 bytes and a header of 1024 bytes for each section come before the data. Level 0 stores float32; level 1
stores positions as 16-bit offsets from the center of the Gaussian's bucket and the rest as float16; level 2 stores SH
coefficients as bytes. Colors are bytes, SH coefficients go up to degree 2. The axes are those of the PLY that was
converted.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.data.gaussians.error import SplatFileError
from fieldwatch.recon.data.gaussians.quantization import (
    Bytes,
    Floats,
    constants_of_colors,
    logits_of_opacities,
)
from fieldwatch.recon.data.gaussians.raw import RawGaussians, check_count, log_scales_of

_HEADER_SIZE = 4096
_SECTION_HEADER_SIZE = 1024
_FUNCTIONS = (0, 3, 8)  # SH functions above degree 0, by degree
_SH_RANGE = 1.5  # range of 8-bit SH coefficients in files that do not declare it
_OFFSET_RANGE = 32767  # 16-bit position of the bucket's center in files that do not declare it
_MOST_SECTIONS = 4096

_HEADER = np.dtype(
    {
        "names": ["major", "minor", "sections", "count", "level", "sh_low", "sh_high"],
        "formats": ["u1", "u1", "<u4", "<u4", "<u2", "<f4", "<f4"],
        "offsets": [0, 1, 4, 16, 20, 36, 40],
        "itemsize": _HEADER_SIZE,
    }
)
_SECTION = np.dtype(
    {
        "names": [
            "count", "capacity", "bucket_size", "buckets", "block", "bucket_bytes", "offset_range", "full", "partial",
            "degree",
        ],
        "formats": ["<u4", "<u4", "<u4", "<u4", "<f4", "<u2", "<u4", "<u4", "<u4", "<u2"],
        "offsets": [0, 4, 8, 12, 16, 20, 24, 32, 36, 40],
        "itemsize": _SECTION_HEADER_SIZE,
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parts:
    """Arrays of one section: positions, standard deviations, rotations, colors in 0 to 1, SH coefficients."""

    means: Floats
    scales: Floats
    quaternions: Floats
    colors: Floats
    rest: Floats


def read_ksplat(path: Path) -> RawGaussians:
    """Read a .ksplat file of compression level 0, 1 or 2. Sections of a lower SH degree are padded with zeros.

    Raises:
        SplatFileError: if the file is cut short, damaged, or of another version or level.
    """
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    header = _header(path, data)
    sections = data[_HEADER_SIZE : _HEADER_SIZE + int(header["sections"]) * _SECTION_HEADER_SIZE].view(_SECTION)
    offset = _HEADER_SIZE + sections.nbytes
    parts: list[_Parts] = []
    for section in sections:
        size, part = _section(path, data[offset:], header, section)
        offset += size
        parts.append(part)
    functions = max((part.rest.shape[1] for part in parts), default=0)
    padded = [np.pad(part.rest, ((0, 0), (0, functions - part.rest.shape[1]), (0, 0))) for part in parts]
    check_count(path, sum(len(part.means) for part in parts))
    colors = np.concatenate([part.colors for part in parts])
    return RawGaussians(
        means=np.concatenate([part.means for part in parts]),
        log_scales=log_scales_of(np.concatenate([part.scales for part in parts])),
        quaternions=np.concatenate([part.quaternions for part in parts]),
        logits=logits_of_opacities(colors[:, 3]),
        constant=constants_of_colors(colors[:, :3]),
        rest=np.concatenate(padded),
    )


def _header(path: Path, data: Bytes) -> np.void:
    if len(data) < _HEADER_SIZE:
        raise SplatFileError(
            f"{path}: expected a .ksplat file with a header of {_HEADER_SIZE} bytes, got {len(data)} bytes: the file "
            "is cut short or of another format; copy it again"
        )
    header = data[:_HEADER_SIZE].view(_HEADER)[0]
    version = f"{header['major']}.{header['minor']}"
    if version != "0.1" or header["level"] > 2:
        raise SplatFileError(
            f"{path}: expected .ksplat of version 0.1 and compression level 0 to 2, got version {version} and level "
            f"{header['level']}: the file is damaged, or of another format"
        )
    sections = int(header["sections"])
    if not 0 < sections <= _MOST_SECTIONS or len(data) < _HEADER_SIZE + sections * _SECTION_HEADER_SIZE:
        raise SplatFileError(
            f"{path}: expected 1 to {_MOST_SECTIONS} sections inside {len(data)} bytes, got {sections}: the file is "
            "cut short or damaged, copy it again"
        )
    return header


def _section(path: Path, data: Bytes, header: np.void, section: np.void) -> tuple[int, _Parts]:
    """Return the size of a section in bytes, and its Gaussians."""
    level = int(header["level"])
    degree = int(section["degree"])
    count = int(section["count"])
    if degree >= len(_FUNCTIONS) or count > section["capacity"]:
        raise SplatFileError(
            f"{path}: expected a section of SH degree 0 to 2 with at most {section['capacity']} Gaussians, got degree "
            f"{degree} and {count}: the file is damaged, copy it again"
        )
    row = _row(level, degree)
    lengths_size = 4 * int(section["partial"])
    centers_size = int(section["bucket_bytes"]) * int(section["buckets"])
    size = lengths_size + centers_size + int(section["capacity"]) * row.itemsize
    if len(data) < size:
        raise SplatFileError(
            f"{path}: expected a section of {size} bytes for {section['capacity']} Gaussians, got {len(data)}: the "
            "file is cut short, copy it again"
        )
    rows = data[lengths_size + centers_size :][: count * row.itemsize].view(row)
    means = rows["mean"].astype(np.float32)
    if level:
        centers = data[lengths_size : lengths_size + centers_size].view("<f4").reshape(-1, 3)
        buckets = _buckets(path, section, data[:lengths_size].view("<u4"), count)
        offset_range = int(section["offset_range"]) or _OFFSET_RANGE
        means = (means - offset_range) * (section["block"] / 2 / offset_range) + centers[buckets]
    return size, _Parts(
        means=means.astype(np.float32),
        scales=rows["scale"].astype(np.float32),
        quaternions=rows["rotation"].astype(np.float32),
        colors=rows["color"].astype(np.float32) / 255,
        rest=_rest(header, rows["sh"], _FUNCTIONS[degree]),
    )


def _row(level: int, degree: int) -> np.dtype[np.void]:
    number = "<f2" if level else "<f4"
    return np.dtype(
        [
            ("mean", "<u2" if level else "<f4", 3),
            ("scale", number, 3),
            ("rotation", number, 4),
            ("color", "u1", 4),
            ("sh", "u1" if level == 2 else number, (3 * _FUNCTIONS[degree],)),
        ]
    )


def _buckets(path: Path, section: np.void, partial_lengths: NDArray[np.uint32], count: int) -> NDArray[np.intp]:
    """Return each Gaussian's bucket: full buckets come first, then partial ones with their own lengths."""
    full = int(section["full"])
    buckets = int(section["buckets"])
    lengths = np.concatenate([np.full(min(full, buckets), section["bucket_size"], np.int64), partial_lengths])
    if section["bucket_bytes"] != 12 or len(lengths) != buckets or lengths.sum() < count:
        raise SplatFileError(
            f"{path}: expected {buckets} buckets of 12 bytes that hold {count} Gaussians, got {len(lengths)} of "
            f"{section['bucket_bytes']} bytes that hold {lengths.sum()}: the file is damaged, copy it again"
        )
    return np.searchsorted(np.cumsum(lengths), np.arange(count), "right")


def _rest(header: np.void, stored: NDArray[np.generic], functions: int) -> Floats:
    """Return SH coefficients of shape (n, functions, 3)."""
    values = stored.astype(np.float32)
    if header["level"] == 2:
        low = float(header["sh_low"]) or -_SH_RANGE
        high = float(header["sh_high"]) or _SH_RANGE
        values = low + values / 255 * (high - low)
    # Each degree is stored by channel: its functions for red, then green, then blue.
    parts = []
    first = 0
    for width in (3, 5)[: (functions > 0) + (functions > 3)]:
        parts.append(values[:, first : first + 3 * width].reshape(-1, 3, width).transpose(0, 2, 1))
        first += 3 * width
    return np.concatenate(parts, 1) if parts else np.zeros((len(values), 0, 3), np.float32)
