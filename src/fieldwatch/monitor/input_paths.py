"""Availability of the input files and folders of a training."""

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
"""Flags whose values are not inputs."""
_KEYS: Final = ("data", "data_path", "data_dir", "images", "masks", "conf", "checkpoint_path")
"""Flags, and config keys, whose values are input paths even without a path separator."""


@final
class InputPaths:
    """Distinguishes input paths that are temporarily unavailable from wrong ones.

    An input that existed before may be on a disk that is not mounted yet, or on a file server that is unreachable. It
    existed before if it was available at an earlier start, or if the run's stored config contains it. Any other missing
    path is mistyped. Only paths in the command line or the stored config are considered; a missing file inside an
    existing folder is a damaged data set.

    Args:
        command: command line of the training.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._named = {value for flag, value in _values(command) if _may_be_input(flag, value)}
        # Paths that have had contents at some time: if one is missing or empty now, its disk may not be mounted.
        self._known: set[str] = set()
        self._away: set[str] = set()
        for _, value in _values(command):
            self.add_config(Path(value))
        self.refresh()

    def refresh(self) -> None:
        """Update which paths are available; to be called before each start."""
        self._away = {path for path in self._named if not _is_there(path)}
        self._known |= {path for path in self._named - self._away if not _is_empty(path)}

    def add_config(self, folder: Path) -> None:
        """Add the paths in a run's stored config, which existed when the run began."""
        try:
            config = read_manifest(folder).config
        except (NotARun, OSError):
            return
        paths = {str(value) for key, value in flattened(config).items() if _is_input(key, value)}
        self._named |= paths
        self._known |= paths

    def reclassify(self, death: Death) -> Death:
        """Return the cause of a death, changed to "data" if the input that it misses may become available again."""
        # Only a reason that the process reported itself names the path.
        if not isinstance(death, ExitReason) or death.cause not in _ABOUT_INPUT:
            return death
        # The longest path first, so that a folder inside another one is matched by its own name.
        for path in sorted(self._named, key=len, reverse=True):
            if not _mentions(death.detail, path):
                continue
            # A path that never existed is mistyped: waiting for it would only delay the message.
            lost = path in self._known and not _is_there(path)
            appeared = path in self._away and _is_there(path)
            if (lost or appeared) and (death.missing or death.cause == "bad-input"):
                return Death(cause="data", detail=f"{path} was not available: {death.detail}")
            if path in self._known and _is_empty(path):
                return Death(cause="data", detail=f"{path} is empty, maybe not mounted: {death.detail}")
        return death


_ABOUT_INPUT: Final[tuple[Cause, ...]] = ("bad-input", "exception")


def _values(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the values of a command line, each with its flag in the spelling of a config key, or an empty string."""
    before = ""
    for word in command:
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            # A value after its flag, or a positional argument.
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
    """Return whether the value of a flag may be an input path: by the flag, by a separator, or because it exists."""
    if not flag or flag in _OUTPUTS or not value:
        return False
    return flag in _KEYS or os.sep in value or _is_there(value)


def _mentions(message: str, path: str) -> bool:
    """Return whether a message contains a path, or one inside it, but not as a part of a longer name."""
    # The message may contain the path as it was given, or as an absolute path.
    names = {path, path.rstrip("/"), str(Path(path).absolute())} - {""}
    return any(re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-])", message) for name in names)


def _is_input(key: str, value: object) -> bool:
    """Return whether an entry of a stored config is an input path: by its key, or by a separator in the value."""
    return isinstance(value, str) and bool(value) and (key.rpartition(".")[2] in _KEYS or os.sep in value)


def _is_there(path: str) -> bool:
    """Return whether a path exists and can be reached; False if a file server does not respond."""
    try:
        os.stat(path)  # noqa: PTH116  Path.exists hides the kind of error
    # The path exists, but must not be read.
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _is_empty(path: str) -> bool:
    """Return whether a path is an empty folder, such as a mount point before the mount."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except (OSError, ValueError):
        return False
