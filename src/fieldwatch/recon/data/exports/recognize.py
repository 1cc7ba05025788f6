"""Recognize exports of cameras by their signatures: those that are read, and those that are only named."""

import zipfile
from collections.abc import Callable
from pathlib import Path

from fieldwatch.recon.data.exports.error import ExportError
from fieldwatch.recon.data.exports.metashape import read_metashape
from fieldwatch.recon.data.exports.model import CameraExport
from fieldwatch.recon.data.exports.polycam import keyframes_of, read_polycam
from fieldwatch.recon.data.exports.realityscan import is_realityscan, read_realityscan
from fieldwatch.recon.data.exports.record3d import metadata_of, read_record3d

Read = Callable[[], CameraExport]
_START = 1 << 16
_XCR = b"capturingreality.com"
_AGAIN = "find the cameras anew with `fieldwatch data photos {photos} -o scene`"
_METASHAPE_EXPORT = "in Metashape, export them with File, Export, Export Cameras, Agisoft XML, next to the photos"
_REALITYSCAN_EXPORT = (
    "in RealityScan, export them with Alignment, Export, Registration, Internal/External camera parameters, next to "
    "the photos"
)
# Patterns in a folder, what they belong to, and what to do.
_UNREAD = (
    ("*.psx", "a project of Metashape", _METASHAPE_EXPORT),
    ("*.psz", "a project of Metashape", _METASHAPE_EXPORT),
    ("*.rcproj", "a project of RealityCapture", _REALITYSCAN_EXPORT),
    ("*.rsproj", "a project of RealityScan", _REALITYSCAN_EXPORT),
    ("*_calibrated_camera_parameters.txt", "the camera parameters of Pix4D", _AGAIN),
    ("*.p4d", "a project of Pix4D", _AGAIN),
    ("cameras.sfm", "the cameras of Meshroom", "export them for COLMAP with its node ExportColmap, or " + _AGAIN),
    ("*.mg", "a project of Meshroom", "export its cameras for COLMAP with the node ExportColmap, or " + _AGAIN),
    ("reconstruction.json", "the cameras of OpenSfM", "export them with `opensfm export_colmap`, or " + _AGAIN),
    ("poses_bounds.npy", "the cameras of LLFF", "pass the COLMAP folder that they were made from, or " + _AGAIN),
    ("bundle.out", "the cameras of Bundler", _AGAIN),
    ("*.nvm", "the cameras of VisualSFM", _AGAIN),
    ("odometry.csv", "a capture of Stray Scanner", "find the cameras with `fieldwatch data photos rgb.mp4 -o scene`"),
    ("*.sens", "a recording of ScanNet", "extract its color frames and poses with ScanNet's SensReader"),
)


def reader_of(path: Path) -> Read | None:
    """Return the function that reads the cameras of an export; None if the path is none that is read.

    Raises:
        ExportError: if a folder has several exports.
    """
    if path.is_file():
        return _reader_of_file(path)
    if not path.is_dir():
        return None
    if keyframes_of(path) is not None:
        return lambda: read_polycam(path)
    if metadata_of(path) is not None:
        return lambda: read_record3d(path)
    files = [file for ending in ("*.xml", "*.csv") for file in sorted(path.glob(ending))]
    readers = {file: reader for file in files if (reader := _reader_of_file(file)) is not None}
    if len(readers) > 1:
        raise ExportError(
            f"{path} has several exports of cameras ({', '.join(file.name for file in readers)}): pass one of them, as "
            f"in --data {next(iter(readers))}"
        )
    return next(iter(readers.values()), None)


def is_camera_export(path: Path) -> bool:
    """Return whether a file or folder is an export of cameras that is read."""
    return reader_of(path) is not None


def cameras_of_export(path: Path) -> CameraExport:
    """Read the cameras of an export, without their photos.

    Raises:
        ExportError: if it is none, or damaged.
    """
    reader = reader_of(path)
    if reader is None:
        raise ExportError(
            unread_export(path)
            or f"{path} is not an export of cameras: expected Metashape's XML, RealityScan's CSV, or the folder of a "
            "capture of Polycam or Record3D"
        )
    return reader()


def unread_export(path: Path) -> str | None:
    """Return what a file or folder looks like and what to do, if it belongs to a program whose files are not read."""
    if path.is_file():
        if path.suffix.lower() == ".r3d" and zipfile.is_zipfile(path):
            return (
                f"{path} is an archive of Record3D: extract it with `python -m zipfile -e {path} {path.stem}`, and "
                f"pass the folder {path.stem}"
            )
        found = next((row for row in _UNREAD if path.match(row[0])), None)
        photos = path.parent
    else:
        found = next((row for row in _UNREAD if any(path.glob(row[0]))), None) if path.is_dir() else None
        found = found or _sidecars(path)
        photos = path
    if found is None:
        return None
    pattern, name, remedy = found
    where = f"{path}" if path.is_file() else f"{path} (with {pattern})"
    return f"{where} looks like {name}, which is not read: {remedy.format(photos=photos)}"


def _sidecars(folder: Path) -> tuple[str, str, str] | None:
    """Return RealityCapture's .xmp files beside the photos as a row of the table."""
    file = next(iter(sorted(folder.glob("*.xmp"))), None) if folder.is_dir() else None
    if file is None:
        return None
    with file.open("rb") as opened:
        known = _XCR in opened.read(_START)
    return (file.name, "metadata of RealityCapture", _REALITYSCAN_EXPORT) if known else None


def _reader_of_file(file: Path) -> Read | None:
    ending = file.suffix.lower()
    if ending == ".csv" and is_realityscan(file):
        return lambda: read_realityscan(file)
    if ending == ".xml":
        with file.open("rb") as opened:
            start = opened.read(_START)
        if b"<chunk" in start and (b"<document" in start or start.lstrip().startswith(b"<chunk")):
            return lambda: read_metashape(file)
    return None
