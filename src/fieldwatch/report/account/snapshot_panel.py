"""Panels of the newest snapshot of the GPU memory allocator that a run wrote."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from fieldwatch.base import nbytes
from fieldwatch.report.page import Panel
from fieldwatch.report.snapshot import SnapshotError, read_snapshot, snapshot_panels, view_data

_PLACES: Final = ("snapshots/*.pickle", "crash/**/*.pickle")
_MOST_BYTES: Final = 64 * 2**20
"""Size of a file that is read in about a second; larger ones are only named."""


def snapshot(folder: Path) -> tuple[list[Panel], dict[str, Any] | None]:
    """Return the panels of the newest snapshot in a run folder and its data; no panel if there is none.

    Args:
        folder: run folder.
    """
    found = [path for place in _PLACES for path in folder.glob(place) if path.is_file()]
    if not found:
        return [], None
    newest = max(found, key=lambda path: path.stat().st_mtime_ns)
    status = newest.stat()
    title = f"Snapshot: {newest.name}"
    if status.st_size > _MOST_BYTES:
        why = f"It has {nbytes(status.st_size)}. `fieldwatch memory {newest} --html memory.html` draws it."
        return [_empty(title, why)], None
    try:
        data = _data(newest, status.st_mtime_ns, status.st_size)
    except SnapshotError as error:
        # A snapshot that was cut off, for instance by a full disk, must not keep the report from being written.
        return [_empty(title, str(error))], None
    panels = [panel | {"title": f"{title}: {panel['title']}"} for panel in snapshot_panels(data)]
    return panels, data


def _empty(title: str, why: str) -> Panel:
    return {"id": "snapshot", "title": title, "kind": "empty", "about": "Memory of the allocator.", "why": why}


@lru_cache(maxsize=2)
def _data(path: Path, _modified: int, _size: int) -> dict[str, Any]:
    # Live views redraw every few seconds: an unchanged file is read once.
    return view_data(read_snapshot(path))
