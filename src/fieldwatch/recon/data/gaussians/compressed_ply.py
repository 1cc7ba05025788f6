"""SuperSplat's compressed PLY: four 32-bit words per Gaussian, relative to the bounds of its chunk of 256.

The element `chunk` has the bounds of positions, log scales and (in newer files) base colors; `vertex` has the packed
words; `sh`, if present, has one byte per SH coefficient above degree 0, in -4 to 4 (published description: "Compressing
Gaussian Splats" in the PlayCanvas blog). The axes are those of the uncompressed PLY.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.data.gaussians.cloud import GaussianCloud
from fieldwatch.recon.data.gaussians.quantization import (
    Floats,
    colors_of_constants,
    constants_of_colors,
    logits_of_opacities,
    opacities_of_logits,
    pack_2_10_10_10,
    to_bytes,
    unit,
    unpack_2_10_10_10,
)
from fieldwatch.recon.data.gaussians.raw import RawGaussians
from fieldwatch.recon.formats import PlyError, Table

_CHUNK = 256
_WORDS = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
_POSITIONS = ("x", "y", "z")
_SCALES = ("scale_x", "scale_y", "scale_z")
_COLORS = ("r", "g", "b")
_SH_RANGE = 8.0  # from the smallest to the largest SH coefficient
_MOST_SCALE = 20.0  # bound of log scales that readers of the format expect
_11_10_11 = ((21, 11), (11, 10), (0, 11))  # offset and width of three fields of a word, bits
_8_8_8_8 = ((24, 8), (16, 8), (8, 8), (0, 8))
_FUNCTIONS = {0: 0, 9: 3, 24: 8, 45: 15}  # SH functions above degree 0, by columns of `sh`


def is_compressed(tables: Mapping[str, Table]) -> bool:
    """Return whether the elements are those of a compressed file."""
    return "chunk" in tables and "packed_position" in (tables["vertex"].dtype.names or ())


def read_compressed(path: Path, tables: Mapping[str, Table]) -> GaussianCloud:
    """Read Gaussians from the elements of a compressed file.

    Raises:
        PlyError: if a column is missing, or the number of chunks does not match the number of vertices.
    """
    chunks = tables["chunk"]
    vertices = tables["vertex"]
    _check_columns(path, "chunk", chunks, [f"{end}_{name}" for end in ("min", "max") for name in _POSITIONS + _SCALES])
    _check_columns(path, "vertex", vertices, _WORDS)
    needed = -(-len(vertices) // _CHUNK)
    if len(chunks) != needed:
        raise PlyError(
            f"{path}: expected {needed} chunks of {_CHUNK} Gaussians for {len(vertices)} vertices, got {len(chunks)}: "
            "the file is damaged, write it again"
        )
    words = {name: vertices[name].astype(np.uint32) for name in _WORDS}
    colors = _unpacked(words["packed_color"], _8_8_8_8)
    # Older files have no bounds of colors: these are in 0 to 1.
    if f"min_{_COLORS[0]}" in (chunks.dtype.names or ()):
        _check_columns(path, "chunk", chunks, [f"{end}_{name}" for end in ("min", "max") for name in _COLORS])
        base_colors = _within(chunks, _COLORS, colors[:, :3])
    else:
        base_colors = colors[:, :3]
    return RawGaussians(
        means=_within(chunks, _POSITIONS, _unpacked(words["packed_position"], _11_10_11)),
        log_scales=_within(chunks, _SCALES, _unpacked(words["packed_scale"], _11_10_11)),
        quaternions=unpack_2_10_10_10(words["packed_rotation"]),
        logits=logits_of_opacities(colors[:, 3]),
        constant=constants_of_colors(base_colors),
        rest=_rest(path, tables.get("sh"), len(vertices)),
    ).unchecked_cloud(path)


def compressed_order(raw: RawGaussians) -> NDArray[np.intp]:
    """Return the order of the rows: along a Morton curve, so that the bounds of chunks are tight."""
    low = raw.means.min(0)
    extent = (raw.means.max(0) - low).astype(np.float64)
    steps = ((raw.means - low) / np.where(extent > 0, extent, 1) * 1023).astype(np.uint32)
    codes = _spread_bits(steps[:, 0]) | _spread_bits(steps[:, 1]) << 1 | _spread_bits(steps[:, 2]) << 2
    return np.argsort(codes, kind="stable")


def compressed_elements(raw: RawGaussians) -> dict[str, Table]:
    """Return the elements of a compressed file; the Gaussians are best in `compressed_order`."""
    count = len(raw.means)
    starts = np.arange(0, count, _CHUNK)
    quantities = {
        _POSITIONS: raw.means,
        _SCALES: raw.log_scales.clip(-_MOST_SCALE, _MOST_SCALE),
        _COLORS: colors_of_constants(raw.constant),
    }
    bounds = {axes: _bounds(values, starts) for axes, values in quantities.items()}
    # Some readers rely on this order of the columns: lower and upper bounds of one quantity after the other.
    chunks = {
        f"{end}_{axis}": bounds[axes][number][:, i]
        for axes in quantities
        for number, end in enumerate(("min", "max"))
        for i, axis in enumerate(axes)
    }
    fractions = {axes: _fractions(values, bounds[axes]) for axes, values in quantities.items()}
    opacities = opacities_of_logits(raw.logits)[:, None]
    words = {
        "packed_position": _packed(fractions[_POSITIONS], _11_10_11),
        "packed_rotation": pack_2_10_10_10(unit(raw.quaternions)),
        "packed_scale": _packed(fractions[_SCALES], _11_10_11),
        "packed_color": _packed(np.concatenate([fractions[_COLORS], opacities], 1), _8_8_8_8),
    }
    tables = {"chunk": _table(chunks, "<f4"), "vertex": _table(words, "<u4")}
    if raw.rest.shape[1]:
        flat = raw.rest.transpose(0, 2, 1).reshape(count, -1)
        # The 256 steps are intervals: a byte is the middle of its interval.
        stored = to_bytes(np.floor((flat / _SH_RANGE + 0.5) * 256))
        tables["sh"] = np.ascontiguousarray(stored).view([(f"f_rest_{i}", "u1") for i in range(flat.shape[1])])[:, 0]
    return tables


def _check_columns(path: Path, element: str, table: Table, needed: Any) -> None:
    missing = [name for name in needed if name not in (table.dtype.names or ())]
    if missing:
        raise PlyError(
            f"{path} is a compressed PLY whose element {element} has no {', '.join(missing)}: write the file again, "
            "or export it as an uncompressed .ply"
        )


def _unpacked(words: NDArray[np.uint32], fields: tuple[tuple[int, int], ...]) -> Floats:
    """Return the fields of each word, scaled to 0 to 1."""
    columns = [(words >> offset & (1 << width) - 1).astype(np.float32) / ((1 << width) - 1) for offset, width in fields]
    return np.stack(columns, 1)


def _packed(fractions: Floats, fields: tuple[tuple[int, int], ...]) -> NDArray[np.uint32]:
    words = np.zeros(len(fractions), np.uint32)
    for column, (offset, width) in enumerate(fields):
        most = (1 << width) - 1
        words |= np.rint(fractions[:, column] * most).clip(0, most).astype(np.uint32) << offset
    return words


def _within(chunks: Table, names: tuple[str, ...], fractions: Floats) -> Floats:
    """Return the values at fractions of the bounds of each Gaussian's chunk."""
    bounds = (np.stack([chunks[f"{end}_{name}"] for name in names], 1) for end in ("min", "max"))
    low, high = (np.repeat(bound, _CHUNK, 0)[: len(fractions)] for bound in bounds)
    return low * (1 - fractions) + high * fractions


