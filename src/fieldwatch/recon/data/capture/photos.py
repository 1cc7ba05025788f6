"""Bring a folder of photos of any kind into a form that every program reads: upright, 8 bit, JPEG or PNG."""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fieldwatch.files import UndecodableError, decoding, output_names, output_path, whole_file
from fieldwatch.recon.data.capture.error import CaptureError
from fieldwatch.recon.data.capture.film import JPEG_QUALITY
from fieldwatch.recon.data.capture.model import Chosen, ChosenPhoto, LeftOut, Progress, SharedCamera
from fieldwatch.recon.data.capture.settings import Cameras
from fieldwatch.recon.data.capture.sharpness import gradient_energy
from fieldwatch.recon.data.capture.source import LEAST_PHOTOS, CaptureSource, too_few
from fieldwatch.recon.data.image_names import HEIC_SUFFIXES, is_heic

# EXIF tags.
_MAKE = 0x010F
_MODEL = 0x0110
_ORIENTATION = 0x0112
_EXIF = 0x8769
_TAKEN = 0x9003
_FRACTION = 0x9291
_FOCAL_LENGTH = 0x920A
_FOCAL_LENGTH_35MM = 0xA405
_DIAGONAL_35MM = 43.2666  # of a frame of 36 x 24 mm
_LOSSY = frozenset({"JPEG", "MPO", "HEIF", "WEBP"})
_SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png"}
# Modes that every reader of JPEG and PNG files supports.
_PLAIN_MODES = frozenset({"RGB", "L", "RGBA"})
_MEASURED_SIDE = 1024  # longer side in pixels at which sharpness is measured


@dataclass(frozen=True, kw_only=True)
class PhotoHeader:
    """What a photo's EXIF data say about the camera.

    Attributes:
        camera: maker, model and focal length, for people; empty if unknown.
        focal_35mm: focal length of the equivalent 35 mm camera, millimeters; None if unknown.
        taken: time at which the photo was taken, in seconds; None if unknown.
        turned: whether the photo has to be rotated or mirrored to be upright.
    """

    camera: str
    focal_35mm: float | None
    taken: float | None
    turned: bool


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A photo that was written: its header, size and sharpness."""

    source: Path
    name: str
    size: tuple[int, int]
    header: PhotoHeader
    sharpness: float


def collect_photos(source: CaptureSource, folder: Path, cameras: Cameras, progress: Progress) -> Chosen:
    """Copy photos into `folder`; those that are rotated by EXIF, or in other formats or modes, are converted.

    Identical copies and damaged photos are left out. The photos are in the order in which they were taken if all have a
    time, otherwise in that of their names.

    Args:
        source: folder of photos.
        folder: folder of the copies.
        cameras: photos that share intrinsics.
        progress: called after every photo.

    Raises:
        CaptureError: if HEIC photos cannot be read without a library, or fewer than three different photos are usable.
    """
    _open_heic(source)
    stems = _stems(source)
    written: list[_Written] = []
    left_out: list[LeftOut] = []
    known: dict[bytes, Path] = {}
    for number, (path, stem) in enumerate(zip(source.photos, stems, strict=True)):
        name = path.relative_to(source.path).as_posix()
        digest = hashlib.sha256(path.read_bytes()).digest()
        if digest in known:
            left_out.append(LeftOut(source=name, reason=f"it is a copy of {known[digest].name}"))
        else:
            known[digest] = path
            try:
                written.append(_write(path, folder, stem))
            except UndecodableError as error:
                left_out.append(LeftOut(source=name, reason=f"it cannot be read ({error})"))
        progress(number + 1, len(source.photos))
    if len(written) < LEAST_PHOTOS:
        raise CaptureError(_too_few(source, written, left_out))
    if all(photo.header.taken is not None for photo in written):
        written.sort(key=lambda photo: photo.header.taken or 0.0)
    shared, places = share_cameras([photo.size for photo in written], [photo.header for photo in written], cameras)
    photos = [
        ChosenPhoto(
            name=photo.name,
            source=photo.source.relative_to(source.path).as_posix(),
            sharpness=photo.sharpness,
            camera=place,
            taken=photo.header.taken,
        )
        for photo, place in zip(written, places, strict=True)
    ]
    return Chosen(kind="photos", photos=tuple(photos), cameras=tuple(shared), left_out=tuple(left_out))


def share_cameras(
    sizes: Sequence[tuple[int, int]], headers: Sequence[PhotoHeader], cameras: Cameras
) -> tuple[list[SharedCamera], list[int]]:
    """Return the distinct cameras of photos, and the index of each photo's camera.

    Args:
        sizes: (width, height) of the upright photos.
        headers: their EXIF data.
        cameras: photos that share a camera.
    """
    shared: list[SharedCamera] = []
    places: list[int] = []
    indices: dict[tuple[Any, ...], int] = {}
    for number, (size, header) in enumerate(zip(sizes, headers, strict=True)):
        keys = {"auto": (size, header.camera, header.focal_35mm), "one": (size,), "each": (number,)}
        key = keys[cameras]
        if key not in indices:
            indices[key] = len(shared)
            focal = None if header.focal_35mm is None else header.focal_35mm * np.hypot(*size) / _DIAGONAL_35MM
            about = header.camera or "a camera without EXIF data"
            shared.append(SharedCamera(width=size[0], height=size[1], focal=focal and float(focal), about=about))
        places.append(indices[key])
    return shared, places


def read_header(image: Image.Image) -> PhotoHeader:
    """Return what a photo's EXIF data say about the camera."""
    exif = image.getexif()
    details = exif.get_ifd(_EXIF)
    words = [str(exif.get(tag, "")).strip("\0 ") for tag in (_MAKE, _MODEL)]
    length = _number(details.get(_FOCAL_LENGTH))
    if length is not None:
        words.append(f"{length:g} mm")
    return PhotoHeader(
        camera=" ".join(word for word in words if word),
        focal_35mm=_number(details.get(_FOCAL_LENGTH_35MM)),
        taken=_seconds(details.get(_TAKEN), details.get(_FRACTION)),
        turned=exif.get(_ORIENTATION, 1) not in {0, 1},
    )


