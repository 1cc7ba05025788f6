"""Autograd function of the GPU kernels that evaluate a neural SDF, and repeat to the bit (`gpu/sdf_field.cu`)."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from fieldwatch.recon.render.encoding import HashEncoding
from fieldwatch.recon.render.gpu import KernelFile
from fieldwatch.recon.transfers import constant

FIELD = KernelFile("sdf_field.cu")
OUTSIDE = 1
"""Fault bit of points outside the box: OUTSIDE in the kernels."""
_SHARES = 512  # SHARES in the kernels
_TABLE_THREADS = 128
_POINTS_PER_BLOCK = {16: 64, 64: 32}  # by the most features of a kernel
MOST_FEATURES = max(_POINTS_PER_BLOCK)
"""Most features of the encoding that the kernels support."""
MOST_POINTS = 1 << 24
"""Most points of a pass: the sums of a row of the table hold 8 numbers of each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Settings:
    """Arguments of a pass other than the tensors that get gradients."""

    encoding: HashEncoding
    sharpness: float
    sloped: bool
    count: Tensor | None
    faults: Tensor

    @property
    def most(self) -> int:
        """Most features of the kernel that fits."""
        return min(most for most in _POINTS_PER_BLOCK if most >= self.encoding.features)

    @property
    def grid(self) -> tuple[Any, ...]:
        """Arguments of the encoding."""
        encoding = self.encoding
        return len(encoding.lattices), encoding.table.shape[1], _layout(encoding), encoding.active_levels


def fits_gpu(encoding: HashEncoding, layers: int, *tensors: Tensor) -> bool:
    """Return whether the kernels support a field: single precision on a GPU, one hidden layer, up to 64 features."""
    single = all((part.dtype, part.device.type) == (torch.float32, "cuda") for part in tensors)
    return single and layers == 1 and encoding.features <= MOST_FEATURES


