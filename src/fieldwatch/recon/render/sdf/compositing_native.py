"""Autograd functions of the native opacity and compositing kernels, and the checks of their inputs."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fieldwatch.recon.render.native import call, native_available, pointer
from fieldwatch.recon.render.sdf.samples import PackedSamples, Sections

_BLOCK = 64  # BLOCK in native/compositing.c
# Fault bits, as in native/compositing.c.
_UNSORTED = 1
_NO_SUCH_RAY = 2
_NO_OPACITY = 4


def fits_native(*tensors: Tensor) -> bool:
    """Return whether the kernels support these tensors: single precision, on the CPU, of equal length."""
    alike = all(
        part.dtype == torch.float32 and part.device.type == "cpu" and len(part) == len(tensors[0]) for part in tensors
    )
    # Checked last: the first call compiles the kernels.
    return alike and native_available()[0]


def indices_fit(count: int, *indices: Tensor) -> bool:
    """Return whether the kernels support these index tensors, with one entry per sample."""
    return all((part.dtype, part.device.type, part.shape) == (torch.int64, "cpu", (count,)) for part in indices)


def scalar_fits(number: Tensor | float) -> bool:
    """Return whether the kernels support this inverse deviation."""
    return not isinstance(number, Tensor) or (number.dtype, number.device.type) == (torch.float32, "cpu")


def raise_faults(faults: int, n_rays: int, alpha: Float[Tensor, " samples"] | None = None) -> None:
    """Raise an error for the fault bits of a kernel.

    Raises:
        ValueError: samples are not sorted or name missing rays, an alpha is no opacity, or the sections do not match.
    """
    if faults & _UNSORTED:
        raise ValueError("samples are not sorted by ray: sort them by ray_index before blending")
    if faults & _NO_SUCH_RAY:
        raise ValueError(f"samples name rays outside 0 to {n_rays - 1}: they belong to other rays, or n_rays is wrong")
    if faults & _NO_OPACITY and alpha is not None:
        raise ValueError(
            f"alpha must be in [0, 1], as from neus_alpha, got {float(alpha.min())} to {float(alpha.max())}"
        )
    if faults:
        raise ValueError("the sections belong to other samples: use samples.sections() of these samples")


def native_alpha(
    start: Float[Tensor, "*batch"], end: Float[Tensor, "*batch"], inverse_deviation: Float[Tensor, ""] | float
) -> Float[Tensor, "*batch"]:
    """Return the opacity of sections; see `section_alpha`."""
    return cast("Tensor", _SectionAlpha.apply(start, end, inverse_deviation))


def native_composite(
    alpha: Float[Tensor, " samples"],
    ray_index: Int64[Tensor, " samples"],
    n_rays: int,
    distances: Float[Tensor, " samples"],
    values: Sequence[Float[Tensor, "samples _"]],
) -> tuple[Tensor, ...]:
    """Blend samples with given opacities into weights, opacity, depth and sums; see `composite`."""
    return cast("tuple[Tensor, ...]", _Composite.apply(alpha, distances, ray_index, n_rays, *values))


def native_composite_sections(
    values: Float[Tensor, " ends"],
    inverse_deviation: Float[Tensor, ""] | float,
    samples: PackedSamples,
    sections: Sections,
    quantities: Sequence[Float[Tensor, "ends _"]],
) -> tuple[Tensor, ...]:
    """Blend sections into weights, opacity, depth and sums; see `composite_sections`."""
    outputs = _CompositeSections.apply(values, inverse_deviation, samples, sections, *quantities)
    return cast("tuple[Tensor, ...]", outputs)


def native_transmittance(
    alpha: Float[Tensor, " samples"], ray_index: Int64[Tensor, " samples"], n_rays: int
) -> Float[Tensor, " samples"]:
    """Return the transmittance in front of each sample."""
    alpha, transmittance = alpha.contiguous(), torch.empty_like(alpha)
    # Null pointers skip the outputs that are not needed.
    packed = (len(alpha), ray_index.contiguous(), n_rays, _bounds(n_rays), alpha, None, 0, None)
    raise_faults(call("fw_composite", *packed, torch.get_num_threads(), transmittance, None, None, None), n_rays, alpha)
    return transmittance


def native_section_opacities(
    values: Float[Tensor, " ends"], inverse_deviation: float, samples: PackedSamples, sections: Sections
) -> tuple[Float[Tensor, " samples"], Float[Tensor, " samples"]]:
    """Return the opacity of each section and the transmittance in front of it, from field values at section ends."""
    alpha = values.new_empty(len(samples))
    transmittance = values.new_empty(len(samples))
    ends = (len(values), sections.start.contiguous(), sections.end.contiguous(), values.contiguous())
    packed = (len(samples), samples.ray_index.contiguous(), samples.n_rays, _bounds(samples.n_rays), *ends)
    outputs = (torch.get_num_threads(), alpha, transmittance, None, None, None)
    raise_faults(call("fw_composite_sections", *packed, inverse_deviation, None, 0, None, *outputs), samples.n_rays)
    return alpha, transmittance


def _bounds(n_rays: int) -> Int64[Tensor, " rays_and_one"]:
    return torch.empty(n_rays + 1, dtype=torch.int64)


def _per_ray(like: Tensor, n_rays: int, values: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    sums = [like.new_empty(n_rays, part.shape[1]) for part in values]
    return like.new_empty(n_rays), like.new_empty(n_rays), sums


def _parts(
    values: Sequence[Tensor], sums: Sequence[Tensor | None], slopes: Sequence[Tensor | None] | None = None
) -> Int64[Tensor, "parts 4"]:
    """Lay out quantities as an array of `Part` of native/compositing.c: three pointers and a width each."""
    gradients = slopes or [None] * len(values)
    rows = [
        [0 if tensor is None else pointer(tensor) for tensor in part] + [part[0].shape[1]]
        for part in zip(values, sums, gradients, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.int64).view(-1, 4)


def _contiguous(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if part is None else part.contiguous() for part in gradients]


def _scalar(number: float, needed: bool) -> Float[Tensor, ""] | None:  # noqa: FBT001  one of autograd's flags
    return torch.tensor(number, dtype=torch.float32) if needed else None


def _once() -> None:
    # Not torch's once_differentiable: for a constant incoming gradient it detaches silently.
    if torch.is_grad_enabled():
        raise RuntimeError(
            "opacities and blended samples of the native kernels cannot be differentiated twice, as create_graph=True "
            "requires: blend in double precision, which runs in plain torch, or do not use create_graph"
        )


class _SectionAlpha(torch.autograd.Function):
    """Opacities of sections from the field values at their ends."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, end: Tensor, inverse_deviation: Tensor | float) -> Tensor:
        start = start.contiguous()
        end = end.contiguous()
        s = float(inverse_deviation)
        alpha = torch.empty_like(start)
        call("fw_section_alpha", start.numel(), start, end, s, torch.get_num_threads(), alpha)
        ctx.save_for_backward(start, end)
        ctx.s = s
        return alpha

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        _once()
        start, end = ctx.saved_tensors
        count = start.numel()
        shares = torch.empty(-(-start.numel() // _BLOCK), dtype=torch.float64)
        # The kernel overwrites all gradients.
        by_start = torch.empty_like(start)
        by_end = torch.empty_like(end)
        upstream = (gradients[0].contiguous(), torch.get_num_threads(), shares)
        # `shares` holds one partial sum per block, added in order: the result does not depend on the number of threads.
        by_s = call("fw_section_alpha_backward", count, start, end, ctx.s, *upstream, by_start, by_end)
        return by_start, by_end, _scalar(by_s, ctx.needs_input_grad[2])


class _Composite(torch.autograd.Function):
    """Weights, opacity, depth and sums of samples with given opacities."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, distances: Tensor, *rest: Any) -> Any:
        ray_index, n_rays = rest[:2]
        values = [part.contiguous() for part in rest[2:]]
        alpha = alpha.contiguous()
        distances = distances.contiguous()
        bounds = _bounds(n_rays)
        transmittance, weights = (torch.empty_like(alpha) for _ in range(2))
        opacity, depth, sums = _per_ray(alpha, n_rays, values)
        packed = (len(alpha), ray_index.contiguous(), n_rays, bounds, alpha, distances)
        threads = torch.get_num_threads()
        outputs = (transmittance, weights, opacity, depth)
        raise_faults(call("fw_composite", *packed, len(values), _parts(values, sums), threads, *outputs), n_rays, alpha)
        ctx.save_for_backward(bounds, alpha, transmittance, distances, *values)
        ctx.set_materialize_grads(False)
        return weights, opacity, depth, *sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        _once()
        bounds, alpha, transmittance, distances, *values = ctx.saved_tensors
        by_weights, by_opacity, by_depth, *by_sums = _contiguous(gradients)
        gradients_of_values = [
            torch.zeros_like(v) if n else None for v, n in zip(values, ctx.needs_input_grad[4:], strict=True)
        ]
        by_alpha = torch.empty_like(alpha)
        by_distances = torch.empty_like(distances) if ctx.needs_input_grad[1] else None
        packed = (len(alpha), len(bounds) - 1, bounds, alpha, transmittance, distances)
        parts = _parts(values, by_sums, gradients_of_values)
        threads = torch.get_num_threads()
        upstream = (by_weights, by_opacity, by_depth)
        call("fw_composite_backward", *packed, len(values), parts, threads, *upstream, by_alpha, by_distances)
        return by_alpha, by_distances, None, None, *gradients_of_values


class _CompositeSections(torch.autograd.Function):
    """Weights, opacity, depth and sums of sections, from the field and quantities at their ends."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, inverse_deviation: Tensor | float, *rest: Any) -> Any:
        samples, sections = rest[:2]
        quantities = [part.contiguous() for part in rest[2:]]
        values = values.contiguous()
        s = float(inverse_deviation)
        rays = samples.n_rays
        count = len(samples)
        distances = samples.midpoints
        start = sections.start.contiguous()
        end = sections.end.contiguous()
        bounds = _bounds(rays)
        transmittance, weights = (values.new_empty(count) for _ in range(2))
        opacity, depth, sums = _per_ray(values, rays, quantities)
        packed = (count, samples.ray_index.contiguous(), rays, bounds, len(values), start, end, values, s, distances)
        parts = _parts(quantities, sums)
        outputs = (None, transmittance, weights, opacity, depth)
        threads = torch.get_num_threads()
        raise_faults(call("fw_composite_sections", *packed, len(quantities), parts, threads, *outputs), rays)
        ctx.save_for_backward(bounds, start, values, transmittance, distances, *quantities)
        ctx.s = s
        ctx.set_materialize_grads(False)
        return weights, opacity, depth, *sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        _once()
        bounds, start, values, transmittance, distances, *quantities = ctx.saved_tensors
        by_weights, by_opacity, by_depth, *by_sums = _contiguous(gradients)
        needs_gradient = ctx.needs_input_grad[4:]
        gradients_of_quantities = [
            torch.zeros_like(q) if n else None for q, n in zip(quantities, needs_gradient, strict=True)
        ]
        # Neighboring sections share an end, so the kernel accumulates: start from zeros.
        by_values = torch.zeros_like(values)
        shares = torch.empty(len(bounds) - 1, dtype=torch.float64)
        packed = (len(start), len(bounds) - 1, bounds, start, values, ctx.s, transmittance, distances)
        parts = _parts(quantities, by_sums, gradients_of_quantities)
        threads = torch.get_num_threads()
        upstream = (by_weights, by_opacity, by_depth, shares, by_values)
        by_s = call("fw_composite_sections_backward", *packed, len(quantities), parts, threads, *upstream)
        return by_values, _scalar(by_s, ctx.needs_input_grad[1]), None, None, *gradients_of_quantities
