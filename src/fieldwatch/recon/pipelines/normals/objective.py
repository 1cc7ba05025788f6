"""Loss terms of rendered rays (PMNI; NeuS; SuperNormal); `algorithm.py` combines them into the objective."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch import Terms
from fieldwatch.recon.data import NormalSet
from fieldwatch.recon.losses import depth_scale_error, difference_cost, mask_error, normal_error
from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import TermOptions
from fieldwatch.recon.pipelines.normals.rendering import RenderedDistances, RenderedRays

_CLEAR = 1e-5
"""Distance of opacities from 0 and 1 in the losses of views, as in the mask term."""
ROBUST_FROM = 0.5
"""Difference of unit normals, 29 degrees, from which the robust cost grows linearly, at least.

At 0.1, short trainings of exact 8-bit maps have a Chamfer distance that is larger by a sixth: the initial surface is an
outlier."""
ROBUST_DEVIATIONS = 2.5
"""The same in standard deviations of the noise about an axis."""
NOISY = 1.5
"""Noise in degrees about each axis from which the cost of differences of normals is robust."""
LEAST_OPACITY = 0.05
"""Opacity below which a ray has no meaningful direction yet; the mask term has to raise it first."""


def staged_terms(weights: Mapping[str, float], **values: Callable[[], Float[Tensor, ""]]) -> Terms:
    """Return the terms that have a weight in the current stage; the others are not computed.

    Args:
        weights: weights of the active terms, by name.
        **values: functions that compute the terms, by name.
    """
    return Terms(**{name: (weights[name], value()) for name, value in values.items() if name in weights})


def normal_term(
    batch: RayBatch, rendered: RenderedRays, poses: Float[Tensor, "views 4 4"], options: TermOptions
) -> Float[Tensor, ""]:
    """Return the difference between rendered and observed normals, rotated into the scene's frame.

    Args:
        batch: the rendered rays.
        rendered: their rendering results.
        poses: ``world_from_camera`` of all training views; receives gradients.
        options: how the term is computed.
    """
    normals, observed, counted = _compared(batch, rendered, poses, options)
    norm, scale = norm_of(options)
    return normal_error(normals, observed, counted, norm=norm, scale=scale)


def norm_of(options: TermOptions) -> tuple[Literal["l1", "l2", "robust"], float]:
    """Return the kind and the scale of the normal term; "auto" that `terms_for` did not resolve squares."""
    norm = "l2" if options.normal_norm == "auto" else options.normal_norm
    return norm, ROBUST_FROM if options.robust_from is None else options.robust_from


def terms_for(options: TermOptions, maps: NormalSet) -> TermOptions:
    """Return options whose "auto" is resolved for the maps: robust for 8 bits or noise, with a scale from the noise."""
    noise = maps.noise or 0.0
    coarse = any(view.bits == 8 for view in maps.views)
    norm = options.normal_norm
    if norm == "auto":
        norm = "robust" if coarse or noise >= NOISY else "l2"
    scale = options.robust_from
    if norm == "robust" and scale is None:
        # Differences of pure noise have a length of 1.3 deviations in the mean.
        scale = max(ROBUST_FROM, ROBUST_DEVIATIONS * math.radians(noise))
    return replace(options, normal_norm=norm, robust_from=scale)


def _compared(
    batch: RayBatch, rendered: RenderedRays, poses: Float[Tensor, "views 4 4"], options: TermOptions
) -> tuple[Float[Tensor, "rays 3"], Float[Tensor, "rays 3"], Bool[Tensor, " rays"]]:
    """Return rendered and observed normals in the scene's frame, and which rays are compared."""
    observed = torch.einsum("nij,nj->ni", poses.index_select(0, batch.view)[:, :3, :3], batch.normals)
    normals = rendered.normal
    # PMNI's blended sum, compared directly, would also drive opacities to 1, but only in the mask (decision 0021).
    if options.rendered_normals == "direction":
        normals = normals / rendered.opacity.clamp_min(LEAST_OPACITY)[:, None]
    return normals, observed, _with_direction(batch.known, rendered, options)


