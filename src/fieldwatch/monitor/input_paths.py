"""The files and folders that a training was told to read: are they there?"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, final

from fieldwatch.monitor.causes import Cause, Death
from fieldwatch.monitor.supervised import ExitReason
from fieldwatch.record import NotARun, read_manifest
from fieldwatch.record.config import flattened

_OUTPUTS: Final = ("out", "resume", "mirror")
"""Flags whose values are no input."""
_KEYS: Final = ("data", "data_path", "data_dir", "images", "masks", "conf", "checkpoint_path")
"""Flags, and keys of a config, whose values are inputs even without a separator in them."""


@final
class InputPaths:
    """Tells a path that is away for the moment from one that is wrong.

    An input that is missing may be a folder of a disk that is mounted late, or of a file server that is away. Only a
    path that the command line or the stored config names can be that; a file that is missing inside a folder that is
    there is a damaged data set.

    Args:
        command: the command line of the training.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._named = {value for flag, value in _values(command) if _may_be_input(flag, value)}
        # Paths that held something at some time: an empty one of these may be an unmounted disk.
        self._known: set[str] = set()
        self._away: set[str] = set()
        for _, value in _values(command):
            self.add_config(Path(value))
        self.refresh()

    def refresh(self) -> None:
        """See which paths are there now; call it before each start."""
        self._away = {path for path in self._named if not _is_there(path)}
        self._known |= {path for path in self._named - self._away if not _is_empty(path)}

    def add_config(self, folder: Path) -> None:
        """Add the paths of a run's stored config: they were there once, or the run would not have begun."""
        try:
            config = read_manifest(folder).config
        except (NotARun, OSError):
            return
        paths = {str(value) for key, value in flattened(config).items() if _is_input(key, value)}
        self._named |= paths
        self._known |= paths

    def reclassify(self, death: Death) -> Death:
        """Return what ended a process, with the cause "data" if what it said that it missed may come back."""
        if not isinstance(death, ExitReason) or death.cause not in _ABOUT_INPUT:
            return death
        # The longest first: a folder inside another one is meant by its own name.
        for path in sorted(self._named, key=len, reverse=True):
            if not _mentions(death.detail, path):
                continue
            absent = path in self._away or not _is_there(path)
            if absent and (death.missing or death.cause == "bad-input"):
                return Death(cause="data", detail=f"{path} was not there: {death.detail}")
            if path in self._known and _is_empty(path):
                return Death(cause="data", detail=f"{path} is empty, maybe not mounted: {death.detail}")
        return death


_ABOUT_INPUT: Final[tuple[Cause, ...]] = ("bad-input", "exception")


def _values(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The values of a command line, each with its flag as a key of the config is spelled; empty where there is none."""
    before = ""
    for word in command:
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            yield before, word
            before = ""
        elif equals:
            yield _key(flag), value
            before = ""
        else:
            before = _key(word)


def _key(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _may_be_input(flag: str, value: str) -> bool:
    """Whether the value of a flag may be a path to read: by the flag, by its separators, or because it is there."""
    if not flag or flag in _OUTPUTS or not value:
        return False
    return flag in _KEYS or os.sep in value or _is_there(value)


def _mentions(message: str, path: str) -> bool:
    """Whether a message names a path, or one inside it; a part of a longer name is another path."""
    # The message may spell the path as it was given, or absolute.
    names = {path, path.rstrip("/"), str(Path(path).absolute())} - {""}
    return any(re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-])", message) for name in names)


def _is_input(key: str, value: object) -> bool:
    """Whether an entry of a stored config names a path: by its key, or by the separators in its text."""
    return isinstance(value, str) and bool(value) and (key.rpartition(".")[2] in _KEYS or os.sep in value)


def _is_there(path: str) -> bool:
    """Whether a path can be reached; a file server that does not answer is away."""
    try:
        os.stat(path)  # noqa: PTH116  Path.exists hides which error came
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _is_empty(path: str) -> bool:
    """Whether a path is a folder without entries, as a mount point is before the mount."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except (OSError, ValueError):
        return False
