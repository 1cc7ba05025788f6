"""Alpha compositing of packed samples along rays."""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwatch.recon.render.sdf.compositing_native import (
    fits_native,
    indices_fit,
    native_composite,
    native_transmittance,
    raise_faults,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Composited:
    """Blended samples.

    Attributes:
        weights: weight of each sample, its alpha times the transmittance in front of it.
        opacity: opacity of each ray, 1 - the transmittance behind its last sample. It is the sum of the weights and at
            most 1.
        depth: sum of weight times distance: the distance along the ray (not the z depth) times the opacity. 0 for a ray
            without samples.
        values: weighted sums of the given quantities, in the same order.
    """

    weights: Float[Tensor, " samples"]
    opacity: Float[Tensor, " rays"]
    depth: Float[Tensor, " rays"]
    values: tuple[Float[Tensor, "rays _"], ...]


def composite(
    alpha: Float[Tensor, " samples"],
    ray_index: Int64[Tensor, " samples"],
    n_rays: int,
    distances: Float[Tensor, " samples"],
    *values: Float[Tensor, "samples _"],
) -> Composited:
    """Blend samples from front to back: w_i = alpha_i prod_{j<i} (1 - alpha_j) (Max 1995; NeuS).

    Single precision on the CPU runs in a native kernel, which multiplies ray by ray in double precision. Everything
    else runs in plain torch, with products as sums of logarithms in double precision and one running sum over all rays.
    The gradient is that of the product itself, also for alpha = 1, where the gradient of the logarithm is infinite. Not
    twice differentiable.

    Args:
        alpha: opacity of each sample, in [0, 1].
        ray_index: ray of each sample; sorted, and front to back within a ray.
        n_rays: number of rays, including those without samples.
        distances: distance of each sample midpoint along its ray.
        values: further quantities to blend, such as unnormalized field gradients for normals.

    Raises:
        ValueError: the samples are not sorted by ray, name a missing ray, or have an alpha outside [0, 1].
    """
    if _fits_kernel(alpha, ray_index, distances, *values):
        outputs = native_composite(alpha, ray_index, n_rays, distances, values)
        return Composited(weights=outputs[0], opacity=outputs[1], depth=outputs[2], values=outputs[3:])
    return composite_reference(alpha, ray_index, n_rays, distances, *values)


def composite_reference(
    alpha: Float[Tensor, " samples"],
    ray_index: Int64[Tensor, " samples"],
    n_rays: int,
    distances: Float[Tensor, " samples"],
    *values: Float[Tensor, "samples _"],
) -> Composited:
    """Compute `composite` in plain torch, on any device and in any precision; the reference of the native kernel."""
    _check(alpha, ray_index, n_rays)
    # Opacity from the transmittance, not from the sum of weights, whose rounding could exceed 1.
    weights, clear = cast("tuple[Tensor, Tensor]", _Blend.apply(alpha, ray_index, n_rays))
    return Composited(
        weights=weights,
        opacity=1 - clear,
        depth=_ray_sums(weights * distances, ray_index, n_rays),
        values=tuple(_ray_sums(weights[:, None] * value, ray_index, n_rays) for value in values),
    )


@torch.no_grad()
def transmittance(
    alpha: Float[Tensor, " samples"], ray_index: Int64[Tensor, " samples"], n_rays: int
) -> Float[Tensor, " samples"]:
    """Return the transmittance in front of each sample without gradients, to skip invisible samples.

    Raises:
        ValueError: as for `composite`.
    """
    if _fits_kernel(alpha, ray_index):
        return native_transmittance(alpha, ray_index, n_rays)
    _check(alpha, ray_index, n_rays)
    return _sums(alpha, ray_index, n_rays).reaching().to(alpha.dtype)


def _fits_kernel(alpha: Tensor, ray_index: Tensor, *values: Tensor) -> bool:
    """Return whether the native kernel supports these inputs; plain torch reports mismatched shapes."""
    return indices_fit(len(alpha), ray_index) and fits_native(alpha, *values)


def _check(alpha: Tensor, ray_index: Tensor, n_rays: int) -> None:
    """Check the samples with a single host read."""
    faults = torch.stack(
        [
            (ray_index[1:] < ray_index[:-1]).any(),
            ((ray_index < 0) | (ray_index >= n_rays)).any(),
            ((alpha < 0) | (alpha > 1)).any(),  # NaN passes: it appears in the loss, where the guard refuses the step
        ]
    ).tolist()
    raise_faults(sum(int(fault) << place for place, fault in enumerate(faults)), n_rays, alpha)


def _ray_sums(values: Tensor, ray_index: Tensor, n_rays: int) -> Tensor:
    return values.new_zeros(n_rays, *values.shape[1:]).index_add(0, ray_index, values)


class _Sums(NamedTuple):
    """Exclusive running sums over all samples: row i is the sum before sample i.

    Solid samples (alpha = 1) are counted instead of added, because their logarithm is infinite.
    """

    logs: Float64[Tensor, " samples_and_one"]
    solid: Int64[Tensor, " samples_and_one"]
    bounds: Int64[Tensor, " rays_and_one"]
    ray_index: Int64[Tensor, " samples"]

    def reaching(self) -> Float64[Tensor, " samples"]:
        """Return the transmittance in front of each sample."""
        first = self.bounds[self.ray_index]
        return self._between(first, slice(0, -1), 0)

    def behind(self) -> Float64[Tensor, " rays"]:
        """Return the transmittance behind the last sample of each ray."""
        return self._between(self.bounds[:-1], self.bounds[1:], 0)

    def _between(self, since: Tensor, until: Tensor | slice, hidden: int) -> Float64[Tensor, " places"]:
        """Return the product over the samples [since, until) if exactly `hidden` of them are solid, else 0."""
        # The sums leave out the logarithms of solid samples, so their number decides instead.
        unobstructed = self.solid[until] - self.solid[since] == hidden
        return torch.where(unobstructed, self.logs[until] - self.logs[since], -torch.inf).exp()


def _sums(alpha: Tensor, ray_index: Int64[Tensor, " samples"], n_rays: int) -> _Sums:
    solid = alpha == 1
    # Double precision, because differences of running sums over millions of samples lose digits.
    logs = torch.log1p(-torch.where(solid, 0, alpha.double()))
    # One more than the rays, so that row r + 1 is the end of ray r.
    rays = torch.arange(n_rays + 1, device=ray_index.device)
    bounds = torch.searchsorted(ray_index.contiguous(), rays)
    return _Sums(_running(logs), _running(solid.long()), bounds, ray_index)


def _running(terms: Tensor) -> Tensor:
    """Return the sums of the first 0, 1, 2, ... terms."""
    if terms.is_cuda and terms.is_floating_point() and torch.are_deterministic_algorithms_enabled():
        # torch's `cumsum` of floating-point numbers need not repeat to the bit on a GPU: add in steps of 1, 2, 4, ...
        # (Hillis and Steele 1986).
        sums = terms
        reach = 1
        while reach < len(terms):
            sums = torch.cat([sums[:reach], sums[reach:] + sums[:-reach]])
            reach *= 2
    else:
        sums = terms.cumsum(0)
    return torch.cat([terms.new_zeros(1), sums])


class _Blend(torch.autograd.Function):
    """Weights of the samples and transmittance behind each ray."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, ray_index: Tensor, n_rays: int) -> tuple[Tensor, Tensor]:
        sums = _sums(alpha, ray_index, n_rays)
        ctx.save_for_backward(alpha, ray_index)
        ctx.n_rays = n_rays
        return (sums.reaching() * alpha).to(alpha.dtype), sums.behind().to(alpha.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        """Compute dL/dalpha_i = T_i (dL/dw_i - R_i), with R_i the weighted gradient of everything behind sample i."""
        alpha, ray_index = ctx.saved_tensors
        sums = _sums(alpha, ray_index, ctx.n_rays)
        reaching = sums.reaching()
        through = sums.behind()
        gain, end = (gradient.double() for gradient in gradients)
        # Suffix sums per ray as differences of one prefix sum over all samples.
        carried = _running(gain * alpha * reaching)
        after = carried[sums.bounds[1:]][ray_index] - carried[1:] + (end * through)[ray_index]
        solid = alpha == 1
        behind = after / torch.where(solid, 1, 1 - alpha.double())
        # One host read: usually no sample is solid, which saves the second pass.
        if bool(solid.any()):
            behind = torch.where(solid, reaching * _behind_solid(gain * alpha, end, solid, sums)[ray_index], behind)
        return (gain * reaching - behind).to(alpha.dtype), None, None


def _behind_solid(
    gain: Float64[Tensor, " samples"], end: Float64[Tensor, " rays"], solid: Bool[Tensor, " samples"], sums: _Sums
) -> Float64[Tensor, " rays"]:
    """Return R of the first solid sample of each ray: what would be visible without it, up to the next solid one."""
    rows = torch.arange(len(solid), device=solid.device)
    rays = len(sums.bounds) - 1
    last = torch.full((rays,), len(solid), device=solid.device)
    first = last.scatter_reduce(0, sums.ray_index[solid], rows[solid], "amin")
    # A ray without a solid sample gets its end as a valid index; its terms are zero.
    first = torch.minimum(first, sums.bounds[1:])
    visible = torch.zeros_like(end).index_add(
        0, sums.ray_index, gain * _restarted(sums, first[sums.ray_index], rows, sums.bounds[sums.ray_index])
    )
    return visible + end * _restarted(sums, first, sums.bounds[1:], sums.bounds[:-1])


def _restarted(sums: _Sums, since: Tensor, until: Tensor, start: Tensor) -> Float64[Tensor, " places"]:
    """Return the transmittance from the solid sample `since` to `until` without that sample; 0 in front of it."""
    past_one = sums.solid[until] - sums.solid[start] == 1
    return torch.where(past_one, sums.logs[until] - sums.logs[since], -torch.inf).exp()
