"""Blending of packed samples along rays, whatever number of samples each ray has."""

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
    """What rays see.

    Attributes:
        weights: of each sample: its alpha times the transmittance in front of it.
        opacity: of each ray, 1 - the transmittance behind its last sample; the sum of its weights, never above 1.
        depth: sum of weight times distance: the distance (not the depth along an axis) times the opacity. 0 for a ray
            without samples.
        values: what was handed in, summed with the weights; in the same order.
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
    """Blend samples front to back: w_i = alpha_i prod_{j<i} (1 - alpha_j) (Max 1995; NeuS).

    Single precision on the CPU runs in a native kernel, which multiplies ray by ray in double; all else in plain torch,
    where products are sums of logarithms in double precision, one running sum for all rays. The gradient is that of the
    product itself, for alpha = 1 too (where that of the logarithm is infinite). Not twice differentiable.

    Args:
        alpha: opacity of each sample, in [0, 1].
        ray_index: the ray of each sample; sorted, and front to back within a ray.
        n_rays: number of rays; those without samples see nothing.
        distances: of the samples' middles along their rays.
        values: further quantities to blend: gradients of the field for normals, not normalised.

    Raises:
        ValueError: samples are not sorted by ray, name a ray that is not there, or have an alpha outside [0, 1].
    """
    if _takes(alpha, ray_index, distances, *values):
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
    """Blend in plain torch, on any device and in any precision: what the native kernel is tested against.

    Arguments and errors as of `composite`.
    """
    _check(alpha, ray_index, n_rays)
    weights, clear = cast("tuple[Tensor, Tensor]", _Blend.apply(alpha, ray_index, n_rays))
    return Composited(
        weights=weights,
        opacity=1 - clear,
        depth=_gathered(weights * distances, ray_index, n_rays),
        values=tuple(_gathered(weights[:, None] * value, ray_index, n_rays) for value in values),
    )


@torch.no_grad()
def transmittance(
    alpha: Float[Tensor, " samples"], ray_index: Int64[Tensor, " samples"], n_rays: int
) -> Float[Tensor, " samples"]:
    """Share of light that reaches each sample, without gradient: to leave out samples that nobody sees.

    Raises:
        ValueError: as `composite`.
    """
    if _takes(alpha, ray_index):
        return native_transmittance(alpha, ray_index, n_rays)
    _check(alpha, ray_index, n_rays)
    return _sums(alpha, ray_index, n_rays).reaching().to(alpha.dtype)


def _takes(alpha: Tensor, ray_index: Tensor, *values: Tensor) -> bool:
    """Whether the native kernel does; what does not fit together fails in torch."""
    return indices_fit(len(alpha), ray_index) and fits_native(alpha, *values)


def _check(alpha: Tensor, ray_index: Tensor, n_rays: int) -> None:
    """One read of the device for all three."""
    faults = torch.stack(
        [
            (ray_index[1:] < ray_index[:-1]).any(),
            ((ray_index < 0) | (ray_index >= n_rays)).any(),
            ((alpha < 0) | (alpha > 1)).any(),  # NaN passes: it shows in the loss, which is refused
        ]
    ).tolist()
    raise_faults(sum(int(fault) << place for place, fault in enumerate(faults)), n_rays, alpha)


def _gathered(values: Tensor, ray_index: Tensor, n_rays: int) -> Tensor:
    return values.new_zeros(n_rays, *values.shape[1:]).index_add(0, ray_index, values)


class _Sums(NamedTuple):
    """Running sums over all samples, each with a leading 0, so that row i is what lies before sample i.

    Samples with alpha = 1 (solid) are counted instead of added: their logarithm is infinite.
    """

    logs: Float64[Tensor, " samples_and_one"]
    solid: Int64[Tensor, " samples_and_one"]
    bounds: Int64[Tensor, " rays_and_one"]
    ray_index: Int64[Tensor, " samples"]

    def reaching(self) -> Float64[Tensor, " samples"]:
        """Transmittance in front of each sample."""
        first = self.bounds[self.ray_index]
        return self._between(first, slice(0, -1), 0)

    def behind(self) -> Float64[Tensor, " rays"]:
        """Transmittance behind the last sample of each ray."""
        return self._between(self.bounds[:-1], self.bounds[1:], 0)

    def _between(self, since: Tensor, until: Tensor | slice, hidden: int) -> Float64[Tensor, " places"]:
        """Product over samples from `since` to before `until`, if exactly `hidden` of them are solid; else 0."""
        # Logarithms of solid samples are left out of the sums, so their number decides instead.
        unobstructed = self.solid[until] - self.solid[since] == hidden
        return torch.where(unobstructed, self.logs[until] - self.logs[since], -torch.inf).exp()


def _sums(alpha: Tensor, ray_index: Int64[Tensor, " samples"], n_rays: int) -> _Sums:
    solid = alpha == 1
    # Double precision: differences of running sums over millions of samples lose digits.
    logs = torch.log1p(-torch.where(solid, 0, alpha.double()))
    rays = torch.arange(n_rays + 1, device=ray_index.device)
    bounds = torch.searchsorted(ray_index.contiguous(), rays)
    return _Sums(_running(logs), _running(solid.long()), bounds, ray_index)


def _running(terms: Tensor) -> Tensor:
    return torch.cat([terms.new_zeros(1), terms.cumsum(0)])


class _Blend(torch.autograd.Function):
    """Weights of samples and transmittance behind each ray."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, ray_index: Tensor, n_rays: int) -> tuple[Tensor, Tensor]:
        sums = _sums(alpha, ray_index, n_rays)
        ctx.save_for_backward(alpha, ray_index)
        ctx.n_rays = n_rays
        return (sums.reaching() * alpha).to(alpha.dtype), sums.behind().to(alpha.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        """With R_i the gradient by what lies behind sample i: dL/dalpha_i = T_i (dL/dw_i - R_i)."""
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
        # One host read; the general case has no solid sample and skips the second pass.
        if bool(solid.any()):
            behind = torch.where(solid, reaching * _behind_solid(gain * alpha, end, solid, sums)[ray_index], behind)
        return (gain * reaching - behind).to(alpha.dtype), None, None


def _behind_solid(
    gain: Float64[Tensor, " samples"], end: Float64[Tensor, " rays"], solid: Bool[Tensor, " samples"], sums: _Sums
) -> Float64[Tensor, " rays"]:
    """R of the first solid sample of each ray: what would be seen if it were not there, up to the next solid one."""
    rows = torch.arange(len(solid), device=solid.device)
    rays = len(sums.bounds) - 1
    last = torch.full((rays,), len(solid), device=solid.device)
    first = last.scatter_reduce(0, sums.ray_index[solid], rows[solid], "amin")
    first = torch.minimum(first, sums.bounds[1:])
    visible = torch.zeros_like(end).index_add(
        0, sums.ray_index, gain * _restarted(sums, first[sums.ray_index], rows, sums.bounds[sums.ray_index])
    )
    return visible + end * _restarted(sums, first, sums.bounds[1:], sums.bounds[:-1])


def _restarted(sums: _Sums, since: Tensor, until: Tensor, start: Tensor) -> Float64[Tensor, " places"]:
    """Transmittance from the solid sample `since` on to `until`, without that sample; 0 in front of it."""
    past_one = sums.solid[until] - sums.solid[start] == 1
    return torch.where(past_one, sums.logs[until] - sums.logs[since], -torch.inf).exp()