def _bounds(values: Floats, starts: NDArray[np.intp]) -> tuple[Floats, Floats]:
    return np.minimum.reduceat(values, starts, 0), np.maximum.reduceat(values, starts, 0)


def _fractions(values: Floats, bounds: tuple[Floats, Floats]) -> Floats:
    low, high = (np.repeat(bound, _CHUNK, 0)[: len(values)] for bound in bounds)
    extent = high - low
    return (values - low) / np.where(extent > 0, extent, 1)


def _rest(path: Path, table: Table | None, count: int) -> Floats:
    """Return SH coefficients from the element `sh`, which is channel-major like the columns of an uncompressed PLY."""
    names = [] if table is None else [f"f_rest_{i}" for i in range(len(table.dtype.names or ()))]
    if table is None or not names:
        return np.zeros((count, 0, 3), np.float32)
    if len(names) not in _FUNCTIONS or len(table) != count or not set(names) <= set(table.dtype.names or ()):
        raise PlyError(
            f"{path}: expected an element sh with {count} rows of 9, 24 or 45 columns f_rest_*, got {len(table)} rows "
            f"of {len(names)} columns: write the file again"
        )
    flat = np.stack([table[name] for name in names], 1).astype(np.float32)
    # The outermost bytes are the bounds themselves; the others are the middle of their interval.
    fractions = np.where(flat == 0, 0, np.where(flat == 255, 1, (flat + 0.5) / 256)).astype(np.float32)
    return ((fractions - 0.5) * _SH_RANGE).reshape(count, 3, -1).transpose(0, 2, 1)


def _spread_bits(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Put two zero bits between the bits of 10-bit numbers."""
    for shift, mask in ((16, 0x030000FF), (8, 0x0300F00F), (4, 0x030C30C3), (2, 0x09249249)):
        values = ((values | values << shift) & mask).astype(np.uint32)
    return values


def _table(columns: Mapping[str, NDArray[Any]], kind: str) -> Table:
    length = len(next(iter(columns.values())))
    table: Table = np.empty(length, [(name, kind) for name in columns])
    for name, values in columns.items():
        table[name] = values
    return table
