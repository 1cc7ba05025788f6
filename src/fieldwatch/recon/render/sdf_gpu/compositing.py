"""Opacities and blending of ray sections on a GPU, by kernels that repeat to the bit (`gpu/sdf_compositing.cu`)."""

from typing import Any, cast

import torch
from jaxtyping import Float, Float64, Int32
from torch import Tensor

from fieldwatch.recon.render.gpu import KernelFile
from fieldwatch.recon.render.sdf_gpu.samples import DeviceSamples

COMPOSITING = KernelFile("sdf_compositing.cu")
_THREADS = 128
_RAY_THREADS = 32


def opacities(
    values: Float[Tensor, " end_room"],
    first_end: Int32[Tensor, " section_room"],
    sections: Int32[Tensor, "1"],
    sharpness: Float[Tensor, ""],
) -> tuple[Float64[Tensor, " section_room"], Float64[Tensor, " section_room"]]:
    """Return the opacity of sections and what they let through, from the field at their ends; no gradients.

    Args:
        values: signed distances at the ends.
        first_end: end at which each section starts.
        sections: number of sections; those behind it are not written.
        sharpness: s, the inverse width of the surface.
    """
    room = len(first_end)
    alpha, clear = (torch.empty(room, dtype=torch.float64, device=values.device) for _ in range(2))
    given = (sections, room, values.contiguous(), first_end, sharpness)
    COMPOSITING.launch("section_opacities", -(-room // _THREADS), *given, alpha, clear)
    return alpha, clear


def blend_on_device(
    values: Float[Tensor, " end_room"],
    gradients: Float[Tensor, "end_room 3"],
    sharpness: Float[Tensor, ""],
    samples: DeviceSamples,
) -> tuple[Float[Tensor, " rays"], Float[Tensor, " rays"], Float[Tensor, "rays 3"]]:
    """Return opacity, sum of weight times distance and sum of weight times gradient of each ray.

    This is `composite_sections` for samples of a GPU. Gradients flow to the values, the gradients and the sharpness.
    """
    return cast("tuple[Tensor, Tensor, Tensor]", _Blend.apply(values, gradients, sharpness, samples))


class _Blend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, gradients: Tensor, sharpness: Tensor, samples: DeviceSamples) -> Any:
        values, gradients = (part.contiguous() for part in (values, gradients))
        rays = samples.ray_sums.shape[1]
        alpha, clear = opacities(values, samples.first_end, samples.sections, sharpness)
        light = values.new_empty(len(alpha))
        opacity, depth = (values.new_empty(rays) for _ in range(2))
        normal = values.new_empty(rays, 3)
        along = (samples.ray_sums, samples.first_end, samples.distance, gradients, alpha, clear, light)
        COMPOSITING.launch("blend_sections", -(-rays // _RAY_THREADS), rays, *along, opacity, depth, normal)
        lists = (samples.ray_sums, samples.first_end, samples.end_ray, samples.end_section, samples.distance)
        ctx.save_for_backward(values, gradients, sharpness, alpha, clear, light, *lists)
        ctx.set_materialize_grads(False)
        return opacity, depth, normal

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "sections blended by GPU kernels cannot be differentiated twice, as create_graph=True requires"
            )
        values, gradients, sharpness, alpha, clear, light, *lists = ctx.saved_tensors
        ray_sums, first_end, end_ray, end_section, distance = lists
        by_opacity, by_depth, by_normal = (None if part is None else part.contiguous() for part in upstream)
        rays = ray_sums.shape[1]
        room = len(values)
        by_alpha = torch.empty_like(alpha)
        along = (ray_sums, first_end, distance, gradients, alpha, clear, light)
        given = (by_opacity, by_depth, by_normal)
        COMPOSITING.launch("blend_backward", -(-rays // _RAY_THREADS), rays, *along, *given, by_alpha)
        by_values = torch.empty_like(values)
        by_gradients = torch.empty_like(gradients) if ctx.needs_input_grad[1] else None
        by_sharpness = torch.empty_like(values) if ctx.needs_input_grad[2] else None
        ends = (ray_sums[1, -1:], room, values, end_ray, end_section, sharpness, alpha, light, by_alpha, by_normal)
        outputs = (by_values, by_gradients, by_sharpness)
        COMPOSITING.launch("ends_backward", -(-room // _THREADS), *ends, *outputs)
        return by_values, by_gradients, None if by_sharpness is None else by_sharpness.sum(), None


def sharpness_on_device(stored: Float[Tensor, ""], low: float, high: float) -> Float[Tensor, ""]:
    """Return s = exp(10 v) of a stored v, see `Deviation`.

    Args:
        stored: v.
        low: smallest v.
        high: largest v.
    """
    return cast("Tensor", _Sharpness.apply(stored, low, high))


class _Sharpness(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stored: Tensor, low: float, high: float) -> Tensor:
        sharpness = torch.empty_like(stored)
        COMPOSITING.launch("sharpness_forward", 1, low, high, stored, sharpness)
        ctx.save_for_backward(stored, sharpness)
        ctx.bounds = (low, high)
        return sharpness

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        by_stored = torch.empty_like(gradients[0])
        COMPOSITING.launch("sharpness_backward", 1, *ctx.bounds, *ctx.saved_tensors, gradients[0], by_stored)
        return by_stored, None, None
