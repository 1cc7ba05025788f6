"""A text file that grows, and that a resume can cut back to where a checkpoint left it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldwatch.base import open_for_append
from fieldwatch.record.disk.backlog import WriteQueue
from fieldwatch.record.lines import write_all


class TextFile:
    """Appends text to one file, each call with one write; cut back in place by :meth:`rewind`.

    Args:
        path: the file; it and its folder are made if missing.
        header: what a new file starts with.

    Attributes:
        queue: where text waits that a full disk refuses, once it has joined a run's.
    """

    def __init__(self, path: Path, header: str = "") -> None:
        self.path = path
        self._header = header.encode()
        self._file = open_for_append(path)
        self.queue = WriteQueue(self._write)
        self._start()

    def append(self, text: str) -> None:
        """Write text, whole lines of it.

        Raises:
            OSError: the system refused; the file is as it was before.
        """
        self.queue.append(text.encode(errors="backslashreplace"))

    def mark(self) -> dict[str, int]:
        """Return the file's size, once everything that waits is written."""
        return {self.path.name: self._size() + self.queue.nbytes}

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Cut the file back to its size at the mark, and to its header for None."""
        size = int(mark.get(self.path.name, 0)) if mark else 0
        # Never longer: a file that was cut by hand must not be filled with zero bytes.
        os.ftruncate(self._file.fileno(), min(size, self._size()))
        self._start()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        write_all(self._file.fileno(), data, self._size())

    def _start(self) -> None:
        """Write the header of an empty file, and end a line that was torn."""
        if not self._size():
            self._file.write(self._header)
            return
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            # A torn line must not run into the next one.
            if file.read() != b"\n":
                self._file.write(b"\n")

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size
