"""Mean errors over samples, computed chunk by chunk if the graph of all samples does not fit into memory."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fieldwatch.recon.losses import Ellipsoids, Samples
from fieldwatch.recon.render.splats import SampleErrors

_checkpoint: Any = checkpoint  # torch does not annotate it


def mean_in_chunks(
    errors_of: Callable[[Samples], SampleErrors], samples: Samples, ellipsoids: Ellipsoids, chunks: int
) -> dict[str, Float[Tensor, ""]]:
    """Return the mean error over all samples for each term, with its gradient.

    With several chunks, activation checkpointing recomputes the errors of each chunk in `backward`. Up to rounding, the
    result does not depend on the number of chunks.

    Args:
        errors_of: function that computes the errors of samples; it runs twice and must not use random numbers.
        samples: all samples.
        ellipsoids: Gaussians that the samples are compared with.
        chunks: maximum number of chunks.
    """
    if chunks == 1:
        return {name: error for name, (error, _) in errors_of(samples).items()}
    # Computed and cached before the chunks, so that all of them share one graph of these properties.
    _ = ellipsoids.whitening, ellipsoids.normals, ellipsoids.thickness
    # `torch.chunk` may return fewer chunks than requested, but the same number for both tensors.
    pairs = zip(samples.points.chunk(chunks), samples.owners.chunk(chunks), strict=True)
    parts = [Samples(points=points, owners=owners, some=samples.some) for points, owners in pairs]
    # No random state to restore: `errors_of` uses no random numbers.
    chunk_errors: list[SampleErrors] = [
        _checkpoint(errors_of, part, use_reentrant=False, preserve_rng_state=False) for part in parts
    ]
    return {name: _weighted_mean([errors[name] for errors in chunk_errors]) for name in chunk_errors[0]}


def _weighted_mean(means: list[tuple[Tensor, Tensor | int]]) -> Float[Tensor, ""]:
    """Return the mean of means, weighted by their numbers of samples; 0 if there are no samples."""
    # Chunks differ in size, and a mask may leave different numbers of samples.
    values = torch.stack([value for value, _ in means])
    counts = torch.stack([torch.as_tensor(count).to(values) for _, count in means])
    return (values * counts).sum() / counts.sum().clamp_min(1)
