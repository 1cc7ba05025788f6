"""Losses of rendered rays on a GPU, by kernels that repeat to the bit (`gpu/sdf_losses.cu`)."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from fieldwatch.recon.render.gpu import KernelFile

LOSSES = KernelFile("sdf_losses.cu")
_THREADS = 256
_EIKONAL_BLOCKS = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservedRays:
    """What rendered rays are compared with.

    Attributes:
        kept: number of rays that were rendered, the first ones.
        normals: observed normals in the frame of the scene.
        mask: rays on the object.
        known: rays with a known normal.
        weights: weights of the rays in the mask term; None weighs all alike.
        least_opacity: opacity from which a ray has a direction, so that sums of gradients are divided by the opacity;
            None compares the sums themselves.
        norm: cost of a difference of normals, see `difference_cost`.
        scale: difference from which the cost "robust" grows linearly.
    """

    kept: Int32[Tensor, "1"]
    normals: Float[Tensor, "rays 3"]
    mask: Bool[Tensor, " rays"]
    known: Bool[Tensor, " rays"]
    weights: Float[Tensor, " rays"] | None
    least_opacity: float | None
    norm: Literal["l1", "l2", "robust"] = "l2"
    scale: float = 0.1

    def after(self, opacity: Tensor, normal: Tensor) -> tuple[Any, ...]:
        """Return the arguments of the kernels from `kept` on."""
        least = -1.0 if self.least_opacity is None else self.least_opacity
        cost = (int(self.norm == "l1"), self.scale if self.norm == "robust" else 0.0)
        return self.kept, opacity, normal, self.normals.detach(), self.mask, self.known, self.weights, least, *cost


class RayTerms(NamedTuple):
    """Loss terms; see `normal_error`, `mask_error` and `eikonal_error`."""

    normal: Float[Tensor, ""]
    mask: Float[Tensor, ""]
    eikonal: Float[Tensor, ""]


def ray_terms(
    opacity: Float[Tensor, " rays"],
    normal: Float[Tensor, "rays 3"],
    gradients: Float[Tensor, "ends 3"],
    ends: Int32[Tensor, "1"],
    observed: ObservedRays,
) -> RayTerms:
    """Return the loss terms of rendered rays; gradients flow to all that was rendered and to the observed normals.

    Args:
        opacity: opacity of each ray.
        normal: sum of weight times gradient of each ray.
        gradients: gradients of the field.
        ends: number of gradients.
        observed: what the rays are compared with.
    """
    terms = _RayTerms.apply(opacity, normal, gradients, observed.normals, ends, observed)
    return RayTerms(*cast("tuple[Tensor, Tensor, Tensor]", terms))


@torch.no_grad()
def view_losses_on_device(  # noqa: PLR0913, PLR0917  what was rendered, and weights
    opacity: Float[Tensor, " rays"],
    normal: Float[Tensor, "rays 3"],
    observed: ObservedRays,
    views: int,
    normal_weight: float,
    mask_weight: float,
) -> Float[Tensor, " views"]:
    """Return the loss of each view, whose rays are equally many and in a row; NaN if none of them was rendered."""
    losses = opacity.new_empty(views)
    rays = len(opacity)
    given = observed.after(opacity.detach(), normal.detach())
    LOSSES.launch("view_losses", views, rays, -(-rays // views), *given, normal_weight, mask_weight, losses)
    return losses


class _RayTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, opacity: Tensor, normal: Tensor, gradients: Tensor, *rest: Any) -> Any:
        observed: ObservedRays = rest[2]
        ends = rest[1]
        opacity, normal, gradients = (part.contiguous() for part in (opacity, normal, gradients))
        block_sums = torch.empty(_EIKONAL_BLOCKS, dtype=torch.float64, device=opacity.device)
        LOSSES.launch("eikonal_sums", _EIKONAL_BLOCKS, ends, gradients, block_sums)
        terms, amounts = (opacity.new_empty(3) for _ in range(2))
        given = observed.after(opacity, normal)
        LOSSES.launch("ray_terms", 1, len(opacity), *given, ends, block_sums, terms, amounts)
        ctx.save_for_backward(opacity, normal, gradients, ends, amounts)
        ctx.observed = observed
        ctx.set_materialize_grads(False)
        return terms[0], terms[1], terms[2]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        opacity, normal, gradients, ends, amounts = ctx.saved_tensors
        observed: ObservedRays = ctx.observed
        by_opacity, by_normal = (torch.empty_like(part) for part in (opacity, normal))
        by_observed = torch.empty_like(normal) if ctx.needs_input_grad[3] else None
        given = (*observed.after(opacity, normal), amounts, *upstream[:2])
        blocks = -(-len(opacity) // _THREADS)
        by_gradients = None if upstream[2] is None else torch.empty_like(gradients)
        room = 0 if by_gradients is None else len(gradients)
        along = (blocks, ends, room, gradients, upstream[2], by_gradients)
        outputs = (by_opacity, by_normal, by_observed)
        LOSSES.launch("ray_terms_backward", blocks + -(-room // _THREADS), len(opacity), *given, *outputs, *along)
        return by_opacity, by_normal, by_gradients, by_observed, None, None
