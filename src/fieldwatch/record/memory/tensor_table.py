"""A tensor log as columns."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import InputError
from fieldwatch.record.memory.tensor_grammar import SNAPSHOT, largest_of, sizes_of
from fieldwatch.record.memory.tensor_log import TensorSnapshot

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TensorLogTable:
    """A tensor log as columns, one row per whole snapshot, in the order of the file; MB means 2**20 bytes.

    Attributes:
        path: the file.
        iterations: ``[n]`` int64.
        times: ``[n]`` datetime64[s], NaT where the text is no time.
        total_tensors: ``[n]`` int64.
        allocated: ``[n]`` MB.
        reserved: ``[n]`` MB.
        fragmentation: ``[n]`` percent.
        categories: name to ``[n]`` MB; 0 where a snapshot does not list it.
        dtypes: name to ``[n]`` MB; 0 where a snapshot does not list it.
        large_counts: ``[n]`` int64, how many tensors were above the threshold.
        large_thresholds: ``[n]`` int64, that threshold in MB.
        segments: ``[n]`` int64; an iteration that does not go up starts a new one (the run was resumed).
        spans: ``[n, 2]`` int64, where each snapshot stands in the file, in bytes.
        dropped: iterations of snapshots that are damaged or cut off and were left out; -1 where even that is torn.
        truncated: whether the last snapshot of the file is among them.
        garbage: how many bytes between snapshots are none of the log's.
        implausible: what cannot be true (a negative or non-finite number), one sentence each, at most ten.
    """

    path: Path
    iterations: NDArray[np.int64]
    times: NDArray[Any]
    total_tensors: NDArray[np.int64]
    allocated: Floats
    reserved: Floats
    fragmentation: Floats
    categories: dict[str, Floats]
    dtypes: dict[str, Floats]
    large_counts: NDArray[np.int64]
    large_thresholds: NDArray[np.int64]
    segments: NDArray[np.int64]
    spans: NDArray[np.int64]
    dropped: tuple[int, ...] = ()
    truncated: bool = False
    garbage: int = 0
    implausible: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.iterations)

    def snapshot(self, row: int) -> TensorSnapshot:
        """Read one snapshot from the file again, its largest tensors included.

        Raises:
            OSError: the file is gone.
            InputError: the file has changed since.
        """
        # Negative rows count from the end, and rows out of range raise IndexError.
        row = range(len(self))[row]
        start, end = self.spans[row].tolist()
        with self.path.open("rb") as file:
            file.seek(start)
            match = SNAPSHOT.match(file.read(end - start))
        if match is None or int(match[1]) != self.iterations[row]:
            raise InputError(f"{self.path} has changed since it was read: read it again")
        moment = self.times[row].astype(object)
        return TensorSnapshot(
            iteration=int(match[1]),
            time=moment if isinstance(moment, datetime) else datetime.min,  # noqa: DTZ901  the log's own kind of time
            total_tensors=int(match[3]),
            allocated=float(match[4]),
            reserved=float(match[5]),
            fragmentation=float(match[6]),
            categories=sizes_of(match[7]),
            dtypes=sizes_of(match[8]),
            large_count=int(match[10]),
            large_threshold=int(match[9]),
            largest=largest_of(match[12] or b""),
        )

    def valid(self) -> "TensorLogTable":
        """Return the rows that no later segment has gone back over, in ascending order of iteration."""
        return self.rows(valid_rows(self.iterations))

    def rows(self, which: NDArray[np.intp]) -> "TensorLogTable":
        """Return some rows, in the order given."""
        arrays = ("iterations", "times", "total_tensors", "allocated", "reserved", "fragmentation")
        arrays = (*arrays, "large_counts", "large_thresholds", "segments", "spans")
        chosen: dict[str, Any] = {name: getattr(self, name)[which] for name in arrays}
        categories = {name: sizes[which] for name, sizes in self.categories.items()}
        dtypes = {name: sizes[which] for name, sizes in self.dtypes.items()}
        return replace(self, **chosen, categories=categories, dtypes=dtypes)


def valid_rows(iterations: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the places of iterations that no later one goes back over: what stands after every resume.

    Args:
        iterations: ``[n]``, in the order of recording.
    """
    if not len(iterations):
        return np.empty(0, np.intp)
    # The smallest iteration from here on: a row is valid if every later one is above it.
    later = np.minimum.accumulate(iterations[::-1])[::-1]
    return np.flatnonzero(np.append(iterations[:-1] < later[1:], True))
