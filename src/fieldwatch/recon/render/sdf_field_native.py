"""Autograd function of the native kernel that evaluates a neural SDF in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.render.encoding import HashEncoding, HashLevel, grid_arguments
from fieldwatch.recon.render.native import call

# Sizes of fixed arrays in native/sdf_field.c: MOST_HIDDEN, and MOST_INPUTS - 4.
_MOST_HIDDEN = 256
_MOST_FEATURES = 64


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Arguments of a pass other than the tensors that get gradients.

    Attributes:
        lattices: lattices of the encoding.
        weights: weight of each level.
        sharpness: beta of Softplus.
        sloped: whether to compute the gradient with respect to the points.
        kept: whether to store intermediate values for a backward pass.
    """

    lattices: Sequence[HashLevel]
    weights: Float[Tensor, "levels"]
    sharpness: float
    sloped: bool
    kept: bool

    def grid(self, table: Tensor) -> tuple[Any, ...]:
        """Return the encoding arguments of the kernel."""
        return grid_arguments(self.lattices, self.weights, table)


def fits_native(encoding: HashEncoding, hidden: int) -> bool:
    """Return whether the fixed arrays of the kernel fit a field of these sizes."""
    return hidden <= _MOST_HIDDEN and encoding.features <= _MOST_FEATURES


def field_arguments(
    encoding: HashEncoding, network: tuple[Tensor, Tensor, Tensor, Tensor], sharpness: float
) -> tuple[Any, ...]:
    """Return the arguments with which kernels take a field: its encoding, and its network with its Softplus.

    Args:
        encoding: hash encoding of the field.
        network: weight (hidden, 3 + features) and bias of the hidden layer, weight (1, hidden) and bias of the last.
        sharpness: beta of Softplus.
    """
    table = encoding.table.detach().contiguous()
    weights = [part.detach().contiguous() for part in network]
    grid = grid_arguments(encoding.lattices, encoding.level_weights(), table)
    return *grid, weights[0].shape[0], *weights, sharpness


def fused_distance(
    points: Float[Tensor, "n 3"],
    encoding: HashEncoding,
    network: tuple[Tensor, Tensor, Tensor, Tensor],
    sharpness: float,
    *,
    sloped: bool,
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n 3"] | None, int]:
    """Return signed distances, their gradients if requested, and the number of points outside the box.

    Args:
        points: points in [-1, 1].
        encoding: hash encoding of the field.
        network: weight (hidden, 3 + features) and bias of the hidden layer, weight (1, hidden) and bias of the last.
        sharpness: beta of Softplus.
        sloped: whether to compute the gradients.
    """
    inputs = (points, encoding.table, *network)
    # Without a backward pass the kernel does not need to store features.
    needs_backward = torch.is_grad_enabled() and any(part.requires_grad for part in inputs)
    settings = _Settings(
        lattices=encoding.lattices,
        weights=encoding.level_weights(),
        sharpness=sharpness,
        sloped=sloped,
        kept=needs_backward,
    )
    return _Fused.apply(*inputs, settings)


class _Fused(torch.autograd.Function):
    """The kernel. If a backward pass may follow, the forward pass stores the features and their slopes."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, table: Tensor, *rest: Any) -> Any:
        network = [part.contiguous() for part in rest[:-1]]
        settings = rest[-1]
        points = points.contiguous()
        table = table.contiguous()
        threads = torch.get_num_threads()
        count = len(points)
        sizes = (count, table.shape[1] * len(settings.lattices), network[0].shape[0], settings.sloped)
        # The kernel reports the memory for a backward pass, which is tiny if none can follow.
        memory = points.new_empty(call("fw_sdf_memory", *sizes, settings.kept, threads))
        distance = points.new_empty(count)
        gradient = points.new_empty(count, 3) if settings.sloped else None
        weights = (network[0].shape[0], *network, settings.sharpness, threads)
        outside = call(
            "fw_sdf", count, points, *settings.grid(table), *weights, settings.kept, memory, distance, gradient
        )
        if settings.kept:
            ctx.save_for_backward(table, *network, memory)
            ctx.settings = settings
            ctx.count = count
        ctx.set_materialize_grads(False)
        return distance, gradient, outside

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the native neural SDF cannot be differentiated twice, as create_graph=True requires: use "
                "with_gradient, whose gradient is trained by one ordinary backward pass"
            )
        table, *network, memory = ctx.saved_tensors
        settings = ctx.settings
        count = ctx.count
        upstream = [None if part is None else part.contiguous() for part in gradients[:2]]
        hidden = network[0].shape[0]
        scratch = table.new_empty(call("fw_sdf_scratch", count, table.shape[1] * len(settings.lattices), hidden))
        by_network = [torch.empty_like(part) for part in network]
        # Skipping unneeded gradients saves a pass over the table.
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
