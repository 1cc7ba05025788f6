"""Loss terms of rendered rays (PMNI; NeuS; SuperNormal); `algorithm.py` combines them into the objective."""

from collections.abc import Callable, Collection, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch import Terms
from fieldwatch.recon.losses import depth_scale_error, mask_error, normal_error
from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import TermOptions
from fieldwatch.recon.pipelines.normals.rendering import RenderedDistances, RenderedRays

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
    observed = torch.einsum("nij,nj->ni", poses.index_select(0, batch.view)[:, :3, :3], batch.normals)
    normals = rendered.normal
    counted = _with_direction(batch.known, rendered, options)
    # PMNI's blended sum, compared directly, would also drive opacities to 1, but only in the mask (decision 0021).
    if options.rendered_normals == "direction":
        normals = normals / rendered.opacity.clamp_min(LEAST_OPACITY)[:, None]
    return normal_error(normals, observed, counted, norm=options.normal_norm)


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
