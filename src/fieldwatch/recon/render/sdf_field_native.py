"""The neural SDF in one native kernel: its autograd function."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fieldwatch.recon.render.encoding import HashEncoding, HashLevel
from fieldwatch.recon.render.native import call

# MOST_HIDDEN and MOST_INPUTS - 4 in native/sdf_field.c
_MOST_HIDDEN = 256
_MOST_FEATURES = 64


@dataclass(frozen=True, kw_only=True)
class _How:
    """What a pass needs besides the tensors that get gradients: the field's settings, and what is wanted of it.

    Attributes:
        lattices: of the encoding.
        weights: of its levels.
        sharpness: beta of Softplus.
        sloped: whether the gradient by the point is wanted.
        kept: whether a backward pass may come.
    """

    lattices: Sequence[HashLevel]
    weights: Float[Tensor, "levels"]
    sharpness: float
    sloped: bool
    kept: bool

    def grid(self, table: Tensor) -> tuple[Any, ...]:
        """The encoding's arguments."""
        layout: Int64[Tensor, "levels 3"] = torch.tensor(
            [[level.resolution, level.start, level.rows] for level in self.lattices]
        )
        return len(self.lattices), table.shape[1], layout, self.weights, table


def fits_native(encoding: HashEncoding, hidden: int) -> bool:
    """Whether the kernel has room for a field of these sizes."""
    return hidden <= _MOST_HIDDEN and encoding.features <= _MOST_FEATURES


def fused_distance(
    points: Float[Tensor, "n 3"],
    encoding: HashEncoding,
    network: tuple[Tensor, Tensor, Tensor, Tensor],
    sharpness: float,
    *,
    sloped: bool,
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n 3"] | None, int]:
    """Signed distances, their gradient if wanted, and how many points are outside the box.

    Args:
        points: in [-1, 1].
        encoding: of the field.
        network: weight (hidden, 3 + features) and bias of the hidden layer, weight (1, hidden) and bias of the last.
        sharpness: beta of Softplus.
        sloped: whether the gradient is wanted.
    """
    inputs = (points, encoding.table, *network)
    needs_backward = torch.is_grad_enabled() and any(part.requires_grad for part in inputs)
    settings = _How(
        lattices=encoding.lattices,
        weights=encoding.level_weights(),
        sharpness=sharpness,
        sloped=sloped,
        kept=needs_backward,
    )
    return _Fused.apply(*inputs, settings)


class _Fused(torch.autograd.Function):
    """The kernel. Where a backward pass may come, the forward one keeps features and, with them, slopes."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, table: Tensor, *rest: Any) -> Any:
        network = [part.contiguous() for part in rest[:-1]]
        settings = rest[-1]
        points = points.contiguous()
        table = table.contiguous()
        threads = torch.get_num_threads()
        count = len(points)
        sizes = (count, table.shape[1] * len(settings.lattices), network[0].shape[0], settings.sloped)
        # The kernel says how much it stores for a backward pass: next to nothing where none can come.
        memory = points.new_empty(call("fw_sdf_memory", *sizes, settings.kept, threads))
        distance = points.new_empty(count)
        gradient = points.new_empty(count, 3) if settings.sloped else None
        weights = (network[0].shape[0], *network, settings.sharpness, threads)
        outside = call(
            "fw_sdf", count, points, *settings.grid(table), *weights, settings.kept, memory, distance, gradient
        )
        if settings.kept:
            ctx.save_for_backward(table, *network, memory)
            ctx.how = settings
            ctx.count = count
        ctx.set_materialize_grads(False)
        return distance, gradient, outside

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the native neural SDF cannot be differentiated twice, and create_graph=True asked for that: take the "
                "field's gradient from with_gradient, which one ordinary backward pass trains"
            )
        table, *network, memory = ctx.saved_tensors
        settings = ctx.how
        count = ctx.count
        upstream = [None if part is None else part.contiguous() for part in gradients[:2]]
        hidden = network[0].shape[0]
        scratch = table.new_empty(call("fw_sdf_scratch", count, table.shape[1] * len(settings.lattices), hidden))
        by_network = [torch.empty_like(part) for part in network]
        by_table = torch.empty_like(table) if ctx.needs_input_grad[1] else None
        by_points = table.new_empty(count, 3) if ctx.needs_input_grad[0] else None
        weights = (hidden, *network, settings.sharpness, torch.get_num_threads())
        outputs = (*by_network, by_table, by_points)
        call(
            "fw_sdf_backward",
            count,
            *settings.grid(table),
            *weights,
            settings.sloped,
            memory,
            *upstream,
            scratch,
            *outputs,
        )
        return by_points, by_table, *by_network, None
