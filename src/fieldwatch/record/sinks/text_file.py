"""An append-only text file that can be truncated to its size at a checkpoint."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldwatch.base import open_for_append
from fieldwatch.record.disk.backlog import WriteQueue
from fieldwatch.record.lines import write_all


class TextFile:
    """Appends text to one file, unbuffered; :meth:`rewind` truncates it in place.

    Args:
        path: path of the file; the file and its folder are created if missing.
        header: first line of a new file, with its newline.

    Attributes:
        queue: queue of text that waits for disk space, once attached to a backlog.
    """

    def __init__(self, path: Path, header: str = "") -> None:
        self.path = path
        self._header = header.encode()
        self._file = open_for_append(path)
        self.queue = WriteQueue(self._write)
        self._start()

    def append(self, text: str) -> None:
        """Append whole lines of text.

        Raises:
            OSError: if the write fails; the file is then unchanged.
        """
        # Lone surrogates, for example from undecodable file names, cannot be encoded as UTF-8.
        self.queue.append(text.encode(errors="backslashreplace"))

    def mark(self) -> dict[str, int]:
        """Return the size of the file in bytes, by file name, including text that waits for disk space."""
        return {self.path.name: self._size() + self.queue.nbytes}

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Truncate the file to its size at the mark; with None, to its header."""
        size = int(mark.get(self.path.name, 0)) if mark else 0
        # Never extend the file: if it was shortened by hand, truncate would fill it with zero bytes.
        os.ftruncate(self._file.fileno(), min(size, self._size()))
        self._start()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        write_all(self._file.fileno(), data, self._size())

    def _start(self) -> None:
        """Write the header of an empty file, or terminate a torn last line."""
        if not self._size():
            self._file.write(self._header)
            return
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            # Keep the torn line from merging with the next one.
            if file.read() != b"\n":
                self._file.write(b"\n")

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size
