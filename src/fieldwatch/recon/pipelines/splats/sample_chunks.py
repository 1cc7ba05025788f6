"""Mean errors over samples, one chunk at a time: for when the graph of all does not fit into memory."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fieldwatch.recon.losses import Ellipsoids, Samples

Errors = Mapping[str, tuple[Tensor, Tensor | int]]
"""Mean error of some samples by term, and of how many samples it is the mean."""
_checkpoint: Any = checkpoint  # torch does not annotate it


def mean_in_chunks(
    errors_of: Callable[[Samples], Errors], samples: Samples, ellipsoids: Ellipsoids, chunks: int
) -> dict[str, Float[Tensor, ""]]:
    """Return the mean error over all samples for each term, with its gradient.

    With several chunks, the errors of each are computed without keeping the graph; `backward` computes them again. The
    result is that of one chunk, up to rounding.

    Args:
        errors_of: computes the errors of some samples; without random numbers, as it runs twice.
        samples: all.
        ellipsoids: that the samples are compared with.
        chunks: how many.
    """
    if chunks == 1:
        return {name: error for name, (error, _) in errors_of(samples).items()}
    # Cached here, outside of the chunks: computed once, with a graph that all chunks share.
    _ = ellipsoids.whitening, ellipsoids.normals, ellipsoids.thickness
    # `chunk` may give fewer chunks than asked for, but equally many for both tensors.
    pairs = zip(samples.points.chunk(chunks), samples.owners.chunk(chunks), strict=True)
    chunk_errors: list[Errors] = [
        _checkpoint(errors_of, Samples(points=points, owners=owners), use_reentrant=False, preserve_rng_state=False)
        for points, owners in pairs
    ]
    return {name: _weighted_mean([errors[name] for errors in chunk_errors]) for name in chunk_errors[0]}


def _weighted_mean(means: list[tuple[Tensor, Tensor | int]]) -> Float[Tensor, ""]:
    """Mean of means, each weighted by its number of samples; 0 where there are none."""
    values = torch.stack([value for value, _ in means])
    counts = torch.stack([torch.as_tensor(count).to(values) for _, count in means])
    return (values * counts).sum() / counts.sum().clamp_min(1)