def gpu_distance(  # noqa: PLR0913  a field, its points, and how many they are
    points: Float[Tensor, "n 3"],
    encoding: HashEncoding,
    network: tuple[Tensor, Tensor, Tensor, Tensor],
    sharpness: float,
    *,
    sloped: bool,
    count: Int32[Tensor, "1"] | None = None,
    faults: Int32[Tensor, "1"] | None = None,
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n 3"] | None, Int32[Tensor, "1"]]:
    """Return signed distances, their gradients if requested, and fault bits, without a read from the device.

    Args:
        points: points in [-1, 1].
        encoding: hash encoding of the field.
        network: weight (hidden, 3 + features) and bias of the hidden layer, weight (1, hidden) and bias of the last.
        sharpness: beta of Softplus.
        sloped: whether to compute the gradients.
        count: number of points, if the others are only room; distances and gradients behind it are 0.
        faults: fault bits to add to; None begins new ones.

    Raises:
        ValueError: there are more than 2^24 points.
    """
    if len(points) > MOST_POINTS:
        raise ValueError(f"the GPU kernels of a field take up to {MOST_POINTS} points at a time, got {len(points)}")
    faults = torch.zeros(1, dtype=torch.int32, device=points.device) if faults is None else faults
    settings = _Settings(encoding=encoding, sharpness=sharpness, sloped=sloped, count=count, faults=faults)
    distance, gradient = _Field.apply(points, encoding.table, *network, settings)
    return distance, gradient, faults


class _Field(torch.autograd.Function):
    """The kernels. The forward pass keeps nothing but its inputs."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, table: Tensor, *rest: Any) -> Any:
        network = [part.contiguous() for part in rest[:-1]]
        settings: _Settings = rest[-1]
        points = points.contiguous()
        room = len(points)
        distance = points.new_empty(room)
        gradient = points.new_empty(room, 3) if settings.sloped else None
        FIELD.launch(
            f"sdf_{settings.most}",
            -(-room // _POINTS_PER_BLOCK[settings.most]),
            *(settings.count, room, points, *settings.grid, table, len(network[0]), *network),
            *(settings.sharpness, distance, gradient, settings.faults),
        )
        ctx.save_for_backward(points, table, *network)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return distance, gradient

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the GPU kernels of a neural SDF cannot be differentiated twice, as create_graph=True requires: use "
                "with_gradient, whose gradient is trained by one ordinary backward pass"
            )
        points, table, *network = ctx.saved_tensors
        settings: _Settings = ctx.settings
        by_distance, by_gradient = (None if part is None else part.contiguous() for part in gradients)
        room = len(points)
        hidden, columns = network[0].shape
        rows, width = table.shape
        chunk = _POINTS_PER_BLOCK[settings.most]
        blocks = min(-(-room // chunk), _SHARES)
        shares = table.new_empty(blocks, hidden * (columns + 2) + 1)
        pulled = table.new_empty(room, 2, settings.encoding.features)
        # One allocation to clear: 64-bit sums of the rows, then their 32-bit exponents.
        cleared = torch.zeros(rows * width + -(-rows // 2), dtype=torch.int64, device=table.device)
        sums = cleared[: rows * width]
        exponents = cleared[rows * width :].view(torch.int32)
        by_points = torch.empty_like(points) if ctx.needs_input_grad[0] else None
        by_table = torch.empty_like(table)
        by_network = [torch.empty_like(part) for part in network]
        at = (settings.count, room, points, *settings.grid)
        FIELD.launch(
            f"sdf_backward_{settings.most}",
            blocks,
            *(*at, table, hidden, *network[:3], settings.sharpness, by_distance, by_gradient),
            *(shares, pulled, exponents, by_points),
        )
        levels = len(settings.encoding.lattices)
        FIELD.launch(
            "sdf_table_sums",
            -(-room * levels // _TABLE_THREADS),
            *(*at, by_gradient, pulled, exponents, sums),
        )
        numbers = rows * width
        table_blocks = -(-numbers // _TABLE_THREADS)
        FIELD.launch(
            "sdf_gradients",
            table_blocks + -(-shares.shape[1] // _TABLE_THREADS),
            *(numbers, width, exponents, sums, by_table, table_blocks),
            *(settings.count, room, chunk, hidden, columns, shares, *by_network),
        )
        return by_points, by_table, *by_network, None


def _layout(encoding: HashEncoding) -> Int64[Tensor, "levels 3"]:
    """Return resolution, first row and number of rows of the levels."""
    numbers = [float(number) for level in encoding.lattices for number in (level.resolution, level.start, level.rows)]
    like = torch.empty(0, dtype=torch.int64, device=encoding.table.device)
    return constant(tuple(numbers), like).view(-1, 3)


def normalized_weights(
    first: tuple[Float[Tensor, "hidden 1"], Float[Tensor, "hidden columns"]],
    last: tuple[Float[Tensor, "1 1"], Float[Tensor, "1 hidden"]],
) -> tuple[Float[Tensor, "hidden columns"], Float[Tensor, "1 hidden"]]:
    """Return the weights of both layers with weight normalization (Salimans 2016), in one launch.

    Args:
        first: lengths and directions of the hidden layer's weights.
        last: those of the last layer's.
    """
    return cast("tuple[Tensor, Tensor]", _Weights.apply(*first, *last))


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Any:
        given = [part.contiguous() for part in parts]
        size = given[1].shape
        weights = (torch.empty_like(given[1]), torch.empty_like(given[3]))
        lengths = given[1].new_empty(size[0] + 1)
        FIELD.launch("sdf_weights", size[0] + 1, *size, *given, *weights, lengths)
        ctx.save_for_backward(*given, lengths)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *given, lengths = ctx.saved_tensors
        size = given[1].shape
        results = [torch.empty_like(part) for part in given]
        upstream = [part.contiguous() for part in gradients]
        FIELD.launch("sdf_weights_backward", size[0] + 1, *size, *given, lengths, *upstream, *results)
        return tuple(results)
