"""The contents of a tensor log as columns."""

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
    """A tensor log as columns, one row per complete snapshot in file order. Sizes are in MiB.

    Attributes:
        path: path of the log.
        iterations: ``[n]`` int64, iteration of each snapshot.
        times: ``[n]`` datetime64[s], local time; NaT if the text is not a valid time.
        total_tensors: ``[n]`` int64, number of tensors.
        allocated: ``[n]`` float64, allocated memory in MiB.
        reserved: ``[n]`` float64, reserved memory in MiB.
        fragmentation: ``[n]`` float64, percentage of the reserved memory that is not allocated.
        categories: name to ``[n]`` float64 in MiB; 0 if a snapshot does not list the category.
        dtypes: name to ``[n]`` float64 in MiB; 0 if a snapshot does not list the dtype.
        large_counts: ``[n]`` int64, number of tensors above the threshold.
        large_thresholds: ``[n]`` int64, threshold for large tensors in MiB.
        segments: ``[n]`` int64, segment number from 0; an iteration that does not increase starts a new segment,
            because the run was resumed.
        spans: ``[n, 2]`` int64, byte offsets of the start and end of each snapshot in the file.
        dropped: iterations of damaged or torn snapshots, which were skipped; -1 if even the iteration is torn.
        truncated: whether the last snapshot of the file is among the dropped ones.
        garbage: number of bytes between snapshots that do not belong to the log.
        implausible: descriptions of impossible values (such as negative or non-finite ones), at most ten sentences.
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
        """Read one snapshot from the file again, including its largest tensors.

        Raises:
            OSError: if the file no longer exists.
            InputError: if the file has changed since the table was read.
        """
        # Negative rows count from the end, and rows out of range raise IndexError.
        row = range(len(self))[row]
        start, end = self.spans[row].tolist()
        with self.path.open("rb") as file:
            file.seek(start)
            # Compare the iteration too: after a rewrite, another snapshot may start at the same offset.
            match = SNAPSHOT.match(file.read(end - start))
        if match is None or int(match[1]) != self.iterations[row]:
            raise InputError(f"{self.path} has changed since it was read: call read_tensor_log again")
        moment = self.times[row].astype(object)
        return TensorSnapshot(
            iteration=int(match[1]),
            time=moment if isinstance(moment, datetime) else datetime.min,  # noqa: DTZ901  times in the log are naive
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
        """Return the rows that no later segment repeats, in ascending order of iteration."""
        return self.rows(valid_rows(self.iterations))

    def rows(self, which: NDArray[np.intp]) -> "TensorLogTable":
        """Return the selected rows, in the given order."""
        arrays = ("iterations", "times", "total_tensors", "allocated", "reserved", "fragmentation")
        arrays = (*arrays, "large_counts", "large_thresholds", "segments", "spans")
        chosen: dict[str, Any] = {name: getattr(self, name)[which] for name in arrays}
        categories = {name: sizes[which] for name, sizes in self.categories.items()}
        dtypes = {name: sizes[which] for name, sizes in self.dtypes.items()}
        return replace(self, **chosen, categories=categories, dtypes=dtypes)


def valid_rows(iterations: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the indices of rows that remain valid after every resume: no later row has the same or a lower iteration.

    Args:
        iterations: ``[n]`` iterations, in order of recording.
    """
    if not len(iterations):
        return np.empty(0, np.intp)
    # Running minimum from the end: a row is valid if all later iterations are above its own.
    later = np.minimum.accumulate(iterations[::-1])[::-1]
    return np.flatnonzero(np.append(iterations[:-1] < later[1:], True))
