"""PlayCanvas' SOG format: images of 8-bit values, one pixel per Gaussian, described by meta.json; a folder or a zip.

Version 2 has codebooks for scales, colors and SH coefficients; version 1 (SOGS) has ranges (published description: "The
SOG Format" in the PlayCanvas documentation). Files hold the coordinates of the PLY that was converted.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fieldwatch.files import UndecodableError, decoding
from fieldwatch.recon.data.gaussians.error import SplatFileError
from fieldwatch.recon.data.gaussians.quantization import Bytes, Floats, logits_of_opacities, with_largest
from fieldwatch.recon.data.gaussians.raw import RawGaussians, check_count

META = "meta.json"
_LARGEST_META = 1 << 24
_LARGEST_IMAGE = 1 << 30
FUNCTIONS = {1: 3, 2: 8, 3: 15}
"""SH functions above degree 0, by bands."""
ENTRIES_PER_ROW = 64
"""Entries of the palette per row of its image."""
FIRST_MODE = 252
"""Alpha value that stands for the first of the four positions of the largest component of a quaternion."""
CODES = 256
"""Numbers of a codebook."""
Open = Callable[[str, int], bytes]
"""Returns the content of a member by its name, up to a number of bytes."""


def read_sog(path: Path) -> RawGaussians:
    """Read a .sog archive, or the folder or meta.json of an unbundled one, of version 1 or 2.

    Raises:
        SplatFileError: if a file is missing, damaged or too large, or the version is another one.
    """
    if path.is_dir() or path.name == META:
        folder = path if path.is_dir() else path.parent
        return _read(path, lambda name, most: _file_bytes(folder, name, most))
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, lambda name, most: _member_bytes(path, archive, name, most))
    except zipfile.BadZipFile as error:
        raise SplatFileError(f"{path} is a damaged .sog archive ({error}): copy or write it again") from error


def _file_bytes(folder: Path, name: str, most: int) -> bytes:
    # Names come from the file: one that leads out of the folder is not followed.
    path = folder / name
    if Path(name).name != name or not path.is_file() or path.stat().st_size > most:
        raise SplatFileError(
            f"{folder}: expected a file {name} of at most {most} bytes, as {META} says: copy the whole folder again"
        )
    return path.read_bytes()


def _member_bytes(path: Path, archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    found = [info for info in archive.infolist() if info.filename == name]
    if not found or found[0].file_size > most or found[0].flag_bits & 1:
        names = ", ".join(archive.namelist()[:8]) or "nothing"
        raise SplatFileError(
            f"{path}: expected a .sog archive with {name} of at most {most} bytes, got {names}: pass a .sog file"
        )
    try:
        return archive.read(found[0])
    except (OSError, EOFError, zlib.error) as error:
        raise SplatFileError(f"{path}: {name} is damaged ({error}): copy or write the file again") from error


@dataclass(frozen=True, kw_only=True, eq=False)
class _Meta:
    """Content of meta.json.

    Attributes:
        version: 1 or 2.
        count: number of Gaussians.
        files: names of the images, by attribute.
        ranges: smallest and largest values, by attribute: means, and in version 1 all others.
        codebooks: 256 values each, by attribute; empty in version 1.
        bands: SH degree of the palette; None if there is none, or if its image determines it.
        antialiased: whether the Gaussians were trained with antialiasing.
        packed_quaternions: whether version 1 declares them as packed.
    """

    version: int
    count: int
    files: Mapping[str, Sequence[str]]
    ranges: Mapping[str, tuple[Floats, Floats]]
    codebooks: Mapping[str, Floats]
    bands: int | None
    antialiased: bool
    packed_quaternions: bool


def _read(path: Path, open_member: Open) -> RawGaussians:
    meta = _meta(path, open_member(META, _LARGEST_META))
    if meta.version == 1 and not meta.packed_quaternions:
        raise SplatFileError(
            f"{path}: expected SOG of version 1 with packed quaternions, got an older draft of the format (the package "
            "sogs 1.0 wrote it): write it again from its .ply"
        )
    check_count(path, meta.count)
    return _decoded(path, meta, _Images(path, open_member, meta))


def _meta(path: Path, content: bytes) -> _Meta:
    version, parsed = _versioned(path, content)
    try:
        entries = {name: parsed[name] for name in ("means", "scales", "quats", "sh0", "shN") if parsed.get(name)}
        with_ranges = ("means",) if version == 2 else ("means", "scales", "sh0", "shN")
        with_codebooks = ("scales", "sh0", "shN") if version == 2 else ()
        return _Meta(
            version=version,
            count=int(parsed["count"] if version == 2 else parsed["means"]["shape"][0]),
            files={name: [str(file) for file in entry["files"]] for name, entry in entries.items()},
            ranges={name: _range(name, entries[name]) for name in with_ranges if name in entries},
            codebooks={name: _codebook(entries[name]["codebook"]) for name in with_codebooks if name in entries},
            bands=int(entries["shN"]["bands"]) if version == 2 and "shN" in entries else None,
            antialiased=bool(parsed.get("antialias")),
            packed_quaternions=parsed["quats"].get("encoding") == "quaternion_packed",
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise SplatFileError(
            f"{path}: {META} does not describe Gaussians as SOG does ({error!r}): pass a .sog file, or write it again"
        ) from error


def _versioned(path: Path, content: bytes) -> tuple[int, dict[str, Any]]:
    """Return the version and the content of a meta.json; the first version does not state it.

    Raises:
        SplatFileError: if it is not JSON, or of another version.
    """
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise SplatFileError(f"{path}: {META} is not JSON ({error}): copy or write the file again") from error
    version = parsed.get("version", 1) if isinstance(parsed, dict) else "a list"
    if not isinstance(parsed, dict) or version not in (1, 2):
        raise SplatFileError(f"{path}: expected {META} of SOG version 1 or 2, got {version}: write it as version 2")
    return int(version), parsed


def _range(name: str, entry: Mapping[str, Any]) -> tuple[Floats, Floats]:
    """Return the smallest and largest values of an attribute, one per channel; one for all SH coefficients."""
    shape = {"sh0": (4,), "shN": ()}.get(name, (3,))
    low, high = (np.asarray(entry[end], np.float64).reshape(shape) for end in ("mins", "maxs"))
    return low, high


def _codebook(values: Sequence[float | None]) -> Floats:
    if len(values) != CODES:
        raise ValueError(f"a codebook must have {CODES} values, got {len(values)}")
    # Some writers leave out the first entry, which continues the slope of the others.
    missing = values[0] is None
    book = np.array([0.0, *values[1:]] if missing else values, np.float32)
    if missing:
        book[0] = book[1] + (book[1] - book[255]) / 255
    return book


class _Images:
    """The images of a file.

    Args:
        path: path of the file, for messages.
        open_member: reads a member by its name.
        meta: content of meta.json.
    """

    def __init__(self, path: Path, open_member: Open, meta: _Meta) -> None:
        self._path = path
        self._open = open_member
        self._meta = meta

    def pixels(self, attribute: str, number: int = 0) -> Bytes:
        """Return the pixels of an image as RGBA, of shape (height, width, 4)."""
        names = self._meta.files.get(attribute, ())
        if number >= len(names):
            raise SplatFileError(
                f"{self._path}: expected {number + 1} images of {attribute} in {META}, got {len(names)}: write it again"
            )
        data = self._open(names[number], _LARGEST_IMAGE)
        try:
            with decoding(), Image.open(io.BytesIO(data)) as image:
                return np.asarray(image.convert("RGBA"))
        except UndecodableError as error:
            raise SplatFileError(
                f"{self._path}: {names[number]} cannot be decoded ({error}): copy the file again"
            ) from error

    def rows(self, attribute: str, number: int = 0) -> Bytes:
        """Return one pixel per Gaussian, of shape (n, 4)."""
        flat = self.pixels(attribute, number).reshape(-1, 4)
        if len(flat) < self._meta.count:
            raise SplatFileError(
                f"{self._path}: expected {self._meta.count} pixels in the image of {attribute}, got {len(flat)}: the "
                "file is damaged, write it again"
            )
        return flat[: self._meta.count]


def _decoded(path: Path, meta: _Meta, images: _Images) -> RawGaussians:
    low = images.rows("means", 0)[:, :3]
    high = images.rows("means", 1)[:, :3].astype(np.uint16)
    fractions = (low | high << 8).astype(np.float64) / 65535
    logarithms = _between(meta, "means", fractions)
    scales = images.rows("scales")[:, :3]
    base = images.rows("sh0")
    if meta.version == 2:
        log_scales = meta.codebooks["scales"][scales]
        constant = meta.codebooks["sh0"][base[:, :3]]
        logits = logits_of_opacities(base[:, 3].astype(np.float32) / 255)
    else:
        log_scales = _between(meta, "scales", scales / 255)
        values = _between(meta, "sh0", base / 255)
        constant = values[:, :3]
        logits = values[:, 3]
    return RawGaussians(
        means=np.sign(logarithms) * np.expm1(np.abs(logarithms)),
        log_scales=log_scales,
        quaternions=_quaternions(path, images.rows("quats")),
        logits=logits,
        constant=constant,
        rest=_rest(path, meta, images),
        notes=("the Gaussians were trained with antialiasing: render them with --antialiased",) * meta.antialiased,
    )


def _between(meta: _Meta, attribute: str, fractions: Floats) -> Floats:
    """Return the values at fractions of an attribute's range."""
    low, high = meta.ranges[attribute]
    return low * (1 - fractions) + high * fractions


