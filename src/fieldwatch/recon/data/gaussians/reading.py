"""Read Gaussians from files of any known format, recognized by content."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

from fieldwatch.recon.data.gaussians.cloud import GaussianCloud
from fieldwatch.recon.data.gaussians.dot_splat import read_dot_splat
from fieldwatch.recon.data.gaussians.error import SplatFileError
from fieldwatch.recon.data.gaussians.files import read_gaussian_ply
from fieldwatch.recon.data.gaussians.ksplat import read_ksplat
from fieldwatch.recon.data.gaussians.raw import RawGaussians
from fieldwatch.recon.data.gaussians.sog import META, read_sog
from fieldwatch.recon.data.gaussians.spz import GZIP, MAGIC, read_spz
from fieldwatch.recon.data.git_lfs import pointer_text

SUFFIXES = (".ply", ".spz", ".sog", ".splat", ".ksplat")
"""Endings of files of Gaussians."""
_KNOWN = "a .ply, .spz, .sog, .splat or .ksplat file, or a folder with the meta.json of SOG"
_START = 16
_ZIP = b"PK\x03\x04"

# What other files begin with, and what they are.
_SIGNATURES = (
    (b"glTF", "a binary glTF (.glb)", "export the Gaussians as .ply or .spz"),
    (b"\x89PNG", "a PNG image", ""),
    (b"\xff\xd8\xff", "a JPEG image", ""),
    (b"RIFF", "a WebP image or another RIFF file", "pass the folder of SOG, not one of its images"),
    (b"\x89HDF", "an HDF5 file", ""),
    (b"\x80\x02", "a Python pickle (.pth of older PyTorch)", "write point_cloud.ply with the program that trained it"),
    (b"\x80\x04", "a Python pickle", "write point_cloud.ply with the program that trained it"),
    (b"\x93NUMPY", "a NumPy array", ""),
    (b"7z\xbc\xaf", "a 7-Zip archive", "extract it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard stream", "decompress it first"),
    (b"<!DOC", "an HTML page, as failed downloads are", "download the file again"),
    (b"<html", "an HTML page, as failed downloads are", "download the file again"),
    (b"#usda", "a USD scene", "export the Gaussians as .ply or .spz"),
    (b"PXR-USDC", "a USD scene", "export the Gaussians as .ply or .spz"),
)


def read_gaussians(path: Path | str) -> GaussianCloud:
    """Read Gaussians from a file of any known format.

    Read are the PLY of 3DGS, 2DGS and SuperSplat (compressed), .spz (versions 2 to 4), .sog (versions 1 and 2, also as
    a folder), .splat and .ksplat. The format is recognized by the first bytes; .splat and .ksplat have no signature and
    are recognized by the ending of the name. The axes of the result are those of 3DGS.

    Raises:
        SplatFileError: if the file is missing, of another format, damaged or cut short. The message names the format.
        PlyError: the same, for PLY files.
    """
    path = Path(path).expanduser()
    if path.is_dir() and (path / META).is_file():
        return read_sog(path).cloud(path)
    if not path.is_file():
        kind = "a folder without meta.json" if path.is_dir() else "nothing"
        raise SplatFileError(f"{path}: expected {_KNOWN}, got {kind}: pass a file of Gaussians")
    if pointer := pointer_text(path):
        raise SplatFileError(pointer)
    with path.open("rb") as file:
        start = file.read(_START)
    if start.startswith((b"ply\n", b"ply\r")):
        return read_gaussian_ply(path)
    return _reader_of(path, start)(path).cloud(path)


def is_sog_folder(path: Path) -> bool:
    """Return whether a path is a meta.json of SOG, or the folder of one."""
    meta = path / META if path.is_dir() else path
    if meta.name != META or not meta.is_file():
        return False
    try:
        content = json.loads(meta.read_bytes())
    except ValueError:
        return False
    return isinstance(content, dict) and {"means", "quats"} <= set(content)


def _reader_of(path: Path, start: bytes) -> Callable[[Path], RawGaussians]:
    if start.startswith(MAGIC):
        return read_spz
    if start.startswith(_ZIP):
        return _reader_of_zip(path)
    for signature, name, remedy in _SIGNATURES:
        if start.startswith(signature):
            raise SplatFileError(f"{path}: expected {_KNOWN}, got {name}{f': {remedy}' if remedy else ''}")
    # These two have no signature, so two bytes that look like gzip are a coincidence there.
    by_suffix = {".splat": read_dot_splat, ".ksplat": read_ksplat}
    suffix = path.suffix.lower()
    if suffix in by_suffix:
        return by_suffix[suffix]
    if path.name == META:
        return read_sog
    if start.startswith(GZIP):
        return read_spz
    raise SplatFileError(
        f"{path}: expected {_KNOWN}, got a file that begins with {start!r}: pass a file of Gaussians; .splat and "
        ".ksplat are recognized by the ending of the name"
    )


def _reader_of_zip(path: Path) -> Callable[[Path], RawGaussians]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise SplatFileError(
            f"{path}: expected {_KNOWN}, got a damaged zip archive ({error}): copy it again"
        ) from error
    if META in names:
        return read_sog
    if any(name.endswith("data.pkl") for name in names):
        kind = "a PyTorch checkpoint"
        remedy = "write point_cloud.ply with the program that trained it"
    else:
        kind = f"a zip archive with {', '.join(names[:4]) or 'no files'}"
        remedy = "extract it and pass the file in it"
    raise SplatFileError(f"{path}: expected {_KNOWN}, got {kind}: {remedy}")
