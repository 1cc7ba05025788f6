"""Search for the newest run in a folder."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fieldwatch.record import JOURNAL, holds_run

# Limits of the search, so that it ends soon in a large tree.
_DEPTH: Final = 5
_FOLDERS: Final = 20_000


def newest_run(root: Path) -> Path | None:
    """Return the run in a folder whose record was written last; None if there is none.

    The search covers at most five levels and 20,000 folders, and does not descend into runs.
    """
    return max(_runs(root), key=_written, default=None)


def _runs(root: Path) -> Iterator[Path]:
    for visited, (folder, subfolders, _) in enumerate(os.walk(root), start=1):
        path = Path(folder)
        if holds_run(path):
            yield path
            # Clearing the list in place keeps os.walk from descending.
            subfolders.clear()
        elif len(path.relative_to(root).parts) >= _DEPTH or visited >= _FOLDERS:
            subfolders.clear()


def _written(folder: Path) -> float:
    # The journal is written at every block of rows, run.json at the start and at the end.
    times: list[float] = []
    for name in ("run.json", JOURNAL):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
