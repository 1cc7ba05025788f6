"""Write the scene of tests/fixtures/splat_files: 240 Gaussians on a torus and around it, SH degree 3.

python scripts/splat_formats/make_scene.py tests/fixtures/splat_files/scene.ply
"""

import math
import sys
from pathlib import Path

import torch

from fieldwatch.recon.data import GaussianCloud, write_gaussian_ply

COUNT = 240
FAR = 8
PALETTE = 32
OPAQUE = 12
"""Gaussians whose opacity is 1 in 8 bits."""


def make_scene() -> GaussianCloud:
    """Return the Gaussians: a torus about the vertical axis, a few far away, a few fully opaque."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    around = uniform(COUNT) * 2 * math.pi
    across = uniform(COUNT) * 2 * math.pi
    radius = 1 + 0.35 * across.cos()
    means = torch.stack([radius * around.cos(), 0.35 * across.sin(), radius * around.sin()], 1)
    means[:FAR] = 12 * normal(FAR, 3)
    log_scales = -2.6 + 0.5 * normal(COUNT, 3)
    log_scales[:FAR] += 2.5
    opacity_logits = 1.5 + 2 * normal(COUNT)
    opacity_logits[FAR : FAR + OPAQUE] = 9.0
    # Red, green and blue change around the ring, so that a mirrored or turned scene looks different.
    hues = torch.stack([around, around + 2.1, across], 1)
    return GaussianCloud(
        means=means,
        log_scales=log_scales,
        quaternions=torch.nn.functional.normalize(normal(COUNT, 4), dim=1),
        opacity_logits=opacity_logits,
        constant=1.2 * hues.sin(),
        # Few distinct sets: the palette of SOG holds them all.
        rest=(0.15 * normal(PALETTE, 15, 3))[torch.randint(PALETTE, (COUNT,), generator=generator)],
    )


if __name__ == "__main__":
    write_gaussian_ply(Path(sys.argv[1]), make_scene())
