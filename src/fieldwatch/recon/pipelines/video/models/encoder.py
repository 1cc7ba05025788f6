"""ConvNeXt encoder of HNeRV: a frame -> a small grid of embeddings."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import InputError


class ChannelNorm(nn.Module):
    """Layer norm over the channels of a feature map, epsilon 1e-6."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Float[Tensor, "units channels height width"]) -> Float[Tensor, "units channels height width"]:
        """Normalize the channels of every pixel."""
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """x + scale * linear(GELU(linear(norm(depthwise 7x7(x))))) with four times the width inside; scale starts at 1e-6.

    (ConvNeXt, Liu et al. 2022, section 2; no stochastic depth.)
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.widen = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        # Layer scale: blocks start close to the identity.
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Float[Tensor, "units channels height width"]) -> Float[Tensor, "units channels height width"]:
        """Refine a feature map, preserving its shape."""
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        inner = self.scale * self.narrow(functional.gelu(self.widen(inner)))
        return x + inner.permute(0, 3, 1, 2)


class Encoder(nn.Sequential):
    """One stage per stride: patchify (kernel = stride) with channel norms, then `blocks` ConvNeXt blocks.

    Weights are initialized from a truncated normal (0.02), biases with 0. Every stage has `width` channels, except the
    last, which has `embedding` channels.
    """

    def __init__(self, strides: tuple[int, ...], *, width: int, embedding: int, blocks: int) -> None:
        layers: list[nn.Module] = []
        before = 3
        for i, stride in enumerate(strides):
            channels = embedding if i == len(strides) - 1 else width
            patchify = nn.Conv2d(before, channels, stride, stride)
            # As in ConvNeXt, the norm follows the stem, but precedes later downsampling layers.
            layers += [patchify, ChannelNorm(channels)] if i == 0 else [ChannelNorm(before), patchify]
            layers += [ConvNeXtBlock(channels) for _ in range(blocks)]
            before = channels
        super().__init__(*layers)
        self.apply(_start)


def _start(module: nn.Module) -> None:
    # Norms and layer scales keep their own initialization.
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def embedding_channels(enc_dim: str, modelsize: float | None, *, cells: int) -> tuple[int, int]:
    """Return encoder width and embedding channels of "<width>_<embedding>".

    An embedding below 1 is the fraction of `modelsize` for the embeddings of all frames (`cells` values per channel).
    """
    width, embedding = enc_dim.split("_")
    share = float(embedding)
    # From 1 on the number counts channels.
    if share >= 1:
        return int(width), int(share)
    if modelsize is None:
        raise InputError(f"enc_dim {enc_dim} is a fraction of modelsize, which is not set: give modelsize too")
    return int(width), max(1, math.floor(share * modelsize * 1e6 / cells))
