"""Find photos and masks in a folder and its subfolders by their names in a reconstruction."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path, PurePosixPath

from fieldwatch.recon.data.image_names import HEIC_SUFFIXES, IMAGE_SUFFIXES


class PhotoFolder:
    """The images in a folder and its subfolders.

    Args:
        folder: folder to search; it is scanned once, at the first lookup.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Image paths by name relative to the folder, with forward slashes."""
        # Sorting makes the result independent of the file system.
        images = (path for path in sorted(self.folder.rglob("*")) if path.suffix.lower() in IMAGE_SUFFIXES)
        visible = [path for path in images if not path.name.startswith(".") and path.is_file()]
        return {path.relative_to(self.folder).as_posix(): path for path in visible}

    @cached_property
    def _by_stem(self) -> dict[str, list[Path]]:
        """Image paths by relative name in lower case, without the last extension."""
        return _grouped((_stem(name), path) for name, path in self.paths.items())

    @cached_property
    def _by_file_name(self) -> dict[str, list[Path]]:
        """Image paths by file name in lower case, without folder and last extension."""
        return _grouped((PurePosixPath(_stem(name)).name, path) for name, path in self.paths.items())

    @cached_property
    def _unreadable(self) -> dict[str, Path]:
        """Photos in unsupported formats by file name, so that the error can name the format."""
        images = (path for path in sorted(self.folder.rglob("*")) if path.suffix.lower() in HEIC_SUFFIXES)
        return {path.stem.lower(): path for path in images if not path.name.startswith(".")}

    def find(self, name: str) -> Path | None:
        """Return the image with this name, or the only one that differs in extension, case or subfolder.

        Returns None if there is no such image or the choice is ambiguous.
        """
        # Reconstructions made on Windows have backslashes.
        name = name.replace("\\", "/").removeprefix("./")
        if name in self.paths:
            return self.paths[name]
        for matches in (
            self._by_stem.get(_stem(name), []),
            self._by_file_name.get(PurePosixPath(_stem(name)).name, []),
        ):
            # Several candidates are ambiguous, and a wrong photo would be worse than an error.
            if len(matches) == 1:
                return matches[0]
        return self._unreadable.get(PurePosixPath(_stem(name)).name)

    def find_mask(self, name: str) -> Path | None:
        """Return the mask of a photo: `photo.jpg.png`, COLMAP's convention, or `photo` with any extension."""
        # COLMAP's convention takes precedence over the same stem with another extension.
        full = f"{name}.png"
        return self.paths[full] if full in self.paths else self.find(name)

    @property
    def holds(self) -> str:
        """Folder and number of images, for messages."""
        return f"{self.folder} (which contains {len(self.paths)} images)"

    def unused(self, used: Iterable[Path]) -> list[str]:
        """Return the names of the images whose paths are not in `used`."""
        used_paths = set(used)
        return [name for name, path in self.paths.items() if path not in used_paths]


def shortened(names: list[str], most: int = 5) -> str:
    """Join the first `most` names with commas and append the number of the others."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix("")).lower()


def _grouped(pairs: Iterable[tuple[str, Path]]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = {}
    for key, path in pairs:
        groups.setdefault(key, []).append(path)
    return groups
