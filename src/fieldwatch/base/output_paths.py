"""Where output goes: below the folder that the user named, whatever a data set or a stored run calls its parts.

Two threats are met here. A name from a data set, a checkpoint, a plan or a run folder may be a path that leads
elsewhere (``/home/me/photo.jpg``, ``../photo.jpg``): names are cleaned. A folder from elsewhere may contain links to
places outside of it: below the folder that the user named, nobody writes through a link.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from fieldwatch.base.errors import InputError

LONGEST_NAME = 150
"""Bytes of a cleaned name: the system's limit is 255, of which a suffix, an index and the name of a draft take some."""
UNNAMED = "unnamed"
"""What a name becomes of which nothing is left."""

_SEPARATORS = re.compile(r"[/\\]+")
# A name that is nothing but an extension keeps it.
_EXTENSION = re.compile(r"(?<=.)\.(?:png|jpe?g|webp|tiff?|bmp|gif|exr|npy|heic)$", re.IGNORECASE)
_FORBIDDEN = frozenset('<>:"/\\|?*')
# Devices of Windows, whatever their extension.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_DIGEST_LENGTH = 8


class LinkRefused(InputError):  # noqa: N818  the name says what was done
    """Output would go through a link that lies below the folder that the user named."""


def output_path(folder: Path, *names: str) -> Path:
    """Return the path of an output below a folder; every output whose name comes from elsewhere gets its path here.

    Each name becomes exactly one component, see :func:`output_name`. Nothing is made.

    Args:
        folder: a folder that the user named, or one that this function returned. It may be a link itself.
        names: the components below it, as they come; several names that must differ come from :func:`output_names`.

    Raises:
        LinkRefused: a component below the folder is a symbolic link.
    """
    path = Path(folder)
    for name in names:
        path = path / output_name(name)
        refuse_link(path)
    return path


def output_name(name: str) -> str:
    """Return a name that is one harmless component of a path; a name that already is one stays as it is.

    A relative name keeps its folders, joined by an underscore (``left/0001.png`` becomes ``left_0001.png``). Of an
    absolute name, or one that contains ``..``, only the last component is left. Control characters, and what some
    system does not allow in a name, become underscores. The result is never hidden, never empty, never a name that is
    reserved on some system, and at most ``LONGEST_NAME`` bytes long (the rest is replaced by a digest of the name).
    """
    parts = [part for part in _SEPARATORS.split(name) if part not in ("", ".")]
    # An absolute path, one that climbs up, or one with a drive letter.
    leads_out = name.startswith(("/", "\\")) or ".." in parts or bool(re.match(r"[A-Za-z]:", name))
    parts = [part for part in parts if part != ".."]
    text = unicodedata.normalize("NFC", "_".join(parts[-1:] if leads_out else parts))
    text = "".join("_" if char in _FORBIDDEN or not char.isprintable() else char for char in text)
    text = text.strip(" ").rstrip(". ")
    # A hidden file, an option of a command, somebody's home.
    if text.startswith((".", "-", "~")):
        text = f"_{text[1:]}"
    if _RESERVED.fullmatch(text):
        text = f"_{text}"
    return _shorten(text, name) if text.strip("_") else (text or UNNAMED)


def output_names(names: Iterable[str], suffix: str = "", *, drop_suffix: bool = False) -> list[str]:
    """Return a distinct harmless name for each name of a set; names that would be the same get their index.

    Names are the same where they differ in case only: some file systems do not tell these apart.

    Args:
        names: as they come; :func:`output_name` cleans each.
        suffix: what every result ends with, such as ``.png``.
        drop_suffix: leave the extension of a picture out first (``0001.jpg`` becomes ``0001.png``).
    """
    cleaned = [output_name(_EXTENSION.sub("", name) if drop_suffix else name) for name in names]
    counts: dict[str, int] = {}
    for name in cleaned:
        counts[name.casefold()] = counts.get(name.casefold(), 0) + 1
    taken: set[str] = set()
    results: list[str] = []
    for index, name in enumerate(cleaned):
        result = name if counts[name.casefold()] == 1 else f"{name}_{index}"
        # A name with an index may be the name of another file of the set.
        while result.casefold() in taken:
            result = f"{result}_{index}"
        taken.add(result.casefold())
        results.append(f"{result}{suffix}")
    return results


def refuse_link(path: Path) -> None:
    """Refuse a path that is a symbolic link, dangling or not.

    Raises:
        LinkRefused: it is one; the message names it and says what to do.
    """
    if path.is_symlink():
        raise LinkRefused(
            f"{path} is a symbolic link, and nothing is written through links below the folder that was named: delete "
            f"the link, or put the files themselves there (the folder {path.parent} as a whole may be a link)"
        )


def _shorten(text: str, name: str) -> str:
    """Cut a name that is too long, and mark it by a digest of the whole."""
    raw = text.encode(errors="replace")
    if len(raw) <= LONGEST_NAME:
        return text
    # Of the whole name: two long names that begin alike stay apart.
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{raw[: LONGEST_NAME - _DIGEST_LENGTH - 1].decode(errors='ignore').rstrip('. ')}_{digest}"
