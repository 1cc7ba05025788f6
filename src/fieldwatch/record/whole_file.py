"""Files that are there whole or not at all."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Give out a path to write to; the file gets its name when it is complete, and whoever fails leaves none behind.

    Args:
        path: where the file is to be; its folder is made, a file that is there is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
