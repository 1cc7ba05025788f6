"""code.zip: the script of a run and the modules that it imported from its own folder."""

import functools
import io
import os
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fieldwatch.base import output_path, write_file

SOURCE = "code.zip"
MOST_FILES = 256
"""Largest number of files that are kept."""
MOST_BYTES = 4 << 20
"""Largest total size of the files that are kept."""
_INSTALLED = ("purelib", "platlib", "stdlib", "platstdlib", "scripts")
"""Places of packages and programs that were installed: `versions` records those that matter."""


@dataclass(frozen=True, kw_only=True)
class SourceCode:
    """Source files of a program.

    Attributes:
        main: path of the script, relative to the folder that it imports modules from.
        files: text of each file by its path relative to that folder, the script among them.
    """

    main: str
    files: Mapping[str, str]

    @classmethod
    def of_this_process(cls) -> Self | None:
        """Return the script of this process and the modules that it has imported from its own folder.

        Returns:
            None if the program is no script of the user: an installed command, a notebook, the interpreter.
        """
        script = _script()
        if script is None:
            return None
        root = _import_root(script)
        paths = sorted({script, *_modules_below(root)}, key=lambda path: (path != script, path))[:MOST_FILES]
        files: dict[str, str] = {}
        size = 0
        # The script comes first: whatever else is too large, its text is kept.
        for path in paths:
            try:
                text = path.read_bytes()
            # The file was removed or replaced since it was imported.
            except OSError:
                continue
            size += len(text)
            if size > MOST_BYTES:
                break
            files[_name_of(path, root)] = text.decode(errors="replace")
        name = _name_of(script, root)
        return cls(main=name, files=files) if name in files else None

    def keep(self, folder: Path, step: int) -> None:
        """Write code.zip into a run folder, unless it holds this source already.

        Args:
            folder: run folder.
            step: first step that this source trains. What a resumed run was trained with until then is renamed to
                ``code_until_<step>.zip``.

        Raises:
            OSError: the disk is full or read-only.
        """
        path = output_path(folder, SOURCE)
        contents = self._zipped()
        if path.is_file():
            if path.read_bytes() == contents:
                return
            if step > 0:
                path.replace(output_path(folder, f"code_until_{step:010d}.zip"))
        write_file(path, contents)

    def _zipped(self) -> bytes:
        """Return the files as a zip archive; the same files have the same bytes."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.comment = self.main.encode()
            for name, text in sorted(self.files.items()):
                # A ZipInfo has a fixed date, so that the bytes do not depend on the time.
                info = zipfile.ZipInfo(name)
                info.external_attr = 0o644 << 16
                archive.writestr(info, text, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()


def read_source_code(folder: Path) -> SourceCode | None:
    """Return the source that a run was trained with; None if it has none, or its code.zip cannot be read."""
    files: dict[str, str] = {}
    try:
        with zipfile.ZipFile(folder / SOURCE) as archive:
            main = archive.comment.decode(errors="replace")
            infos = archive.infolist()
            # The file may come from another machine: it is unpacked only if it is of the kind that `keep` writes.
            size = sum(info.file_size for info in infos)
            if len(infos) > MOST_FILES or size > MOST_BYTES or not all(map(_is_ours, infos)):
                return None
            for info in infos:
                files[info.filename] = archive.read(info).decode(errors="replace")
    # It is missing, damaged, damaged inside of a file, or truncated inside of one.
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError):
        return None
    return SourceCode(main=main, files=files)


def _name_of(path: Path, root: Path) -> str:
    """Return the relative path as text; names on a disk need not be text."""
    return os.fsencode(path.relative_to(root).as_posix()).decode(errors="replace")


def _is_ours(info: zipfile.ZipInfo) -> bool:
    """Return whether a file of an archive is neither encrypted nor compressed by an unusual method."""
    return info.compress_type == zipfile.ZIP_DEFLATED and not info.flag_bits & 1


def _script() -> Path | None:
    """Return the script that this process runs, None if it is none of the user's."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not file:
        return None
    # Python imports modules from the folder of the target, if a script or its folder is a link.
    path = Path(file).resolve()
    return path if path.is_file() and not is_installed(path) else None


def _import_root(script: Path) -> Path:
    """Return the folder that a script imports its modules from: above its package, if it was started with ``-m``."""
    package = getattr(sys.modules.get("__main__"), "__package__", None) or ""
    depth = len(package.split(".")) if package else 0
    return script.parents[min(depth, len(script.parents) - 1)]


def _modules_below(root: Path) -> Iterator[Path]:
    """Yield the files of the imported modules below a folder that were not installed there."""
    # Compared as text, because torch imports thousands of modules; also as the script was called, through links.
    called = Path(getattr(sys.modules.get("__main__"), "__file__", None) or root).absolute().parent
    prefixes = (f"{root}{os.sep}", f"{called}{os.sep}")
    for module in tuple(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and str(Path(file).absolute()).startswith(prefixes):
            path = Path(file).resolve()
            if path.is_relative_to(root) and not is_installed(path):
                yield path


def is_installed(path: Path) -> bool:
    """Return whether a file belongs to an installed package, to Python or to fieldwatch."""
    return "site-packages" in path.parts or any(path.is_relative_to(place) for place in _installed_places())


@functools.cache
def _installed_places() -> tuple[Path, ...]:
    return (Path(__file__).resolve().parents[2], *(Path(sysconfig.get_path(name)).resolve() for name in _INSTALLED))
