"""Decoder modules of the NeRV family: stem, upsampling blocks, and the stack of both."""

import functools
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch.recon.transfers import constant

from .options import ModelOptions


class Sine(nn.Module):
    """sin(x), as an activation."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the sine to every element."""
        return torch.sin(x)


def activation(name: str) -> nn.Module:
    """Return an activation by its name in the original scripts (see `options.ACTIVATIONS`)."""
    return {
        "relu": nn.ReLU,
        "leaky": nn.LeakyReLU,
        "leaky01": lambda: nn.LeakyReLU(0.1),
        "relu6": nn.ReLU6,
        "gelu": nn.GELU,
        "sin": Sine,
        "swish": nn.SiLU,
        "softplus": nn.Softplus,
        "hardswish": nn.Hardswish,
    }[name]()


def normalization(name: str, channels: int) -> nn.Module:
    """Return a normalization by name: "none", "bn" (batch) or "in" (instance)."""
    return {"none": nn.Identity, "bn": nn.BatchNorm2d, "in": nn.InstanceNorm2d}[name](channels)


class Stem(nn.Module):
    """1x1 convolution to channels * height * width values, then norm and activation, rearranged to a feature map."""

    def __init__(self, channels_in: int, channels: int, size: tuple[int, int], options: ModelOptions) -> None:
        super().__init__()
        self.size = size
        # Submodule names are those of the original's checkpoints.
        self.conv = nn.ModuleDict({"downconv": nn.Conv2d(channels_in, channels * size[0] * size[1], 1)})
        self.norm = normalization(options.norm, channels * size[0] * size[1])
        self.act = activation(options.act)

    def forward(self, x: Float[Tensor, "units code rows columns"]) -> Float[Tensor, "units channels height width"]:
        """Expand every input pixel to a block of ``size`` pixels (channel-major, then row, then column)."""
        x = self.act(self.norm(self.conv["downconv"](x)))
        units, values, rows, columns = x.shape
        height, width = self.size
        # Like a pixel shuffle with a rectangular block.
        x = x.reshape(units, values // (height * width), height, width, rows, columns)
        return x.permute(0, 1, 4, 2, 5, 3).reshape(units, -1, rows * height, columns * width)


class UpBlock(nn.Module):
    """Upsample by `stride`, then norm and activation.

    "pshuffel": convolution to stride^2 * channels, then pixel shuffle (Shi et al. 2016); "conv": transposed
    convolution; "interpolate": bilinear upsampling, then convolution.
    """

    def __init__(self, channels_in: int, channels: int, *, stride: int, kernel: int, options: ModelOptions) -> None:
        super().__init__()
        build = {"pshuffel": _shuffle, "conv": _transposed, "interpolate": _interpolate}[options.conv_type[1]]
        self.stride = stride
        self.conv = nn.ModuleDict({"upconv": build(channels_in, channels, stride, kernel)})
        self.norm = normalization(options.norm, channels)
        self.act = activation(options.act)

    def forward(self, x: Float[Tensor, "units before rows columns"]) -> Float[Tensor, "units channels height width"]:
        """Return a feature map of `stride` times the size."""
        size = (self.stride * x.shape[-2], self.stride * x.shape[-1])
        return self.act(self.norm(_fit(self.conv["upconv"](x), size)))


def _shuffle(channels_in: int, channels: int, stride: int, kernel: int) -> nn.Sequential:
    # "Same" padding for odd kernels.
    convolution = nn.Conv2d(channels_in, channels * stride**2, kernel, padding=(kernel - 1) // 2)
    return nn.Sequential(convolution, nn.PixelShuffle(stride) if stride > 1 else nn.Identity())


def _transposed(channels_in: int, channels: int, stride: int, kernel: int) -> nn.Module:
    # Kernel and padding of the released HNeRV code; `_fit` adds the pixel that may be missing.
    return nn.ConvTranspose2d(channels_in, channels, kernel + stride, stride, math.ceil(kernel / 2))


def _interpolate(channels_in: int, channels: int, stride: int, kernel: int) -> nn.Sequential:
    padding = math.ceil((kernel + stride - 1) / 2)
    return nn.Sequential(Enlarged(stride), nn.Conv2d(channels_in, channels, kernel + stride, padding=padding))


class Enlarged(nn.Module):
    """Bilinear resampling to `stride` times the size."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Float[Tensor, "units channels rows columns"]) -> Float[Tensor, "units channels height width"]:
        """Return a larger feature map."""
        return resample(x, (self.stride * x.shape[-2], self.stride * x.shape[-1]))


def resample(
    x: Float[Tensor, "units channels rows columns"], size: tuple[int, int]
) -> Float[Tensor, "units channels height width"]:
    """Resample images bilinearly to a size; gradients repeat to the bit, also on a GPU."""
    return _Resample.apply(x, size) if x.is_cuda else functional.interpolate(x, size, mode="bilinear")


class _Resample(torch.autograd.Function):
    """torch's resampling, with a gradient that adds in a fixed order: the transposed product instead of atomics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: tuple[int, int]) -> Tensor:
        ctx.size = x.shape[-2:]
        return functional.interpolate(x, size, mode="bilinear")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        (gradient,) = gradients
        height, width = gradient.shape[-2:]
        rows, columns = ctx.size
        down = _weights(rows, height, gradient.dtype, gradient.device)
        across = _weights(columns, width, gradient.dtype, gradient.device)
        return down @ gradient @ across.T, None


@functools.lru_cache(maxsize=64)
def _weights(before: int, after: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "before after"]:
    """Return the weight of each of ``before`` pixels in each of ``after`` resampled ones; do not write to it."""
    # A tensor made in inference mode could never take part in a training.
    with torch.inference_mode(False), torch.no_grad():
        return functional.interpolate(torch.eye(before)[None], after, mode="linear")[0].to(device, dtype)


def _fit(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop, or repeat the last row and column: with even kernels "conv" is one pixel short, "interpolate" one over."""
    missing = (size[0] - x.shape[-2], size[1] - x.shape[-1])
    if x.is_cuda:
        # The gradient of torch's padding does not repeat to the bit on a GPU; that of a concatenation does.
        rows = [x, *[x[..., -1:, :]] * missing[0]]
        x = torch.cat(rows, -2) if len(rows) > 1 else x
        columns = [x, *[x[..., -1:]] * missing[1]]
        x = torch.cat(columns, -1) if len(columns) > 1 else x
    elif max(missing) > 0:
        x = functional.pad(x, (0, max(missing[1], 0), 0, max(missing[0], 0)), mode="replicate")
    return x[..., : size[0], : size[1]]


def build_decoder(
    channels_in: int, fc_dim: int, size: tuple[int, int], strides: tuple[int, ...], options: ModelOptions
) -> tuple[nn.ModuleList, int]:
    """Return stem and stages in order, and the width of the last feature map.

    Args:
        channels_in: channels of the code that enters the stem.
        fc_dim: channels of the first feature map.
        size: height and width of the block that the stem makes of one code.
        strides: upsampling factor per stage.
        options: kernels, width reduction, blocks per stage, norm, activation, block type.
    """
    layers: list[nn.Module] = [Stem(channels_in, fc_dim, size, options)]
    first, largest = options.kernels
    width = fc_dim
    for i, stride in enumerate(strides):
        divisor = math.sqrt(stride) if options.reduce == -1 else options.reduce
        # The width shrinks once per stage, in its first block.
        narrower = max(round(width / divisor), options.lower_width)
        for j in range(options.blocks[1]):
            step = {"stride": stride if j == 0 else 1, "kernel": min(first + 2 * i, largest), "options": options}
            layers.append(UpBlock(width, narrower, **step))
            width = narrower
    return nn.ModuleList(layers), width


class OutputMap(nn.Module):
    """Map from the RGB head's output to colors: (tanh + 1) / 2, sigmoid, or an added constant."""

    def __init__(self, out_bias: str) -> None:
        super().__init__()
        self.out_bias = out_bias

    def forward(self, x: Float[Tensor, "units channels height width"]) -> Float[Tensor, "units channels height width"]:
        """Convert every element to a color."""
        if self.out_bias == "tanh":
            # Both maps have the range (0, 1); a constant bias leaves values unbounded.
            return (torch.tanh(x) + 1) / 2
        if self.out_bias == "sigmoid":
            return torch.sigmoid(x)
        return x + float(self.out_bias)


class PatchMeans(nn.Module):
    """Mean of a feature map over each of rows x columns patches."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.grid = (rows, columns)

    def forward(
        self, features: Float[Tensor, "units channels height width"]
    ) -> Float[Tensor, "units patches channels"]:
        """Return the mean channels of every patch, row-major."""
        rows, columns = self.grid
        height, width = features.shape[-2:]
        # The gradient of torch's pooling does not repeat to the bit on a GPU; that of a mean or a product does.
        if features.is_cuda and height % rows == width % columns == 0:
            patches = features.unflatten(2, (rows, -1)).unflatten(4, (columns, -1))
            return patches.permute(0, 2, 4, 1, 3, 5).mean((4, 5)).flatten(1, 2)
        if features.is_cuda:
            means = _shares(height, rows, features) @ features @ _shares(width, columns, features).T
        else:
            means = functional.adaptive_avg_pool2d(features, self.grid)
        return means.flatten(2).transpose(1, 2)


def _shares(size: int, parts: int, like: Tensor) -> Float[Tensor, "parts size"]:
    """Return the share of each pixel in the mean of each part, with the borders of `adaptive_avg_pool2d`."""
    rows: list[float] = []
    for part in range(parts):
        first = part * size // parts
        last = -(-(part + 1) * size // parts)  # rounded up
        rows += [1 / (last - first) if first <= pixel < last else 0.0 for pixel in range(size)]
    return constant(tuple(rows), like).view(parts, size)


class UnitNorm(nn.Module):
    """x / |x|, along the last axis."""

    def forward(self, x: Float[Tensor, "units patches dim"]) -> Float[Tensor, "units patches dim"]:
        """Normalize vectors to length 1."""
        return functional.normalize(x, dim=-1)


def clip_head(channels: int, clip_dim: int, *, rows: int = 1, columns: int = 1) -> nn.Sequential:
    """Build the head from a feature map to a unit-norm embedding per patch.

    Layers: mean -> linear C -> 2C -> ReLU -> linear -> unit norm. The linear layers have the indices 2 and 4, as in the
    original's checkpoints.
    """
    return nn.Sequential(
        PatchMeans(rows, columns),
        # Placeholder for a layer of the original, which keeps the indices of the following ones.
        nn.Identity(),
        nn.Linear(channels, 2 * channels),
        nn.ReLU(),
        nn.Linear(2 * channels, clip_dim),
        UnitNorm(),
    )
