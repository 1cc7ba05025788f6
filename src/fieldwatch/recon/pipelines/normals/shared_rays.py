"""The rays of a micro-batch, divided among ranks: who renders which, and terms that together are those of one process.

A term is a mean over rays, samples or places of its micro-batch, and how many count is known once they are rendered. So
ranks sum these numbers between forward and backward, and each weighs its own means by its share: the mean of what
ranks have, as `Step.update` forms it, is then the mean over the micro-batch. The depth term has one scale per view:
opacities and distances of all rays are given to all ranks, each computes the whole term, and its gradient flows to its
own rays only.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import Ranks, Terms
from fieldwatch.recon.pipelines.normals.batches import RayBatch, RaySource, patches_of_graphs
from fieldwatch.recon.pipelines.normals.config import NormalsConfig, TermOptions
from fieldwatch.recon.pipelines.normals.objective import ray_amounts
from fieldwatch.recon.pipelines.normals.rank_exchange import RankExchange
from fieldwatch.recon.pipelines.normals.rays import Rays, RaySplit
from fieldwatch.recon.pipelines.normals.rendering import Distances, Rendered
from fieldwatch.recon.pipelines.normals.scene import Scene
from fieldwatch.recon.pipelines.normals.step_output import NormalsStepOutput
from fieldwatch.recon.render import PackedSamples

NUMBERS_PER_RAY = 2
"""Numbers of each ray that ranks exchange at a time: opacity and distance."""
OTHER_NUMBERS = 16
"""Numbers, at most, that they exchange about the terms and about what is recorded."""


class SharedRays(Rays):
    """One rank's part of the rays of a micro-batch: every ``world``-th patch, so that it has all views and regions.

    Random numbers are drawn for the rays of all ranks, on each rank, and cut. Every method that lets ranks meet has to
    be called by all of them, in the same order.

    Args:
        whole: the rays of all ranks, the same on each.
        source: draws the random numbers.
        exchange: sums over the ranks.
        in_patches: whether a patch is marched as one.

    Attributes:
        batch: the rays of this rank; none where there are fewer patches than ranks.
        whole: as above.
        kept: how many rays of all ranks, the first ones, are rendered.
    """

    def __init__(self, whole: RayBatch, source: RaySource, exchange: RankExchange, *, in_patches: bool) -> None:
        ranks = exchange.ranks
        area = whole.patch**2
        patches = torch.arange(len(whole) // area, device=whole.view.device)[ranks.rank :: ranks.world]
        self._exchange = exchange
        self._world = ranks.world
        self._rows = (patches[:, None] * area + torch.arange(area, device=whole.view.device)).view(-1)
        self._in_patches = in_patches
        self._marched = patches if in_patches else self._rows
        self._area = area if in_patches else 1
        self._rendered_by_all: tuple[RayBatch, Distances] | None = None
        self.whole = whole
        self.kept = len(whole)
        super().__init__(whole.at(self._rows), source)

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Return shifts of the samples of the first own rays, in steps."""
        return self._source.jitter(len(self.whole) // self._area)[self._marched[:rays]]

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Return places within parts of the first own rays."""
        return self._source.noise(self.kept // self._area, columns)[self._marched[:rays]]

    def bounded(self, samples: PackedSamples, most: int) -> PackedSamples:
        """Leave out the rays from the first on that would exceed a number of samples, counted over all ranks.

        Args:
            samples: of the first own rays: as many as do not exceed it by themselves.
            most: samples at most, of all ranks together.
        """
        counts = torch.full_like(self._marched, most + 1)
        counts[: samples.n_rays] = samples.counts
        of_all = counts.new_zeros(len(self.whole) // self._area, dtype=torch.float64)
        of_all[self._marched] = counts.to(of_all)
        kept = int((self._exchange.sum(of_all).cumsum(0) <= most).sum())
        self.kept = kept * self._area
        own = int((self._marched < kept).sum())
        last = int((samples.ray_index < own).sum())
        return PackedSamples(
            t_start=samples.t_start[:last], t_end=samples.t_end[:last], ray_index=samples.ray_index[:last], n_rays=own
        )

    def rendered_by_all(self, rendered: Rendered) -> tuple[RayBatch, Distances]:
        """Return the rays that all ranks rendered, and what they see; ranks meet at the first call."""
        if self._rendered_by_all is None:
            columns = self._placed(torch.stack([rendered.opacity, rendered.distance], 1))
            seen = Distances(opacity=columns[:, 0], distance=columns[:, 1])
            self._rendered_by_all = self.whole.first(self.kept), seen
        return self._rendered_by_all

    def depth_term(self, rendered: Rendered, options: TermOptions) -> Float[Tensor, ""]:
        """Return the depth term of all ranks' rays; the mean over ranks of its gradients is the gradient of one."""
        error = super().depth_term(rendered, options)
        return error.detach() + self._world * (error - error.detach())

    def output(self, terms: Terms, rendered: Rendered, options: TermOptions) -> NormalsStepOutput:
        """Return what the objective gives: terms whose mean over the ranks is the term of all rays; ranks meet.

        Args:
            terms: means over the own rays; "depth" as of `depth_term`.
            rendered: what the own rays see.
            options: how the terms were formed.
        """
        seen = self.batch.first(rendered.kept)
        names = [name for name in terms if name != "depth"]
        amounts = self.amounts | ray_amounts(names, seen, rendered, options)
        mask = seen.mask.view(-1, seen.patch**2).any(1) if self._in_patches else seen.mask
        aimed = int(mask.sum())
        counts = [len(rendered.samples), rendered.filled, round(rendered.starved * aimed), aimed]
        device = rendered.opacity.device
        numbers = [*counts, *(amounts[name] for name in names)]
        own = torch.stack([torch.as_tensor(number, dtype=torch.float64, device=device) for number in numbers])
        of_all = self._exchange.sum(own)
        samples, filled, starved, aimed_of_all = map(int, of_all[: len(counts)].tolist())
        own_amounts = own[len(counts) :]
        all_amounts = of_all[len(counts) :]
        # the ranks' values are averaged by `Step.update`: hence times the number of ranks
        shares = (self._world * own_amounts / torch.where(all_amounts > 0, all_amounts, 1)).to(rendered.opacity.dtype)
        share_of = dict(zip(names, shares, strict=True))
        weighed = {
            name: (weight, value * share_of[name] if name in share_of else value)
            for name, (weight, value) in terms.items()
        }
        return NormalsStepOutput(
            terms=Terms(**weighed),
            rays=self.kept,
            samples=samples,
            filled=filled,
            starved=starved / max(aimed_of_all, 1),
        )

    def _placed(self, columns: Float[Tensor, "rays n"]) -> Float[Tensor, "all n"]:
        """Return what all ranks have of their kept rays, in the order of the whole; gradients flow to the own part."""
        rows = self._rows[: len(columns)]
        count = columns.shape[1]
        of_all = columns.new_zeros(self.kept, count, dtype=torch.float64)
        of_all[rows] = columns.detach().to(of_all)
        found = self._exchange.sum(of_all.view(-1)).view(self.kept, count).to(columns.dtype)
        return found.index_copy(0, rows, columns)


class SharedRaySplit(RaySplit):
    """Cuts the rays of a step into micro-batches, and each micro-batch among the ranks.

    All ranks have to work on the same micro-batch: if memory runs out on one of them, all repeat the step in more
    micro-batches. ``step.backward`` restores ``undo`` before it repeats a step, which is where the others learn it.

    Args:
        source: draws the random numbers that place samples.
        exchange: sums over the ranks.
        in_patches: whether a patch is marched as one.
    """

    def __init__(self, source: RaySource, exchange: RankExchange, *, in_patches: bool) -> None:
        super().__init__(source)
        self._exchange = exchange
        self._in_patches = in_patches

    def __call__(self, batches: Sequence[RayBatch], count: int) -> Iterator[tuple[Rays, float]]:
        """Yield this rank's rays of one micro-batch after the other, each with its share of the step.

        Raises:
            ShortElsewhereError: after the last one, another rank ran out of memory going backward.
        """
        yield from super().__call__(batches, count)
        self._exchange.finish()

    def rays(self, piece: RayBatch) -> SharedRays:
        """Return this rank's rays of a micro-batch."""
        return SharedRays(piece, self.source, self._exchange, in_patches=self._in_patches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the random numbers, so that the step can be repeated, and make the other ranks repeat it too."""
        super().load_state_dict(state)
        self._exchange.repeat()


def split_for(ranks: Ranks, config: NormalsConfig, scene: Scene, source: RaySource) -> RaySplit:
    """Return what cuts the rays of a step into micro-batches and, with several ranks, each of these among them."""
    if ranks.alone:
        return RaySplit(source)
    patch = config.rendering.patch
    patches = max(patches_of_graphs(config.rays, len(scene.train), patch, config.rays.rays))
    exchange = RankExchange(ranks, NUMBERS_PER_RAY * patches * patch**2 + OTHER_NUMBERS, scene.device)
    return SharedRaySplit(source, exchange, in_patches=config.rendering.gradient_method == "dfd")