def _quaternions(path: Path, pixels: Bytes) -> Floats:
    modes = pixels[:, 3].astype(np.intp) - FIRST_MODE
    if (modes < 0).any():
        raise SplatFileError(
            f"{path}: expected modes of quaternions of 252 to 255, got {int(pixels[:, 3].min())}: the images were "
            "compressed with loss, or the file is damaged; write it again"
        )
    return with_largest(modes, ((pixels[:, :3].astype(np.float32) / 255 - 0.5) * np.sqrt(2)).astype(np.float32))


def _rest(path: Path, meta: _Meta, images: _Images) -> Floats:
    """Return SH coefficients above degree 0: entries of a palette, 64 per row of its image."""
    if "shN" not in meta.files:
        return np.zeros((meta.count, 0, 3), np.float32)
    centroids = images.pixels("shN", 0)
    width = centroids.shape[1]
    functions = width // ENTRIES_PER_ROW if meta.bands is None else FUNCTIONS.get(meta.bands, 0)
    if functions not in FUNCTIONS.values() or width != functions * ENTRIES_PER_ROW:
        raise SplatFileError(
            f"{path}: expected a palette of {ENTRIES_PER_ROW} x 3, 8 or 15 pixels in width, got {width} for "
            f"{meta.bands} bands: the file is damaged, write it again"
        )
    palette = centroids[..., :3].reshape(-1, functions, 3)
    labels = images.rows("shN", 1).astype(np.intp)
    chosen = labels[:, 0] | labels[:, 1] << 8
    if int(chosen.max()) >= len(palette):
        raise SplatFileError(
            f"{path}: expected labels below {len(palette)}, the size of the palette, got {int(chosen.max())}: the file "
            "is damaged, write it again"
        )
    if meta.version == 2:
        return meta.codebooks["shN"][palette[chosen]]
    return _between(meta, "shN", palette[chosen] / np.float32(255))
