"""Evaluation of a field in chunks, which shrink when memory runs out."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.render.sdf.gradients import DistanceField

CHUNK = 65_536
"""Default number of points per chunk."""
LEAST = 1024
"""Smallest number of points per chunk; a failure below it has another cause than the chunk."""
_HOST_IS_FULL = ("can't allocate memory", "not enough memory")  # torch has no exception class for this

FieldWithGradient = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps points ("n 3") to signed distances ("n") and gradients ("n 3"), each point independently."""


class Chunks:
    """A chunk size that is halved when memory runs out and stays at the smaller size.

    Args:
        size: initial number of points per chunk.
        least: smallest number of points per chunk.

    Attributes:
        size: current number of points per chunk.
        shrinks: number of times the size was halved.

    Raises:
        InputError: `size` or `least` is below 1.
    """

    def __init__(self, size: int = CHUNK, *, least: int = LEAST) -> None:
        if min(size, least) < 1:
            raise InputError(f"size and least must be at least 1 point, got {size} and {least}")
        self.size = size
        self.shrinks = 0
        self._least = min(least, size)

    def shrink(self, wanted: str) -> None:
        """Halve the size.

        Args:
            wanted: name of the operation that ran out of memory, for the message.

        Raises:
            MemoryError: the size is already the smallest one.
        """
        # Smaller chunks would not help: the chunk is no longer what fills the memory.
        if self.size <= self._least:
            raise MemoryError(
                f"out of memory while {wanted}, with the smallest chunk of {self.size} points: the memory is used "
                "elsewhere; stop other programs, or train with fewer rays or a smaller table"
            )
        self.size = max(self.size // 2, self._least)
        self.shrinks += 1


def evaluate_in_chunks(
    field: DistanceField, points: Float[Tensor, "n 3"], chunk: Chunks | int = CHUNK
) -> Float[Tensor, " n"]:
    """Evaluate a field at points without gradients, in chunks that shrink when memory runs out.

    The value at a point must not depend on the other points. The result is then bitwise equal to that of one call.

    Args:
        field: signed distance function.
        points: points to evaluate.
        chunk: number of points per chunk. Pass the same `Chunks` to several calls, so that a size that did not fit is
            not tried again.

    Raises:
        MemoryError: even the smallest chunk does not fit.
        ValueError: the number of distances differs from the number of points.
    """
    result = points.new_empty(len(points))
    for start, values in _parts(lambda some: (field(some),), points, _sized(chunk)):
        result[start : start + len(values[0])] = values[0]
    return result


def gradients_in_chunks(
    field: FieldWithGradient, points: Float[Tensor, "n 3"], chunk: Chunks | int = CHUNK
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 3"]]:
    """Evaluate a field and its gradients at points in chunks, like `evaluate_in_chunks`.

    Args:
        field: function that returns signed distances and gradients, such as `HashSdf.with_gradient`.
        points: points to evaluate.
        chunk: number of points per chunk.

    Raises:
        MemoryError: even the smallest chunk does not fit.
        ValueError: the number of distances or gradients differs from the number of points.
    """
    distances = points.new_empty(len(points))
    gradients = torch.empty_like(points)
    for start, (distance, gradient) in _parts(field, points, _sized(chunk)):
        distances[start : start + len(distance)] = distance
        gradients[start : start + len(distance)] = gradient
    return distances, gradients


def _sized(chunk: Chunks | int) -> Chunks:
    return chunk if isinstance(chunk, Chunks) else Chunks(chunk)


def _parts(
    function: Callable[[Tensor], tuple[Tensor, ...]], points: Tensor, chunks: Chunks
) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Yield the index of the first point and the values of each chunk."""
    start = 0
    while start < len(points):
        part = points[start : start + chunks.size]
        values = _values_or_none(function, part)
        # Handled outside the except block, where the traceback would keep the tensors of the failed call alive.
        if values is None:
            chunks.shrink(f"evaluating a field at {len(points)} points")
            continue
        yield start, values
        start += len(part)


@torch.no_grad()
def _values_or_none(function: Callable[[Tensor], tuple[Tensor, ...]], points: Tensor) -> tuple[Tensor, ...] | None:
    """Return the values at points; None if memory ran out."""
    try:
        values = function(points)
    except (torch.OutOfMemoryError, MemoryError):
        return None
    # The CPU allocator raises a plain RuntimeError; only its text identifies it.
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _HOST_IS_FULL):
            raise
        return None
    # A trailing axis of size 1 would broadcast silently into wrong results.
    for value in values:
        if value.shape not in {points.shape[:1], points.shape}:
            raise ValueError(
                f"the field returned values of shape {tuple(value.shape)} for {len(points)} points, expected one "
                "number (squeeze the last axis) and one gradient each"
            )
    return values
