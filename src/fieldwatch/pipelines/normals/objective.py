"""What the field and the poses are trained towards, term by term (PMNI; NeuS; SuperNormal)."""

from collections.abc import Collection, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch import Terms
from fieldwatch.losses import depth_scale_error, eikonal_error, mask_error, normal_error
from fieldwatch.pipelines.normals.batches import RayBatch
from fieldwatch.pipelines.normals.config import TermOptions
from fieldwatch.pipelines.normals.rendering import Distances, Rendered

SEEN = 0.05
"""Opacity below which a ray has no direction of its own yet: the mask term has to raise it first."""


def ray_terms(
    weights: Mapping[str, float],
    batch: RayBatch,
    rendered: Rendered,
    poses: Float[Tensor, "views 4 4"],
    options: TermOptions,
) -> Terms:
    """Return the terms that rays give; those without a weight are not computed.

    Args:
        weights: of the terms that count.
        batch: the rays, as many as were rendered.
        rendered: what they saw.
        poses: `world_from_camera` of all views that the batch's numbers mean.
        options: how the terms are formed.
    """
    terms = Terms()
    if "normal" in weights:
        terms |= Terms(normal=(weights["normal"], _normal(batch, rendered, poses, options)))
    if "depth" in weights:
        terms |= Terms(depth=(weights["depth"], depth_error(batch, rendered, options)))
    if "mask" in weights:
        balance = batch.weights if options.balanced else None
        terms |= Terms(mask=(weights["mask"], mask_error(rendered.opacity, batch.mask, balance)))
    if "eikonal" in weights:
        terms |= Terms(eikonal=(weights["eikonal"], eikonal_error(rendered.gradients)))
    return terms


def ray_amounts(
    names: Collection[str], batch: RayBatch, rendered: Rendered, options: TermOptions
) -> dict[str, Tensor | int]:
    """Return how much each of these terms is a mean over: its weight in a mean with the terms of other rays.

    Args:
        names: of the terms; "depth" has no such number, its scale being one for all rays of a view.
        batch: as for `ray_terms`.
        rendered: likewise.
        options: likewise.
    """
    amounts: dict[str, Tensor | int] = {}
    if "normal" in names:
        amounts["normal"] = _counted(batch.known, rendered, options).sum()
    if "mask" in names:
        amounts["mask"] = batch.weights.sum() if options.balanced else len(batch)
    if "eikonal" in names:
        amounts["eikonal"] = len(rendered.gradients)
    return amounts


def _counted(
    which: Bool[Tensor, " rays"], rendered: Rendered | Distances, options: TermOptions
) -> Bool[Tensor, " rays"]:
    """Of some rays those that have a direction of their own."""
    return which & (rendered.opacity > SEEN) if options.rendered_normals == "direction" else which


def _normal(
    batch: RayBatch, rendered: Rendered, poses: Float[Tensor, "views 4 4"], options: TermOptions
) -> Float[Tensor, ""]:
    observed = torch.einsum("nij,nj->ni", poses.index_select(0, batch.view)[:, :3, :3], batch.normals)
    shown, counted = rendered.normal, _counted(batch.known, rendered, options)
    if options.rendered_normals == "direction":
        shown = shown / rendered.opacity.clamp_min(SEEN)[:, None]
    return normal_error(shown, observed, counted, norm=options.normal_norm)


def depth_error(batch: RayBatch, rendered: Rendered | Distances, options: TermOptions) -> Float[Tensor, ""]:
    """Return the difference to the integrated depth, as a mean over views: the scale is one for each.

    Args:
        batch: all rays of their views that count.
        rendered: what they saw.
        options: how the term is formed.
    """
    shown, counted = rendered.distance, _counted(batch.mask & (batch.distance > 0), rendered, options)
    if options.rendered_normals == "direction":
        shown = shown / rendered.opacity.clamp_min(SEEN)
    own = [batch.view == view for view in batch.views.tolist()]
    return torch.stack([depth_scale_error(batch.distance, shown, counted & one) for one in own]).mean()


class MeanTerms:
    """Sums the terms of a step's graphs, so that the step is recorded as one: their mean over the graphs.

    Args:
        graphs: of the step.
    """

    def __init__(self, graphs: int) -> None:
        self._graphs = graphs
        self._sums: dict[str, tuple[float | Tensor, Tensor]] = {}

    def backward(self, terms: Terms, share: float = 1.0) -> None:
        """Go backward through one graph, with its share of the step, and let go of it.

        Args:
            terms: of the graph.
            share: of the graph, where it is a part of one of the step's: its share of the rays.
        """
        graphs = self._graphs / share
        (terms.total / graphs).backward()
        for name, (weight, value) in terms.items():
            before = self._sums[name][1] if name in self._sums else 0.0
            self._sums[name] = (weight, before + value.detach() / graphs)

    def terms(self) -> Terms:
        """Return the mean of all terms, without a graph."""
        return Terms(**self._sums)
