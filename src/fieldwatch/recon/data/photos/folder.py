"""Photos and masks in a folder and its subfolders, found by the names that a reconstruction gives them."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path, PurePosixPath

from fieldwatch.recon.data.image_folder import IMAGE_SUFFIXES

_HEIC = frozenset({".heic", ".heif"})


class PhotoFolder:
    """The images in a folder and below it.

    Args:
        folder: searched once, at the first look-up.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Images by their name relative to the folder, with forward slashes."""
        images = (path for path in sorted(self.folder.rglob("*")) if path.suffix.lower() in IMAGE_SUFFIXES)
        visible = [path for path in images if not path.name.startswith(".") and path.is_file()]
        return {path.relative_to(self.folder).as_posix(): path for path in visible}

    @cached_property
    def _by_stem(self) -> dict[str, list[Path]]:
        """Images by their relative name in lower case without its last extension."""
        return _grouped((_stem(name), path) for name, path in self.paths.items())

    @cached_property
    def _by_file_name(self) -> dict[str, list[Path]]:
        """Images by the last part of that."""
        return _grouped((PurePosixPath(_stem(name)).name, path) for name, path in self.paths.items())

    @cached_property
    def _unreadable(self) -> dict[str, Path]:
        """Photos in formats that are not read, by the last part of their name: so that an error can name the format."""
        images = (path for path in sorted(self.folder.rglob("*")) if path.suffix.lower() in _HEIC)
        return {path.stem.lower(): path for path in images if not path.name.startswith(".")}

    def find(self, name: str) -> Path | None:
        """Return the image of this name; else the only one that differs in extension, in case or in its subfolder."""
        name = name.replace("\\", "/").removeprefix("./")
        if name in self.paths:
            return self.paths[name]
        for matches in (
            self._by_stem.get(_stem(name), []),
            self._by_file_name.get(PurePosixPath(_stem(name)).name, []),
        ):
            if len(matches) == 1:
                return matches[0]
        return self._unreadable.get(PurePosixPath(_stem(name)).name)

    def find_mask(self, name: str) -> Path | None:
        """Return the mask of the photo of this name: `photo.jpg.png` as COLMAP has it, or `photo` and any extension."""
        # COLMAP's own convention wins over the same stem with another extension.
        full = f"{name}.png"
        return self.paths[full] if full in self.paths else self.find(name)

    @property
    def holds(self) -> str:
        """Where photos are looked for, and how many images are there, for people."""
        return f"{self.folder} (which holds {len(self.paths)} images)"

    def unused(self, used: Iterable[Path]) -> list[str]:
        """Return names of images that are not among those used."""
        used_paths = set(used)
        return [name for name, path in self.paths.items() if path not in used_paths]


def shortened(names: list[str], most: int = 5) -> str:
    """Join names; the first few and a count where there are many."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix("")).lower()


def _grouped(pairs: Iterable[tuple[str, Path]]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = {}
    for key, path in pairs:
        groups.setdefault(key, []).append(path)
    return groups
