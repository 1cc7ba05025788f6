"""Search for runs in the log folders of TensorBoard."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fieldwatch.record import JOURNAL, holds_run

MOST_FOLDERS: Final = 20_000
"""Maximum number of searched folders, so that a whole disk is never searched."""
_DEEPEST: Final = 12
"""Maximum depth of searched folders."""
_EVENTS: Final = "tensorboard"
_SKIPPED: Final = frozenset(
    (_EVENTS, "checkpoints", "node_modules", "site-packages", "__pycache__", ".git", ".venv", ".cache")
)
"""Names of folders that contain no runs, but often thousands of folders."""
_REMOTE: Final = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")


@dataclass(frozen=True, kw_only=True)
class Root:
    """One of TensorBoard's log folders.

    Attributes:
        folder: absolute path.
        name: name in ``--logdir_spec``; empty if it has none.
    """

    folder: Path
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """A run folder.

    Attributes:
        id: identifier in requests: letters and digits, derived from the path.
        name: displayed name: TensorBoard's name of its event files without their folder.
        events: TensorBoard's name of its event files.
        folder: absolute path.
        changed: time of the last change of its journal, in seconds since 1970; 0 without a journal.
    """

    id: str
    name: str
    events: str
    folder: Path
    changed: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Result of a search.

    Attributes:
        runs: runs in order of name.
        note: reason why folders were left out; empty if none were.
    """

    runs: tuple[FoundRun, ...] = ()
    note: str = ""


def roots_of(logdir: str, logdir_spec: str) -> tuple[Root, ...]:
    """Return TensorBoard's log folders from its two flags; remote folders such as ``s3://`` are left out.

    Args:
        logdir: one folder, or empty.
        logdir_spec: ``name:folder,folder,...``; used if there is no logdir.
    """
    parts = [("", logdir)] if logdir else [_named(part) for part in logdir_spec.split(",")]
    local = [(name, path) for name, path in parts if path and not _REMOTE.match(path)]
    return tuple(Root(folder=Path(os.path.realpath(Path(path).expanduser())), name=name) for name, path in local)


def find_runs(roots: Sequence[Root], most: int = MOST_FOLDERS) -> SearchResult:
    """Find the runs in the given folders; links are followed once, and unreadable folders are skipped.

    Args:
        roots: folders to search.
        most: maximum number of searched folders.
    """
    search = _Search(remaining=most)
    runs: dict[Path, FoundRun] = {}
    for root in roots:
        for folder in search.runs(root.folder):
            # The first root that contains a run gives it its name.
            runs.setdefault(folder, _run(root, folder))
    note = f"the search stopped after {most:,} folders: give TensorBoard the folder of the runs" if search.cut else ""
    return SearchResult(runs=_disambiguated(sorted(runs.values(), key=lambda run: _natural(run.name))), note=note)


def _named(part: str) -> tuple[str, str]:
    """Split an entry of the list as TensorBoard does: a name precedes a colon unless the entry is a path."""
    if ":" in part and not part.startswith("/") and not _REMOTE.match(part):
        name, _, path = part.partition(":")
        return name, path
    return "", part


@dataclass(kw_only=True)
class _Search:
    """A search through all roots, with one limit for all of them.

    Attributes:
        remaining: number of folders that may still be searched.
        cut: whether the limit has stopped the search.
        visited: real paths of all searched folders.
    """

    remaining: int
    cut: bool = False
    visited: set[str] = field(default_factory=set[str])

    def runs(self, top: Path) -> Iterator[Path]:
        # People also give TensorBoard the folder of the event files, which is inside of the run.
        if top.name == _EVENTS and holds_run(top.parent):
            yield top.parent
            return
        # A stack instead of os.walk(), which follows either no links or all of them, also in a loop.
        waiting = [(top, 0)]
        while waiting:
            folder, depth = waiting.pop()
            if not self._may_enter(folder):
                continue
            if holds_run(folder):
                yield folder
            elif depth < _DEEPEST:
                waiting += [(inner, depth + 1) for inner in _folders_in(folder)]

    def _may_enter(self, folder: Path) -> bool:
        # The real path: links may form a loop.
        place = os.path.realpath(folder)
        if place in self.visited:
            return False
        self.visited.add(place)
        self.cut = self.cut or self.remaining == 0
        self.remaining -= not self.cut
        return not self.cut


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir() and entry.name not in _SKIPPED]
    except OSError:
        return []
    return [folder / name for name in names]


def _run(root: Root, folder: Path) -> FoundRun:
    inside = folder != root.folder and root.folder in folder.parents
    place = os.path.relpath(folder, root.folder) if inside else ""
    events = os.path.relpath(folder / _EVENTS, root.folder)
    name = "/".join(part for part in (root.name, place) if part)
    return FoundRun(
        # A hash, so that an id in a request can never be used as a path.
        id=hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest(),
        name=name or folder.name or str(folder),
        events=os.path.join(root.name, events) if root.name else events,  # noqa: PTH118  as TensorBoard does: with a dot
        folder=folder,
        changed=_changed(folder / JOURNAL),
    )


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _disambiguated(runs: Sequence[FoundRun]) -> tuple[FoundRun, ...]:
    """Append the folder to names that several runs share."""
    counts = Counter(run.name for run in runs)
    return tuple(run if counts[run.name] == 1 else replace(run, name=f"{run.name} ({run.folder})") for run in runs)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders run 9 before run 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