def _stems(source: CaptureSource) -> list[str]:
    """Return distinct names without suffix and without spaces, which separate names in COLMAP's lists."""
    names = [path.relative_to(source.path).as_posix() for path in source.photos]
    return output_names(["_".join(name.split()) for name in names], drop_suffix=True)


def _write(path: Path, folder: Path, stem: str) -> _Written:
    """Copy a photo, or convert it if other programs could read it differently.

    Raises:
        UndecodableError: if the photo is damaged, or holds values of unknown range.
    """
    with decoding(), Image.open(path) as image:
        header = read_header(image)
        image_format = str(image.format)
        size = image.size
        copied = image_format in _SUFFIXES and image.mode in _PLAIN_MODES and not header.turned
        if copied:
            # In draft mode libjpeg decodes at a lower scale, at least as large as asked for.
            image.draft(None, (_MEASURED_SIDE, _MEASURED_SIDE))
        image.load()
    if copied:
        suffix = _SUFFIXES[image_format]
    else:
        image = _eight_bit(ImageOps.exif_transpose(image))
        size = image.size
        suffix = ".jpg" if image_format in _LOSSY and image.mode == "RGB" else ".png"
    name = f"{stem}{suffix}"
    with whole_file(output_path(folder, name)) as draft:
        if copied:
            shutil.copyfile(path, draft)
        elif suffix == ".jpg":
            image.save(draft, "JPEG", quality=JPEG_QUALITY)
        else:
            image.save(draft, "PNG")
    return _Written(source=path, name=name, size=size, header=header, sharpness=_sharpness(image))


def _eight_bit(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise UndecodableError("expected 8 or 16 bits, got floats of unknown range")
    if image.mode.startswith("I"):
        # Pillow's own conversion clips 16-bit values at 255 instead of scaling them; 257 = 65535 / 255.
        gray = np.asarray(image.convert("I"), np.int64)
        image = Image.fromarray(((gray.clip(0, 65535) + 128) // 257).astype(np.uint8))
    # A transparent photo keeps its alpha channel, which the training composites.
    transparent = image.has_transparency_data
    return image.convert("RGBA" if transparent else "RGB")


def _sharpness(image: Image.Image) -> float:
    gray = image.convert("L")
    gray.thumbnail((_MEASURED_SIDE, _MEASURED_SIDE), Image.Resampling.BOX)
    return gradient_energy(np.asarray(gray))


def _open_heic(source: CaptureSource) -> None:
    """Let Pillow read HEIC photos.

    Raises:
        CaptureError: if there are such photos, but the library that reads them is not installed.
    """
    heic = [path for path in source.photos if path.suffix.lower() in HEIC_SUFFIXES or is_heic(path)]
    if not heic:
        return
    if find_spec("pillow_heif") is None:
        raise CaptureError(
            f"{len(heic)} of {len(source.photos)} photos of {source.path} are in HEIC format ({heic[0].name}, ...), "
            "which needs the package pillow-heif: pip install 'fieldwatch[photos]', or convert them to JPEG"
        )
    from pillow_heif import register_heif_opener  # noqa: PLC0415  optional: only HEIC photos need it

    register_heif_opener()


def _too_few(source: CaptureSource, written: Sequence[_Written], left_out: Sequence[LeftOut]) -> str:
    copies = sum("copy of" in photo.reason for photo in left_out)
    if copies > len(left_out) - copies:
        return (
            f"the {len(source.photos)} photos of {source.path} are {len(written)} different ones and copies of them: "
            f"add photos taken from other positions, at least {LEAST_PHOTOS} (20 or more are better)"
        )
    first = f" ({left_out[0].source}: {left_out[0].reason})" if left_out else ""
    return too_few(len(written), f"{source.path}{first}")


def _number(value: Any) -> float | None:
    """Return a positive EXIF number; None for missing, zero (unknown) and malformed ones."""
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if 0 < number < float("inf") else None


def _seconds(taken: Any, fraction: Any) -> float | None:
    """Return an EXIF time in seconds; None for missing and malformed ones."""
    try:
        when = datetime.strptime(str(taken).strip("\0 "), "%Y:%m:%d %H:%M:%S")  # noqa: DTZ007  EXIF has no time zone
    except ValueError:
        return None
    digits = str(fraction or "").strip("\0 ")
    return (when - datetime(1970, 1, 1)).total_seconds() + (float(f"0.{digits}") if digits.isdigit() else 0.0)  # noqa: DTZ001  as above
