"""A teacher without weights: color and edge statistics of a patch as a 512-vector."""

import math

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from fieldwatch import InputError

DIM = 512
_SIDE = 64  # patches are resized to 64 x 64
_CHUNK = 256  # number of patches at a time, to bound memory for long clips


class ImageDescriptor:
    """Describes the appearance of a patch as a unit vector of 512; this is *not* CLIP and has no semantics.

    The features are colors (opponent channels: mean and spread per cell of a 4 x 4 grid, and a soft histogram of each)
    and edges (histograms of 6 gradient orientations per cell, at three scales, and their strength). Every block is
    centered, so that unrelated patches have a cosine near 0 rather than near 1. A fixed orthonormal transform (random
    signs, then Hadamard) mixes all features into all dimensions without changing any cosine.

    It replaces CLIP if the weights are not available: the semantic head can be trained, evaluated and searched by
    example. It cannot encode text. It is deterministic: no weights, no download, the same on every machine up to
    rounding.
    """

    name = "image-descriptor-512"
    dim = DIM

    def encode_images(self, patches: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 512"]:
        """Encode patches as unit vectors, float32, on the device of the patches."""
        if not len(patches):
            return torch.zeros(0, DIM, device=patches.device)
        return torch.cat([_describe(chunk) for chunk in patches.split(_CHUNK)])

    def encode_text(self, prompts: list[str]) -> Float[Tensor, "batch 512"]:
        """Raise an error: the descriptor cannot encode text.

        Raises:
            InputError: always; the message names the alternatives.
        """
        msg = (
            f"{self.name} cannot encode text ({len(prompts)} prompts, first {prompts[:1]}), only images: search by an "
            "example patch, or train with --teacher FOLDER, a folder of CLIP weights, to search by text"
        )
        raise InputError(msg)


def _describe(patches: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 512"]:
    # Antialiased, so that features do not depend on the size of the patch.
    small = functional.interpolate(patches.float() / 255, (_SIDE, _SIDE), mode="bilinear", antialias=True)
    opponent = _opponent(small)
    light = opponent[:, :1]
    blocks = [(1.0, _color_means(opponent)), (0.5, _color_spread(opponent)), (0.8, _histograms(opponent))]
    for weight, side in ((0.7, 64), (0.7, 32), (0.7, 16)):
        scaled = light if side == _SIDE else functional.interpolate(light, (side, side), mode="area")
        blocks.append((weight, _edges(scaled)))
    features = torch.cat([weight * block for weight, block in blocks], dim=1)
    padded = functional.pad(features, (0, DIM - features.shape[1]))
    # Random signs spread features that are aligned with the Hadamard basis over all dimensions.
    signs = _signs().to(padded)
    return functional.normalize(_hadamard(padded * signs), dim=1)


def _opponent(rgb: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch 3 h w"]:
    """Return lightness, red minus green, yellow minus blue; each approximately in [-1, 1] with gray at 0."""
    red, green, blue = rgb.unbind(1)
    return torch.stack([2 * (red + green + blue) / 3 - 1, red - green, (red + green) / 2 - blue], dim=1)


def _color_means(maps: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch 48"]:
    """Return the mean color of each of 16 cells; chroma is weighted up, because it is small in natural images."""
    # Lightness, red-green and yellow-blue.
    scale = maps.new_tensor([1.0, 2.0, 2.0]).view(1, 3, 1, 1)
    return (functional.adaptive_avg_pool2d(maps, 4) * scale).flatten(1) / 4


def _color_spread(maps: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch 48"]:
    """Return the standard deviation of color within each cell, minus that of a typical cell."""
    # E[x^2] - E[x]^2, which rounding can make slightly negative.
    variance = functional.adaptive_avg_pool2d(maps.square(), 4) - functional.adaptive_avg_pool2d(maps, 4).square()
    deviation = variance.clamp_min(0).sqrt()
    return (deviation - deviation.new_tensor([0.15, 0.05, 0.05]).view(1, 3, 1, 1)).flatten(1)


def _histograms(maps: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch 48"]:
    """Return a soft histogram of 16 bins per channel, as square roots minus that of a uniform histogram."""
    centers = torch.linspace(-0.9375, 0.9375, 16, device=maps.device)
    # Each value is divided linearly between the two nearest bins, so that the histogram is continuous.
    position = maps.flatten(2).clamp(-1, 1)[..., None]
    shares = (1 - (position - centers).abs() / 0.125).clamp_min(0).mean(2)
    # 1/4 is the square root of 1/16, a uniform bin; the roots are a unit vector for each of the 3 channels.
    return (shares.sqrt() - 0.25).flatten(1) / math.sqrt(3)


def _edges(light: Float[Tensor, "batch 1 h w"]) -> Float[Tensor, "batch 112"]:
    """Return orientation histograms (6 directions, minus a uniform histogram) and edge strengths of 4 x 4 cells."""
    across = light[..., 1:-1, 2:] - light[..., 1:-1, :-2]
    down = light[..., 2:, 1:-1] - light[..., :-2, 1:-1]
    strength = (across.square() + down.square() + 1e-12).sqrt()
    turn = (torch.atan2(down, across) / math.pi) % 1.0 * 6  # in [0, 6), orientation without sign
    bins = torch.arange(6, device=light.device).view(1, 6, 1, 1)
    # Orientations are cyclic: bin 5 is next to bin 0.
    apart = (turn - bins).abs()
    votes = (1 - torch.minimum(apart, 6 - apart)).clamp_min(0) * strength
    cells = functional.adaptive_avg_pool2d(votes, 4)
    # The constant damps the orientations of flat cells, which are noise.
    total = cells.sum(1, keepdim=True)
    directions = cells / (total + 0.02) - total / (total + 0.02) / 6
    amount = (total + 1e-3).log10() / 2 + 0.75  # a cell of typical contrast (0.03) is at 0
    return torch.cat([directions.flatten(1), 0.3 * amount.flatten(1)], dim=1)


def _signs() -> Float[Tensor, " 512"]:
    """Return 512 fixed random signs from raw bits of PCG64, whose bit stream is stable, unlike its distributions."""
    bits = np.random.PCG64(20251219).random_raw(DIM) >> 63
    return torch.from_numpy(bits.astype(np.float32) * 2 - 1)


def _hadamard(vectors: Float[Tensor, "batch 512"]) -> Float[Tensor, "batch 512"]:
    """Apply Sylvester's orthonormal Hadamard transform, as nine butterflies."""
    count = len(vectors)
    width = 1
    while width < DIM:
        pairs = vectors.view(count, -1, 2, width)
        vectors = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], dim=2).view(
            count, DIM
        )
        width *= 2
    return vectors / math.sqrt(DIM)
