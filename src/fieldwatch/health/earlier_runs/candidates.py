"""Earlier runs that a run can be compared with: of the same program, on the same data."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fieldwatch.record import JOURNAL, Manifest, NotARun, read_manifest
from fieldwatch.record.config import flattened

MOST_ENTRIES = 2000
"""Number of entries of the parent folder that are listed: on a network drive, each costs a millisecond."""
MOST_FOLDERS = 64
"""Number of folders beside a run that are looked at, the newest first."""
MOST_RUNS = 8
"""Number of runs that are compared, the newest first: reading a long one takes a second."""
MOST_BYTES = 256 << 20
"""Largest size of the journals of these runs together, bytes."""
_DATA = frozenset(
    ("data", "dataset", "datasets", "scene", "clip", "corpus", "task", "env", "environment", "images", "photos")
)
"""Words in the names of settings that choose the data."""
_WORDS = re.compile(r"[a-z0-9]+")


def comparable_runs(folder: Path) -> list[Path]:
    """Return the finished runs beside a run that its result can be compared with, the newest first.

    They have the same program, the same pipeline and the same data, as far as ``run.json`` tells, and began before it.

    Args:
        folder: run folder. Without a readable run.json, it can be compared with none.
    """
    folder = folder.absolute()
    try:
        manifest = read_manifest(folder)
    except NotARun:
        return []
    found: list[Path] = []
    left = MOST_BYTES
    for other in _folders_beside(folder):
        try:
            earlier = read_manifest(other)
        # Damaged, or of another program with a run.json of its own.
        except (NotARun, OSError):
            continue
        # Of two that began in the same second, as in a sweep, the one that ended first is the earlier one.
        before = earlier.state == "finished" and _began(earlier) <= _began(manifest)
        size = _size_of_record(other)
        if before and size <= left and _is_alike(other, earlier, folder, manifest):
            found.append(other)
            left -= size
        if len(found) == MOST_RUNS:
            break
    return found


def _folders_beside(folder: Path) -> Sequence[Path]:
    """Return the other folders with a run.json in the same parent folder, the newest first."""

    def entries() -> Iterator[tuple[float, str]]:
        with os.scandir(folder.parent) as listed:
            for entry in islice(listed, MOST_ENTRIES):
                try:
                    if entry.name != folder.name and entry.is_dir():
                        yield (Path(entry.path) / "run.json").stat().st_mtime, entry.path
                # Not a run, gone by now, or not ours to read.
                except OSError:
                    continue

    try:
        newest = sorted(entries(), reverse=True)
    except OSError:
        return ()
    return [Path(path) for _, path in newest[:MOST_FOLDERS]]


def _size_of_record(folder: Path) -> int:
    """Return the size of a run's journal in bytes; 0 if there is none."""
    try:
        return (folder / JOURNAL).stat().st_size
    except OSError:
        return 0


def _began(manifest: Manifest) -> str:
    """Return the time at which a run began, as text that sorts by time; empty if unknown."""
    return str(manifest.segments[0].get("started", "")) if manifest.segments else ""


def _is_alike(other: Path, earlier: Manifest, folder: Path, manifest: Manifest) -> bool:
    """Return whether two runs have the same program and data."""
    return (
        _program(earlier) == _program(manifest)
        and earlier.windows.keys() == manifest.windows.keys()
        and _data_settings(earlier.config) == _data_settings(manifest.config)
        and _paths(other, earlier) == _paths(folder, manifest)
    )


def _program(manifest: Manifest) -> tuple[str, str]:
    """Return the name of the pipeline and of the script; two versions of a script may lie in different folders."""
    return str(manifest.about.get("pipeline", "")), Path(_words(manifest)[0]).name


def _words(manifest: Manifest) -> list[str]:
    """Return the words of the command that started a run; the first one is the program."""
    # Not the last one: a run that was resumed by `fieldwatch resume` has another command then.
    command = manifest.segments[0].get("command", ()) if manifest.segments else ()
    return [str(word) for word in command] or [""]


def _data_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that choose data: those with such a name, and all that are paths."""
    return {
        name: value
        for name, value in flattened(config).items()
        if _DATA & set(_WORDS.findall(name.rpartition(".")[2].lower())) or (isinstance(value, str) and os.sep in value)
    }


def _paths(folder: Path, manifest: Manifest) -> set[str]:
    """Return the paths among the words of a run's command, without those that lead to the run itself."""
    values = (word.rpartition("=")[2] for word in _words(manifest)[1:])
    return {value for value in values if os.sep in value and not _leads_to(folder, value)}


def _leads_to(folder: Path, path: str) -> bool:
    """Return whether a path of a command is that of a folder: the folder ends with it."""
    parts = tuple(part for part in Path(os.path.normpath(path)).parts if part != "..")
    return folder.parts[-len(parts) :] == parts
