"""Recognize films and folders of photos, and identify their content."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fieldwatch.recon.data.capture.error import CaptureError
from fieldwatch.recon.data.image_names import HEIC_SUFFIXES, IMAGE_SUFFIXES, natural_key

LEAST_PHOTOS = 3
"""Fewest photos from which cameras can be found."""
_SAMPLE = 1 << 20  # bytes that are hashed at the start, the middle and the end of a file


@dataclass(frozen=True, kw_only=True)
class CaptureSource:
    """A film or a folder of photos.

    Attributes:
        path: the file or folder.
        photos: photos in natural order of their names; empty for a film.
        digest: SHA-256 of names, sizes and samples of the content.
    """

    path: Path
    photos: tuple[Path, ...]
    digest: str

    @property
    def is_film(self) -> bool:
        """Whether it is a film."""
        return not self.photos


def find_source(path: Path) -> CaptureSource:
    """Recognize a film or a folder of photos; folders are searched with their subfolders.

    Raises:
        CaptureError: if the path does not exist, or the folder contains no images or fewer than three.
    """
    if not path.exists():
        raise CaptureError(f"{path} does not exist: give a film, or a folder of photos")
    if path.is_file():
        if path.suffix.lower() in IMAGE_SUFFIXES | HEIC_SUFFIXES:
            raise CaptureError(
                f"{path} is a single photo, but cameras are found from at least {LEAST_PHOTOS} (20 or more are "
                f"better): give their folder, as in `fieldwatch data photos {path.parent} -o scene`"
            )
        return CaptureSource(path=path, photos=(), digest=_digest([path], path.parent))
    photos = image_files(path)
    if not photos:
        count = sum(1 for _ in path.iterdir())
        raise CaptureError(
            f"{path} contains no photos ({count} other entries): give a folder with JPEG, PNG, TIFF, WebP or HEIC "
            "files, or a film, as in `fieldwatch data photos film.mp4 -o scene`"
        )
    if len(photos) < LEAST_PHOTOS:
        raise CaptureError(too_few(len(photos), str(path)))
    return CaptureSource(path=path, photos=photos, digest=_digest(photos, path))


def image_files(folder: Path) -> tuple[Path, ...]:
    """Return the images in a folder and its subfolders, in natural order; hidden files and folders are skipped."""
    found: list[Path] = []
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in IMAGE_SUFFIXES | HEIC_SUFFIXES and not hidden and path.is_file():
            found.append(path)
    # The name itself breaks ties between names that differ only in leading zeros or case.
    return tuple(sorted(found, key=lambda path: (natural_key(path.relative_to(folder).as_posix()), str(path))))


def too_few(count: int, where: str) -> str:
    """Return the message for fewer photos than cameras can be found from."""
    return (
        f"{where} has {count} usable photo{'s' * (count != 1)}, but cameras are found from at least {LEAST_PHOTOS}, "
        "taken from different positions (20 or more are better): add photos, and run the command again"
    )


def _digest(paths: list[Path] | tuple[Path, ...], folder: Path) -> str:
    # "capture 1" is the version of the digest. Times are left out, because copying a folder changes them.
    sha = hashlib.sha256(b"capture 1")
    for path in paths:
        size = path.stat().st_size
        sha.update(f"{path.relative_to(folder).as_posix()}:{size}\n".encode(errors="surrogateescape"))
        with path.open("rb") as file:
            for offset in (0, size // 2, max(size - _SAMPLE, 0)):
                file.seek(offset)
                sha.update(file.read(_SAMPLE))
    return sha.hexdigest()