@torch.no_grad()
def view_losses(  # noqa: PLR0913  the inputs of both terms, and the number of views
    weights: Mapping[str, float],
    batch: RayBatch,
    rendered: RenderedRays,
    *,
    poses: Float[Tensor, "views 4 4"],
    options: TermOptions,
    views: int,
) -> Float[Tensor, " batch_views"]:
    """Return the mean loss of each view of a batch by its normals and its mask; no value is read from the device.

    Args:
        weights: weights of the active terms, by name; of these, ``normal`` and ``mask`` are used.
        batch: the rendered rays, all rays of a view in a row.
        rendered: their rendering results.
        poses: ``world_from_camera`` of all training views.
        options: how the terms are computed.
        views: number of views; those whose rays were all dropped have loss NaN.
    """
    slot = torch.arange(len(batch), device=batch.view.device) // batch.rays_per_view
    zeros = rendered.opacity.new_zeros(views)

    def means(values: Float[Tensor, " rays"], counted: Float[Tensor, " rays"]) -> Float[Tensor, " batch_views"]:
        return zeros.index_add(0, slot, values * counted) / zeros.index_add(0, slot, counted).clamp_min(1e-6)

    losses = torch.where(zeros.index_add(0, slot, torch.ones_like(rendered.opacity)) > 0, 0.0, torch.nan)
    if "normal" in weights:
        normals, observed, counted = _compared(batch, rendered, poses, options)
        difference = (normals - observed).detach()
        errors = difference_cost(difference, *norm_of(options))
        losses = losses + weights["normal"] * means(errors, counted.to(errors))
    if "mask" in weights:
        opacity = rendered.opacity.detach().clamp(_CLEAR, 1 - _CLEAR)
        entropy = -torch.where(batch.mask, opacity, 1 - opacity).log()
        counts = batch.weights if options.balanced else torch.ones_like(opacity)
        losses = losses + weights["mask"] * means(entropy, counts)
    return losses


def mask_term(batch: RayBatch, rendered: RenderedRays, options: TermOptions) -> Float[Tensor, ""]:
    """Return the cross-entropy between opacity and silhouette; if balanced, a mean over the whole image."""
    return mask_error(rendered.opacity, batch.mask, batch.weights if options.balanced else None)


def ray_amounts(
    names: Collection[str], batch: RayBatch, rendered: RenderedRays, options: TermOptions
) -> dict[str, Tensor | int]:
    """Return the weight of each term's value in a mean with other rays: the amount it is a mean over.

    Args:
        names: names of the terms; "depth" has no such weight, because all rays of a view share its scale.
        batch: the rendered rays.
        rendered: their rendering results.
        options: how the terms are computed.
    """
    amounts: dict[str, Tensor | int] = {}
    if "normal" in names:
        amounts["normal"] = _with_direction(batch.known, rendered, options).sum()
    if "mask" in names:
        amounts["mask"] = batch.weights.sum() if options.balanced else len(batch)
    if "eikonal" in names:
        amounts["eikonal"] = len(rendered.gradients)
    return amounts


def _with_direction(
    which: Bool[Tensor, " rays"], rendered: RenderedRays | RenderedDistances, options: TermOptions
) -> Bool[Tensor, " rays"]:
    """Return which of the rays have a meaningful direction."""
    # PMNI's blended form includes rays of any opacity.
    return which & (rendered.opacity > LEAST_OPACITY) if options.rendered_normals == "direction" else which


def depth_term(batch: RayBatch, rendered: RenderedRays | RenderedDistances, options: TermOptions) -> Float[Tensor, ""]:
    """Return the difference from the integrated depth after fitting one scale per view, averaged over the views.

    Args:
        batch: all rays of each view that counts.
        rendered: their rendering results.
        options: how the term is computed.
    """
    distance = rendered.distance
    counted = _with_direction(batch.mask & (batch.distance > 0), rendered, options)
    if options.rendered_normals == "direction":
        # Mean distance instead of the sum of weights times distances.
        distance = distance / rendered.opacity.clamp_min(LEAST_OPACITY)
    # One scale per view, because each view's depth was integrated separately.
    rays_of_views = [batch.view == view for view in batch.views.tolist()]
    return torch.stack(
        [depth_scale_error(batch.distance, distance, counted & rays_of_view) for rays_of_view in rays_of_views]
    ).mean()
