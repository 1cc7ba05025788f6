"""Where event files are: folders of runs, as TensorBoard finds them."""

import os
from pathlib import Path

from fieldwatch.base import InputError, MissingPathError

_MARK = "tfevents"


class NoEventFiles(InputError):  # noqa: N818  says what was looked for
    """There is no TensorBoard event file where one was wanted."""


def is_event_file(path: Path) -> bool:
    """Whether a file's name is one that TensorBoard reads as an event file; hidden drafts are none."""
    return _MARK in path.name and not path.name.startswith(".") and path.is_file()


def holds_event_files(folder: Path) -> bool:
    """Whether event files lie directly in this folder."""
    return folder.is_dir() and any(is_event_file(path) for path in folder.iterdir())


def event_folders(folder: Path) -> list[Path]:
    """Return every folder that holds event files, this one and all below it, sorted; links are not followed.

    Raises:
        MissingPathError: there is no such folder.
        NoEventFiles: it is a folder, and holds none.
    """
    if not folder.is_dir():
        raise MissingPathError(f"there is no folder {folder}: give one that holds TensorBoard event files")
    found = [Path(place) for place, _, _ in os.walk(folder) if holds_event_files(Path(place))]
    if not found:
        raise NoEventFiles(
            f"{folder} is no TensorBoard folder: neither it nor a folder below holds an event file (*{_MARK}*); give "
            "the folder that TensorBoard's --logdir was given"
        )
    return sorted(found)


def event_files(place: Path) -> list[Path]:
    """Return the event files of one run: those directly in the folder, or the file itself.

    Raises:
        NoEventFiles: there is none.
    """
    if is_event_file(place):
        return [place]
    found = sorted(path for path in place.iterdir() if is_event_file(path)) if place.is_dir() else []
    if not found:
        raise NoEventFiles(f"{place} holds no TensorBoard event file (*{_MARK}*): give a folder that holds some")
    return found
