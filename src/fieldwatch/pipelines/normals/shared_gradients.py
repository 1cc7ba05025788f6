"""The gradients of a step whose rays are divided among ranks: together those of one process."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import Parts, Step, Terms
from fieldwatch.pipelines.normals.batches import RayBatch, patches_of_graphs
from fieldwatch.pipelines.normals.exchange import Exchange
from fieldwatch.pipelines.normals.gradients import Gradients
from fieldwatch.pipelines.normals.objective import MeanTerms, depth_error, ray_amounts, ray_terms
from fieldwatch.pipelines.normals.rendering import Distances, Rendered, render
from fieldwatch.pipelines.normals.shared_rays import SharedRays
from fieldwatch.run import Ranks

AT_A_TIME = 2
"""Numbers of each ray that ranks tell each other at a time: opacity and distance."""
ASIDE = 16
"""Numbers, at most, that are told of the terms and of what is recorded."""
DEPTHS = ("depth", "point_cloud", "surface")
"""Terms with one scale for all rays of a view: what all ranks saw of it has to be known."""


class SharedGradients:
    """Looks along this rank's rays of every graph of a step, and goes backward from what all ranks saw.

    A term is a mean over rays, samples or places of its graph, and how many count is known once they are rendered. So
    ranks sum these numbers between forward and backward, and each weighs its own means by its share: the mean of what
    ranks have, as `Step.update` forms it, is then the mean over the graph. The depth term is none, its scale being that
    of a view: opacities and distances of all rays are told to all ranks, each computes the whole term, and its gradient
    goes to the own rays only.

    Args:
        whole: what is trained, and on what.
        ranks: who shares the rays.
    """

    def __init__(self, whole: Gradients, ranks: Ranks) -> None:
        config, device = whole.config, whole.scene.device
        patches = patches_of_graphs(config.rays, len(whole.scene.train), config.rendering.patch, config.rays.rays)
        self._whole, self._world = whole, ranks.world
        self._exchange = Exchange(ranks, AT_A_TIME * max(patches) * config.rendering.patch**2 + ASIDE, device)

    def of(self, step: Step, batches: Sequence[RayBatch], parts: Parts) -> MeanTerms:
        """Make the own share of the gradients of a step, as `Gradients.of`; return the means of its terms."""
        own, mean = self._whole, MeanTerms(len(batches))
        own.learning.zero_grad()
        own.instruments.begin()
        with self._exchange:
            for batch in batches:
                for some in batch.split(parts.count):
                    self._add(step, some, mean, share=len(some) / len(batch), most=own.budget.most_of(parts.count))
        return mean

    def _add(self, step: Step, some: RayBatch, mean: MeanTerms, *, share: float, most: int) -> None:
        """Go backward through one graph; it is let go of at the end."""
        own, options = self._whole, self._whole.config.rendering
        weights, march = own.scene.plan.weights(step.index), own.scene.plan.march_step(step.index)
        shared = SharedRays(some, own.source, self._exchange, in_patches=options.gradient_method == "dfd")
        with step.span("render"):
            rendered = render(own.model, shared.own, march, options, shared, most)
        with step.span("loss"):
            terms = self._terms(weights, shared, rendered)
        with step.span("backward"):
            mean.backward(terms, share)

    def _terms(self, weights: Mapping[str, float], shared: SharedRays, rendered: Rendered) -> Terms:
        """The terms of the own rays, so that their mean over the ranks, and that of their gradients, is the term."""
        own, options, poses = self._whole, self._whole.config.terms, self._whole.model.poses()
        seen, everything, terms = shared.own.first(rendered.kept), shared.whole.first(shared.kept), Terms()
        wide = Distances(opacity=rendered.opacity[:0], distance=rendered.distance[:0])
        if weights.keys() & set(DEPTHS):
            columns = shared.placed(torch.stack([rendered.opacity, rendered.distance], 1))
            wide = Distances(opacity=columns[:, 0], distance=columns[:, 1])
        if "depth" in weights:
            error = depth_error(everything, wide, options)
            terms |= Terms(depth=(weights["depth"], error.detach() + self._world * (error - error.detach())))
        others = {name: weight for name, weight in weights.items() if name != "depth"}
        amounts = ray_amounts(others, seen, rendered, options)
        means = ray_terms(others, seen, rendered, poses, options)
        means |= own.view_terms.terms(
            weights, own.model, seen, rendered, everything=(everything, wide), amounts=amounts
        )
        shares = self._shares(shared, seen, rendered, [amounts[name] for name in means])
        return terms | Terms(
            **{
                name: (weight, value * part)
                for (name, (weight, value)), part in zip(means.items(), shares, strict=True)
            }
        )

    def _shares(
        self, shared: SharedRays, seen: RayBatch, rendered: Rendered, amounts: Sequence[Tensor | int]
    ) -> Float[Tensor, " terms"]:
        """What this rank's means count, times the number of ranks; and what is recorded of the graph is taken in."""
        mask = seen.mask
        if self._whole.config.rendering.gradient_method == "dfd":
            mask = mask.view(-1, seen.patch**2).any(1)
        aimed = int(mask.sum())
        counts = [len(rendered.samples), rendered.filled, round(rendered.starved * aimed), aimed]
        device = rendered.opacity.device
        numbers = [torch.as_tensor(number, dtype=torch.float64, device=device) for number in (*counts, *amounts)]
        own = torch.stack(numbers)
        sums = self._exchange.sum(own)
        samples, filled, lost, aimed = map(int, sums[: len(counts)].tolist())
        everything = shared.whole.first(shared.kept)
        self._whole.instruments.take(everything, samples=samples, filled=filled, starved=lost / max(aimed, 1))
        of_all = sums[len(counts) :]
        return (self._world * own[len(counts) :] / torch.where(of_all > 0, of_all, 1)).to(rendered.opacity.dtype)
