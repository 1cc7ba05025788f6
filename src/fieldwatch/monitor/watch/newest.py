"""The newest run under a folder."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fieldwatch.record import JOURNAL, holds_run

_DEPTH: Final = 5
_FOLDERS: Final = 20_000


def newest_run(root: Path) -> Path | None:
    """Return the run under a folder whose record was written last; None where there is none.

    At most five folders deep and 20,000 folders in all; what lies inside a run is not looked at.
    """
    return max(_runs(root), key=_written, default=None)


def _runs(root: Path) -> Iterator[Path]:
    for looked, (folder, subfolders, _) in enumerate(os.walk(root), start=1):
        path = Path(folder)
        if holds_run(path):
            yield path
            # Emptying the list in place keeps os.walk from descending.
            subfolders.clear()
        elif len(path.relative_to(root).parts) >= _DEPTH or looked >= _FOLDERS:
            subfolders.clear()


def _written(folder: Path) -> float:
    times: list[float] = []
    for name in ("run.json", JOURNAL):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
