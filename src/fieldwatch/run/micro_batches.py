"""`MicroBatches`: division of a batch that does not fit into memory at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar, cast

import numpy as np
from torch import Tensor

from fieldwatch.base import InputError

Batch = TypeVar("Batch")


class MicroBatches:
    """Number of micro-batches that a batch is divided into. It is doubled when memory runs out, and checkpointed.

    Args:
        name: name of the batch in events and findings: "batch", "rays", "evaluation".
        count: initial number of micro-batches.
        most: maximum number of micro-batches; if memory still runs out, the error is raised.

    Attributes:
        name: as above.
        count: current number of micro-batches.
        most: as above.

    Raises:
        ValueError: not 1 <= count <= most.
    """

    def __init__(self, name: str = "batch", *, count: int = 1, most: int = 64) -> None:
        if not 1 <= count <= most:
            raise ValueError(f"MicroBatches({name!r}, count={count}, most={most}): expected 1 <= count <= most")
        self.name = name
        self.count = count
        self.most = most

    def slices(self, size: int) -> list[slice]:
        """Divide ``size`` entries into ``count`` slices of nearly equal length, or fewer so that none is empty."""
        return slices_of(size, self.count)

    def chunk(self, size: int, *, least: int = 1) -> int:
        """Return the chunk size for work that processes ``size`` entries at once with one micro-batch.

        Args:
            size: number of entries.
            least: minimum chunk size, unless ``size`` is smaller.
        """
        return max(size // self.count, min(least, size))

    def double(self) -> None:
        """Double the number of micro-batches, up to ``most``."""
        self.count = min(2 * self.count, self.most)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the count."""
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the count from a checkpoint, limited to ``most``."""
        # `most` may be smaller than in the process that wrote the checkpoint.
        self.count = max(min(int(state["count"]), self.most), 1)


def slices_of(size: int, count: int) -> list[slice]:
    """Divide ``size`` entries into ``count`` slices of nearly equal length, or fewer so that none is empty."""
    count = max(min(count, size), 1)
    # With every end rounded down, the lengths differ by at most one.
    ends = [size * piece // count for piece in range(count + 1)]
    return [slice(first, last) for first, last in pairwise(ends)]


def split_evenly(batch: Batch, count: int) -> Iterator[tuple[Batch, float]]:
    """Split a batch along its first dimension; the default ``split`` of ``step.backward``.

    Yields:
        Each piece with its fraction of the batch.

    Raises:
        InputError: the batch has no length, see :func:`length_of`.
    """
    if count == 1:
        yield batch, 1.0
        return
    size = length_of(batch)
    for piece in slices_of(size, count):
        yield cut(batch, piece), (piece.stop - piece.start) / size


def most_pieces(batch: Any) -> int:
    """Return the maximum number of pieces that a batch can be cut into; 1 if it cannot be cut.

    Raises:
        InputError: the batch is a list of tensors, which may be columns or samples.
    """
    try:
        return max(length_of(batch), 1)
    except UncutError:
        return 1


class UncutError(InputError):
    """Raised for a batch without a length, which can only be processed as a whole."""


def length_of(batch: Any) -> int:
    """Return the number of samples in a batch.

    For a tensor or array, this is the size of the first dimension. Mappings, dataclasses and tuples of tensors consist
    of columns of equal length. Any other sequence consists of samples.

    Raises:
        UncutError: the batch is none of these, or its columns have different lengths.
        InputError: the batch is a list of tensors, which may be either columns or samples.
    """
    columns = _columns(batch)
    if columns is not None:
        lengths = {name: length_of(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise UncutError(f"expected a batch whose entries have equal lengths, got {lengths}: pass split= to cut it")
        return next(iter(lengths.values()))
    if isinstance(batch, Tensor | np.ndarray) and batch.ndim:
        return len(cast("Tensor", batch))
    # A string is a sequence, but not of samples.
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        samples = cast("Sequence[Any]", batch)
        # Ambiguous: default_collate returns lists of columns, but a list of views contains samples.
        if samples and all(isinstance(sample, Tensor) for sample in samples):
            raise InputError(
                "the batch is a list of tensors, which may be samples or columns: pass tuple(batch) for columns, "
                "torch.stack(batch) for samples, or split= to cut it yourself"
            )
        return len(samples)
    raise UncutError(f"cannot cut a batch of type {type(cast('object', batch)).__qualname__}: pass split= to cut it")


def cut(batch: Batch, piece: slice) -> Batch:
    """Return a slice of a batch along the dimension that :func:`length_of` counts."""
    whole: Any = batch
    columns = _columns(whole)
    if columns is None:
        return whole[piece]
    cut_columns = {name: cut(column, piece) for name, column in columns.items()}
    if isinstance(batch, tuple):
        values = tuple(cut_columns.values())
        # A namedtuple is constructed from single fields, a plain tuple from an iterable.
        return cast("Batch", whole._make(values) if hasattr(whole, "_make") else values)
    return cast("Batch", replace(whole, **cut_columns) if is_dataclass(batch) else cut_columns)


def _columns(batch: Any) -> Mapping[str, Any] | None:
    """Return the columns of a batch by name; None for a tensor, a sequence of samples, or an unknown type."""
    if isinstance(batch, Mapping):
        return cast("Mapping[str, Any]", batch) or None
    # is_dataclass is also true for the class itself.
    if is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in fields(batch)} or None
    if isinstance(batch, tuple):
        entries = cast("tuple[Any, ...]", batch)
        if entries and all(isinstance(entry, Tensor) for entry in entries):
            return {str(index): entry for index, entry in enumerate(entries)}
    return None
