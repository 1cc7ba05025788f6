"""Write Gaussians in a named format, and measure what the format loses."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwatch.files import write_file
from fieldwatch.recon.data.gaussians.cloud import GaussianCloud
from fieldwatch.recon.data.gaussians.compressed_ply import compressed_elements, compressed_order
from fieldwatch.recon.data.gaussians.dot_splat import dot_splat_bytes, dot_splat_order
from fieldwatch.recon.data.gaussians.files import write_gaussian_ply
from fieldwatch.recon.data.gaussians.ply import write_elements
from fieldwatch.recon.data.gaussians.precision import PrecisionLoss, precision_loss
from fieldwatch.recon.data.gaussians.raw import RawGaussians
from fieldwatch.recon.data.gaussians.reading import read_gaussians
from fieldwatch.recon.data.gaussians.sog_writing import sog_bytes
from fieldwatch.recon.data.gaussians.spz import spz_bytes


@dataclass(frozen=True, kw_only=True)
class WrittenGaussians:
    """A file that was written.

    Attributes:
        path: path of the file.
        gaussians: number of Gaussians in it.
        size: bytes.
        losses: differences between the Gaussians and those that are read back, by quantity.
        notes: notes about what the format cannot hold.
    """

    path: Path
    gaussians: int
    size: int
    losses: tuple[PrecisionLoss, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """How a format is written: the order of its rows, None for that of the cloud, and the file."""

    suffix: str
    order: Callable[[RawGaussians], NDArray[np.intp]] | None
    write: Callable[[Path, RawGaussians, bool], object]


def _write_ply(path: Path, raw: RawGaussians, _antialiased: bool) -> None:  # noqa: FBT001  one signature for all
    write_gaussian_ply(path, raw.unchecked_cloud(path))


def _write_compressed(path: Path, raw: RawGaussians, _antialiased: bool) -> None:  # noqa: FBT001
    write_elements(path, compressed_elements(raw))


def _write_spz(path: Path, raw: RawGaussians, antialiased: bool) -> None:  # noqa: FBT001
    write_file(path, spz_bytes(raw, antialiased=antialiased))


def _write_dot_splat(path: Path, raw: RawGaussians, _antialiased: bool) -> None:  # noqa: FBT001
    write_file(path, dot_splat_bytes(raw))


def _write_sog(path: Path, raw: RawGaussians, antialiased: bool) -> None:  # noqa: FBT001
    write_file(path, sog_bytes(raw, antialiased=antialiased))


_WRITERS = {
    "ply": _Writer(suffix=".ply", order=None, write=_write_ply),
    "compressed-ply": _Writer(suffix=".compressed.ply", order=compressed_order, write=_write_compressed),
    "spz": _Writer(suffix=".spz", order=None, write=_write_spz),
    "sog": _Writer(suffix=".sog", order=compressed_order, write=_write_sog),
    "splat": _Writer(suffix=".splat", order=dot_splat_order, write=_write_dot_splat),
}

WRITABLE = {name: writer.suffix for name, writer in _WRITERS.items()}
"""Formats that `write_gaussians` writes, with the ending of their files."""


def write_gaussians(
    path: Path | str, cloud: GaussianCloud, format_name: str, *, antialiased: bool = False
) -> WrittenGaussians:
    """Write Gaussians atomically, read the file back, and return its size and the loss of precision.

    `filter_3d` is merged into scales and opacities; `extra` is left out. A compressed PLY and .sog are sorted along
    a Morton curve, and .splat by size and opacity.

    Args:
        path: path of the file; an existing one is replaced.
        cloud: Gaussians, at least one.
        format_name: one of `WRITABLE`.
        antialiased: whether the Gaussians were trained with antialiasing, which .spz and .sog record.

    Raises:
        SplatFileError: if the format cannot hold the positions.
    """
    path = Path(path)
    writer = _WRITERS[format_name]
    raw = RawGaussians.of(cloud)
    if writer.order is not None:
        raw = raw.take(writer.order(raw))
    writer.write(path, raw, antialiased)
    again = read_gaussians(path)
    return WrittenGaussians(
        path=path,
        gaussians=len(again),
        size=path.stat().st_size,
        losses=precision_loss(raw, RawGaussians.of(again)),
        notes=_notes(raw, again, format_name),
    )


def format_of(path: Path) -> str | None:
    """Return the format that the ending of a name stands for; None if there is none."""
    name = path.name.lower()
    # The longest ending wins: a compressed PLY is a .ply, too.
    fitting = [format_name for format_name, suffix in WRITABLE.items() if name.endswith(suffix)]
    return max(fitting, key=lambda format_name: len(WRITABLE[format_name]), default=None)


def _notes(raw: RawGaussians, again: GaussianCloud, format_name: str) -> tuple[str, ...]:
    lost = raw.rest.shape[1] - again.rest.shape[1]
    if not lost:
        return ()
    return (f".{format_name} has no view-dependent color: {lost} SH functions above degree 0 were left out",)
