"""Mean errors over samples, a chunk of them at a time: for where the graph of all does not fit into memory."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fieldwatch.recon.losses import Ellipsoids, Samples

Errors = Mapping[str, tuple[Tensor, Tensor | int]]
"""Mean error of some samples by term, and of how many samples it is the mean."""
_again: Any = checkpoint
"""Torch states few of its types."""


def mean_in_chunks(
    compared: Callable[[Samples], Errors], samples: Samples, ellipsoids: Ellipsoids, chunks: int
) -> dict[str, Float[Tensor, ""]]:
    """Return the mean error over all samples for each term, with its gradient.

    With several chunks, each is compared without keeping its graph; `backward` compares it again. The result is that of
    one chunk, up to rounding.

    Args:
        compared: compares some samples; it must draw no random numbers.
        samples: all.
        ellipsoids: that it compares them with: what it derives from them is the same for all chunks.
        chunks: how many.
    """
    if chunks == 1:
        return {name: error for name, (error, _) in compared(samples).items()}
    _ = ellipsoids.whitening, ellipsoids.normals, ellipsoids.thickness  # outside of the chunks: with a graph that stays
    pairs = zip(samples.points.chunk(chunks), samples.owners.chunk(chunks), strict=True)
    parts: list[Errors] = [
        _again(compared, Samples(points=points, owners=owners), use_reentrant=False, preserve_rng_state=False)
        for points, owners in pairs
    ]
    return {name: _mean([part[name] for part in parts]) for name in parts[0]}


def _mean(parts: list[tuple[Tensor, Tensor | int]]) -> Float[Tensor, ""]:
    """Mean of means, each by how many samples it is of; 0 where there are none."""
    values = torch.stack([value for value, _ in parts])
    counts = torch.stack([torch.as_tensor(count).to(values) for _, count in parts])
    return (values * counts).sum() / counts.sum().clamp_min(1)
