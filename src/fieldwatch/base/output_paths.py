"""Paths of output files, which always stay inside the folder that the user chose.

This protects against two threats. A name from a dataset, a checkpoint, a plan or a run folder may be a path that leads
elsewhere (``/home/me/photo.jpg``, ``../photo.jpg``), so names are cleaned. A folder from another source may contain
links that lead outside, so nothing is written through a link below the folder that the user chose.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from fieldwatch.base.errors import InputError

LONGEST_NAME = 150
"""Maximum length of a cleaned name in bytes. File systems allow 255, including suffix, index and temporary prefix."""
UNNAMED = "unnamed"
"""Replacement for a name that is empty after cleaning."""

_SEPARATORS = re.compile(r"[/\\]+")
# The lookbehind keeps a name that consists only of an extension.
_EXTENSION = re.compile(r"(?<=.)\.(?:png|jpe?g|webp|tiff?|bmp|gif|exr|npy|heic)$", re.IGNORECASE)
_FORBIDDEN = frozenset('<>:"/\\|?*')
# Device names of Windows, which are reserved with any extension.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_DIGEST_LENGTH = 8


class LinkRefused(InputError):  # noqa: N818  named after the action
    """Output would be written through a link below the folder that the user chose."""


def output_path(folder: Path, *names: str) -> Path:
    """Return the path of an output file below a folder. Use it for every output whose name comes from data.

    Each name becomes exactly one path component, see :func:`output_name`. Nothing is created.

    Args:
        folder: folder that the user chose, or a path returned by this function. It may be a link.
        names: components below the folder, uncleaned; names that must be distinct come from :func:`output_names`.

    Raises:
        LinkRefused: a component below the folder is a symbolic link.
    """
    path = Path(folder)
    for name in names:
        path = path / output_name(name)
        refuse_link(path)
    return path


def output_name(name: str) -> str:
    """Return a name that is a single safe path component; a name that already is one stays unchanged.

    A relative name keeps its folders, joined by underscores (``left/0001.png`` becomes ``left_0001.png``). An absolute
    name, or one with ``..``, keeps only its last component. Control characters, and characters that some operating
    system forbids, become underscores. The result is never hidden, empty, or reserved on any system, and has at most
    ``LONGEST_NAME`` bytes (a longer name is truncated and ends with a digest of the whole).
    """
    parts = [part for part in _SEPARATORS.split(name) if part not in ("", ".")]
    # An absolute path, a path with "..", or a path with a drive letter.
    leads_out = name.startswith(("/", "\\")) or ".." in parts or bool(re.match(r"[A-Za-z]:", name))
    parts = [part for part in parts if part != ".."]
    text = unicodedata.normalize("NFC", "_".join(parts[-1:] if leads_out else parts))
    text = "".join("_" if char in _FORBIDDEN or not char.isprintable() else char for char in text)
    text = text.strip(" ").rstrip(". ")
    # A hidden file, a command-line option, a home directory.
    if text.startswith((".", "-", "~")):
        text = f"_{text[1:]}"
    if _RESERVED.fullmatch(text):
        text = f"_{text}"
    return _shorten(text, name) if text.strip("_") else (text or UNNAMED)


def output_names(names: Iterable[str], suffix: str = "", *, drop_suffix: bool = False) -> list[str]:
    """Return distinct safe names; names that would be equal get their index appended.

    Names that differ only in case count as equal, because some file systems do not distinguish them.

    Args:
        names: uncleaned names; each is cleaned by :func:`output_name`.
        suffix: suffix of every result, such as ``.png``.
        drop_suffix: whether to remove an image extension first (``0001.jpg`` becomes ``0001.png``).
    """
    cleaned = [output_name(_EXTENSION.sub("", name) if drop_suffix else name) for name in names]
    # Count first: if names collide, all of them get an index, also the first one.
    counts: dict[str, int] = {}
    for name in cleaned:
        counts[name.casefold()] = counts.get(name.casefold(), 0) + 1
    taken: set[str] = set()
    results: list[str] = []
    for index, name in enumerate(cleaned):
        result = name if counts[name.casefold()] == 1 else f"{name}_{index}"
        # A name with an index may equal another name.
        while result.casefold() in taken:
            result = f"{result}_{index}"
        taken.add(result.casefold())
        results.append(f"{result}{suffix}")
    return results


def refuse_link(path: Path) -> None:
    """Raise an error if a path is a symbolic link, dangling or not.

    Raises:
        LinkRefused: the path is a symbolic link.
    """
    if path.is_symlink():
        raise LinkRefused(
            f"{path} is a symbolic link, and output is not written through links: delete the link, or replace it by "
            f"the files themselves (the folder {path.parent} as a whole may be a link)"
        )


def _shorten(text: str, name: str) -> str:
    """Truncate a name that is too long, and append a digest of the whole name."""
    raw = text.encode(errors="replace")
    if len(raw) <= LONGEST_NAME:
        return text
    # The digest covers the whole name, so that long names with a common prefix stay distinct.
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{raw[: LONGEST_NAME - _DIGEST_LENGTH - 1].decode(errors='ignore').rstrip('. ')}_{digest}"
