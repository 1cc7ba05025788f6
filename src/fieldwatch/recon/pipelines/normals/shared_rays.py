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
from fieldwatch.recon.pipelines.normals.rendering import RenderedDistances, RenderedRays
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
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

    def __init__(self, all_rays: RayBatch, source: RaySource, exchange: RankExchange, *, in_patches: bool) -> None:
        ranks = exchange.ranks
        area = all_rays.patch**2
        local_patches = torch.arange(len(all_rays) // area, device=all_rays.view.device)[ranks.rank :: ranks.world]
        self._exchange = exchange
        self._world = ranks.world
        self._rows = (local_patches[:, None] * area + torch.arange(area, device=all_rays.view.device)).view(-1)
        self._in_patches = in_patches
        self._marched = local_patches if in_patches else self._rows
        self._area = area if in_patches else 1
        self._rendered_by_all: tuple[RayBatch, RenderedDistances] | None = None
        self.all_rays = all_rays
        self.ray_count = len(all_rays)
        super().__init__(all_rays.select(self._rows), source)

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Return shifts of the samples of the first own rays, in steps."""
        return self._source.jitter(len(self.all_rays) // self._area)[self._marched[:rays]]

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Return places within parts of the first own rays."""
        return self._source.noise(self.ray_count // self._area, columns)[self._marched[:rays]]

    def limited(self, samples: PackedSamples, most: int) -> PackedSamples:
        """Leave out the rays from the first on that would exceed a number of samples, counted over all ranks.

        Args:
            samples: of the first own rays: as many as do not exceed it by themselves.
            most: samples at most, of all ranks together.
        """
        # Own rays that the march left out count as too many, so the running sum over all ranks exceeds the bound at
        # them.
        counts = torch.full_like(self._marched, most + 1)
        counts[: samples.n_rays] = samples.counts
        counts_of_all = counts.new_zeros(len(self.all_rays) // self._area, dtype=torch.float64)
        counts_of_all[self._marched] = counts.to(counts_of_all)
        ray_count = int((self._exchange.sum(counts_of_all).cumsum(0) <= most).sum())
        self.ray_count = ray_count * self._area
        local_rays = int((self._marched < ray_count).sum())
        local_samples = int((samples.ray_index < local_rays).sum())
        return PackedSamples(
            t_start=samples.t_start[:local_samples],
            t_end=samples.t_end[:local_samples],
            ray_index=samples.ray_index[:local_samples],
            n_rays=local_rays,
        )

    def rendered_by_all(self, rendered: RenderedRays) -> tuple[RayBatch, RenderedDistances]:
        """Return the rays that all ranks rendered, and what they see; ranks meet at the first call."""
        if self._rendered_by_all is None:
            columns = self._placed(torch.stack([rendered.opacity, rendered.distance], 1))
            distances = RenderedDistances(opacity=columns[:, 0], distance=columns[:, 1])
            self._rendered_by_all = self.all_rays.first(self.ray_count), distances
        return self._rendered_by_all

    def depth_term(self, rendered: RenderedRays, options: TermOptions) -> Float[Tensor, ""]:
        """Return the depth term of all ranks' rays; the mean over ranks of its gradients is the gradient of one."""
        error = super().depth_term(rendered, options)
        # The value is that of one process. The gradient is that of the own rays only, and `Step.update` divides it by
        # the number of ranks.
        return error.detach() + self._world * (error - error.detach())

    def output(self, terms: Terms, rendered: RenderedRays, options: TermOptions) -> NormalsStepOutput:
        """Return what the objective gives: terms whose mean over the ranks is the term of all rays; ranks meet.

        Args:
            terms: means over the own rays; "depth" as of `depth_term`.
            rendered: what the own rays see.
            options: how the terms were formed.
        """
        local_batch = self.batch.first(rendered.ray_count)
        names = [name for name in terms if name != "depth"]
        amounts = self.amounts | ray_amounts(names, local_batch, rendered, options)
        mask = local_batch.mask.view(-1, local_batch.patch**2).any(1) if self._in_patches else local_batch.mask
        aimed = int(mask.sum())
        # A share cannot be summed over ranks: it goes as two counts.
        counts = [len(rendered.samples), rendered.filled, round(rendered.starved * aimed), aimed]
        device = rendered.opacity.device
        numbers = [*counts, *(amounts[name] for name in names)]
        local_numbers = torch.stack([torch.as_tensor(number, dtype=torch.float64, device=device) for number in numbers])
        summed_numbers = self._exchange.sum(local_numbers)
        samples, filled, starved, aimed_of_all = map(int, summed_numbers[: len(counts)].tolist())
        local_amounts = local_numbers[len(counts) :]
        summed_amounts = summed_numbers[len(counts) :]
        # the ranks' values are averaged by `Step.update`: hence times the number of ranks
        shares = (self._world * local_amounts / torch.where(summed_amounts > 0, summed_amounts, 1)).to(
            rendered.opacity.dtype
        )
        share_of = dict(zip(names, shares, strict=True))
        weighed = {
            name: (weight, value * share_of[name] if name in share_of else value)
            for name, (weight, value) in terms.items()
        }
        return NormalsStepOutput(
            terms=Terms(**weighed),
            rays=self.ray_count,
            samples=samples,
            filled=filled,
            starved=starved / max(aimed_of_all, 1),
        )

    def _placed(self, columns: Float[Tensor, "rays n"]) -> Float[Tensor, "all n"]:
        """Return what all ranks have of their kept rays, in the order of the whole; gradients flow to the own part."""
        rows = self._rows[: len(columns)]
        count = columns.shape[1]
        columns_of_all = columns.new_zeros(self.ray_count, count, dtype=torch.float64)
        columns_of_all[rows] = columns.detach().to(columns_of_all)
        gathered = self._exchange.sum(columns_of_all.view(-1)).view(self.ray_count, count).to(columns.dtype)
        # Sums come without a graph: the own rows are put back with theirs.
        return gathered.index_copy(0, rows, columns)


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
        # Reached after the last backward pass: `step.backward` asks for the next piece only when one has gone
        # backward.
        self._exchange.finish()

    def rays(self, piece: RayBatch) -> SharedRays:
        """Return this rank's rays of a micro-batch."""
        return SharedRays(piece, self.source, self._exchange, in_patches=self._in_patches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the random numbers, so that the step can be repeated, and make the other ranks repeat it too."""
        super().load_state_dict(state)
        self._exchange.repeat()


def split_for(ranks: Ranks, config: NormalsConfig, scene: NormalsScene, source: RaySource) -> RaySplit:
    """Return what cuts the rays of a step into micro-batches and, with several ranks, each of these among them."""
    if ranks.alone:
        return RaySplit(source)
    patch = config.rendering.patch
    patches = max(patches_of_graphs(config.rays, len(scene.train), patch, config.rays.rays))
    exchange = RankExchange(ranks, NUMBERS_PER_RAY * patches * patch**2 + OTHER_NUMBERS, scene.device)
    return SharedRaySplit(source, exchange, in_patches=config.rendering.gradient_method == "dfd")
