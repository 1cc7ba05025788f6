"""Evaluation of a field at any number of points, some at a time, fewer when memory runs out."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.render.sdf.gradients import DistanceField

CHUNK = 65_536
"""Points at a time, unless a caller knows better."""
LEAST = 1024
"""Points below which less would not help: what is missing then is memory for something else."""
_HOST_IS_FULL = ("can't allocate memory", "not enough memory")  # torch has no class of its own for it

FieldWithGradient = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Signed distances ("n") and their gradients ("n 3") at points ("n 3"), each point by itself."""


class Chunks:
    """How many points are evaluated at a time: halved when memory runs out, and remembered from then on.

    Args:
        size: points at a time to begin with.
        least: size that is not gone below.

    Attributes:
        size: points at a time, now.
        shrinks: how often it was halved.

    Raises:
        InputError: a size below 1.
    """

    def __init__(self, size: int = CHUNK, *, least: int = LEAST) -> None:
        if min(size, least) < 1:
            raise InputError(f"{size} points at a time, at least {least}: both must be 1 or more")
        self.size = size
        self.shrinks = 0
        self._least = min(least, size)

    def shrink(self, wanted: str) -> None:
        """Halve the size.

        Args:
            wanted: what ran out of memory, for the message.

        Raises:
            MemoryError: the size is as small as it gets.
        """
        if self.size <= self._least:
            raise MemoryError(
                f"out of memory while {wanted}, {self.size} points at a time, the fewest that are tried: other things "
                "fill the memory; stop other programs, or train with fewer rays or a smaller table"
            )
        self.size = max(self.size // 2, self._least)
        self.shrinks += 1


def evaluate_in_chunks(
    field: DistanceField, points: Float[Tensor, "n 3"], chunk: Chunks | int = CHUNK
) -> Float[Tensor, " n"]:
    """Evaluate a field at points, without gradients, some at a time; when memory runs out, fewer.

    What a field gives for a point must not depend on the others, then the result is that of one call, bit for bit.

    Args:
        field: signed distances at points.
        points: any number.
        chunk: points at a time. A `Chunks` is handed from call to call, so that what did not fit is not tried again.

    Raises:
        MemoryError: even the smallest part does not fit.
        ValueError: the field gives another number of distances than there are points.
    """
    result = points.new_empty(len(points))
    for start, values in _parts(lambda some: (field(some),), points, _sized(chunk)):
        result[start : start + len(values[0])] = values[0]
    return result


def gradients_in_chunks(
    field: FieldWithGradient, points: Float[Tensor, "n 3"], chunk: Chunks | int = CHUNK
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 3"]]:
    """Evaluate a field and its gradient at points, as `evaluate_in_chunks` does the field alone.

    Args:
        field: signed distances and gradients at points, such as `HashSdf.with_gradient`.
        points: any number.
        chunk: points at a time.

    Raises:
        MemoryError: even the smallest part does not fit.
        ValueError: the field gives another number of distances or gradients than there are points.
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
    """Yield the values of one part after the other, with the number of its first point."""
    start = 0
    while start < len(points):
        part = points[start : start + chunks.size]
        values = _tried(function, part)
        if values is None:  # outside of the except block: there the failed call's tensors would still be held
            chunks.shrink(f"evaluating a field at {len(points)} points")
            continue
        yield start, values
        start += len(part)


@torch.no_grad()
def _tried(function: Callable[[Tensor], tuple[Tensor, ...]], points: Tensor) -> tuple[Tensor, ...] | None:
    """Values at points; None where memory ran out."""
    try:
        values = function(points)
    except (torch.OutOfMemoryError, MemoryError):
        return None
    # The CPU allocator raises a plain RuntimeError; only its text tells.
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _HOST_IS_FULL):
            raise
        return None
    for value in values:
        if value.shape not in {points.shape[:1], points.shape}:
            raise ValueError(
                f"the field gave values of shape {tuple(value.shape)} for {len(points)} points: it must give one "
                "number for each (squeeze the last axis), and one gradient"
            )
    return values
