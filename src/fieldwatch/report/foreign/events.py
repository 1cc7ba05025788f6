"""Search for TensorBoard event files, by the same rules as TensorBoard."""

import os
from pathlib import Path

from fieldwatch.base import InputError, MissingPathError

_MARK = "tfevents"
"""Text in the name of every event file; TensorBoard looks for it anywhere in the name."""


class NoEventFiles(InputError):  # noqa: N818  reads as what is missing
    """No TensorBoard event file was found."""


def is_event_file(path: Path) -> bool:
    """Return whether TensorBoard would read a file as an event file; hidden drafts do not count."""
    # Some programs write to a hidden file first and rename it.
    return _MARK in path.name and not path.name.startswith(".") and path.is_file()


def holds_event_files(folder: Path) -> bool:
    """Return whether a folder directly contains event files."""
    return folder.is_dir() and any(is_event_file(path) for path in folder.iterdir())


def event_folders(folder: Path) -> list[Path]:
    """Return all folders with event files at or below a folder, sorted; links are not followed.

    Raises:
        MissingPathError: if the folder does not exist.
        NoEventFiles: if there is no event file.
    """
    if not folder.is_dir():
        raise MissingPathError(f"there is no folder {folder}: give one that contains TensorBoard event files")
    folders = [Path(place) for place, _, _ in os.walk(folder) if holds_event_files(Path(place))]
    if not folders:
        raise NoEventFiles(
            f"{folder} is not a TensorBoard folder: it and its subfolders contain no event file (*{_MARK}*); give the "
            "folder that is passed to TensorBoard as --logdir"
        )
    return sorted(folders)


def event_files(place: Path) -> list[Path]:
    """Return the event files of one run: those directly in the folder, or the file itself.

    Raises:
        NoEventFiles: if there is none.
    """
    if is_event_file(place):
        return [place]
    # Not in subfolders, each of which is another run.
    files = sorted(path for path in place.iterdir() if is_event_file(path)) if place.is_dir() else []
    if not files:
        raise NoEventFiles(f"{place} contains no TensorBoard event file (*{_MARK}*): give a folder with event files")
    return files
