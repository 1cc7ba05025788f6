"""Memory that the operations of a step allocate, by the line of code that runs them."""

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fieldwatch.replay.operation import PhaseName, Place

LINES = 60
"""Number of lines in the result."""

_Line = tuple[str, int, str, PhaseName]


@dataclass
class _LineMemory:
    """Memory of one line: bytes of all new storages, their number, and the bytes alive at the peak of the step."""

    nbytes: int = 0
    count: int = 0
    alive: int = 0
    at_peak: int = 0


class LineAllocations:
    """Collects the storages that operations create, and when they are freed.

    Memory that is not allocated by an operation of torch (the workspace of a kernel, native code) is not seen.
    """

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._events: list[tuple[int, _Line]] = []
        self._closed = False

    def note(self, result: Tensor, place: Place, known: set[int]) -> None:
        """Record the storage of an operation's result, if it is new.

        Args:
            result: result of an operation.
            place: where the operation ran.
            known: storages of the inputs, which are not new.
        """
        storage = result.untyped_storage()
        key = storage_key(result)
        nbytes = storage.nbytes()
        if key in known or key in self._lines or not nbytes:
            return
        line = (*place.line, place.phase)
        self._lines[key] = line
        self._events.append((nbytes, line))
        # The Python wrapper lives as long as the memory.
        weakref.finalize(storage, self._free, key, nbytes).atexit = False

    def line_of(self, key: int) -> str:
        """Return the line that allocated a storage, as ``file:line``; empty if it existed before the step."""
        line = self._lines.get(key)
        return f"{line[0]}:{line[1]}" if line is not None else ""

    def close(self) -> None:
        """Stop recording."""
        self._closed = True

    def plain(self) -> dict[str, Any]:
        """Return the peak of live bytes and the lines that allocated the most, as plain values."""
        by_line: dict[_Line, _LineMemory] = {}
        alive = 0
        peak = 0
        peak_at = -1
        for at, (nbytes, _) in enumerate(self._events):
            alive += nbytes
            if alive > peak:
                peak = alive
                peak_at = at
        for at, (nbytes, line) in enumerate(self._events):
            memory = by_line.setdefault(line, _LineMemory())
            memory.alive += nbytes
            if nbytes > 0:
                memory.nbytes += nbytes
                memory.count += 1
            if at <= peak_at:
                memory.at_peak += nbytes
        rows = [
            {
                "file": file,
                "line": number,
                "function": function,
                "phase": phase,
                "bytes": memory.nbytes,
                "storages": memory.count,
                "at_peak": memory.at_peak,
                "kept": memory.alive,
            }
            for (file, number, function, phase), memory in by_line.items()
        ]
        rows.sort(key=lambda row: (-int(row["at_peak"]), -int(row["bytes"])))
        allocated = sum(nbytes for nbytes, _ in self._events if nbytes > 0)
        return {"peak": peak, "allocated": allocated, "lines": rows[:LINES], "lines_in_all": len(rows)}

    def _free(self, key: int, nbytes: int) -> None:
        line = self._lines.pop(key, None)
        if line is not None and not self._closed:
            self._events.append((-nbytes, line))


def storage_key(tensor: Tensor) -> int:
    """Return the identity of a tensor's memory, which views share."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  torch's own reductions use it
