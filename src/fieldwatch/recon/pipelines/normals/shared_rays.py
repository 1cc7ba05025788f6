"""Distribution of a micro-batch's rays over ranks, with terms that together equal those of a single process.

A term is a mean over the rays, samples or points of its micro-batch, whose number is known only after rendering. So
ranks sum these numbers between forward and backward, and each weights its means by its fraction: the average over
ranks, as `Step.update` computes it, is then the mean over the micro-batch. The depth term has one scale per view:
opacities and distances of all rays are shared with all ranks, and each computes the whole term, whose gradient flows to
the local rays only.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

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
"""Values exchanged per ray at a time: opacity and distance."""
OTHER_NUMBERS = 16
"""Maximum number of values exchanged about terms and recorded statistics."""


class SharedRays(Rays):
    """One rank's part of a micro-batch's rays: every ``world``-th patch, so that it covers all views and regions.

    Each rank draws the random numbers for the rays of all ranks and selects its own. Methods that communicate have to
    be called by all ranks, in the same order.

    Args:
        all_rays: rays of all ranks, identical on each rank.
        source: generator of the random numbers.
        exchange: sums over the ranks.
        in_patches: whether each patch is marched as one ray.

    Attributes:
        batch: rays of this rank; empty if there are fewer patches than ranks.
        all_rays: rays of all ranks.
        ray_count: number of leading rays of all ranks that are rendered.
    """

    shared = True

    def __init__(self, all_rays: RayBatch, source: RaySource, exchange: RankExchange, *, in_patches: bool) -> None:
        ranks = exchange.ranks
        area = all_rays.patch**2
        local_patches = torch.arange(len(all_rays) // area, device=all_rays.view.device)[ranks.rank :: ranks.world]
        self._exchange = exchange
        self._world = ranks.world
        self._rows = (local_patches[:, None] * area + torch.arange(area, device=all_rays.view.device)).view(-1)
        self._in_patches = in_patches
        # Random numbers are drawn per marched ray: one per patch, or one per pixel.
        self._marched = local_patches if in_patches else self._rows
        self._area = area if in_patches else 1
        self._rendered_by_all: tuple[RayBatch, RenderedDistances] | None = None
        self.all_rays = all_rays
        self.ray_count = len(all_rays)
        super().__init__(all_rays.select(self._rows), source)

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Return offsets of the samples of the first ``rays`` local rays, in steps."""
        return self._source.jitter(len(self.all_rays) // self._area)[self._marched[:rays]]

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Return positions of stratified samples within their strata for the first ``rays`` local rays."""
        return self._source.noise(self.ray_count // self._area, columns)[self._marched[:rays]]

    def jitter_and_noise(self, rays: int, columns: int) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays columns"]]:
        """Return both for the first ``rays`` local rays."""
        return self.jitter(rays), self.noise(rays, columns)

    def limited(self, samples: PackedSamples, most: int) -> PackedSamples:
        """Drop trailing rays that would exceed a number of samples, counted over all ranks.

        Args:
            samples: samples of the local rays, already limited on their own.
            most: maximum number of samples of all ranks together.
        """
        # Local rays that marching dropped count as `most` + 1, so the running sum over all ranks exceeds the bound
        # there.
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
        """Return the rays that all ranks rendered, and their results; communicates at the first call."""
        if self._rendered_by_all is None:
            columns = self._placed(torch.stack([rendered.opacity, rendered.distance], 1))
            distances = RenderedDistances(opacity=columns[:, 0], distance=columns[:, 1])
            self._rendered_by_all = self.all_rays.first(self.ray_count), distances
        return self._rendered_by_all

    def depth_term(self, rendered: RenderedRays, options: TermOptions) -> Float[Tensor, ""]:
        """Return the depth term of all ranks' rays; its gradients average over the ranks to those of one process."""
        error = super().depth_term(rendered, options)
        # The value is that of one process. The gradient is that of the local rays only, and `Step.update` divides it
        # by the number of ranks.
        return error.detach() + self._world * (error - error.detach())

    def losses(
        self,
        weights: Mapping[str, float],  # noqa: ARG002  as in the base class
        rendered: RenderedRays,  # noqa: ARG002
        poses: Float[Tensor, "views 4 4"],  # noqa: ARG002
        options: TermOptions,  # noqa: ARG002
    ) -> None:
        """Return None: no rank has all rays of a view."""
        return

    def output(
        self,
        terms: Terms,
        rendered: RenderedRays,
        options: TermOptions,
        losses: Float[Tensor, " views"] | None = None,  # noqa: ARG002  as in the base class
    ) -> NormalsStepOutput:
        """Return terms whose average over the ranks is the term of all rays; communicates.

        Args:
            terms: terms as means over the local rays; "depth" as returned by `depth_term`.
            rendered: rendering results of the local rays.
            options: how the terms were computed.
            losses: None.
        """
        local_batch = self.batch.first(rendered.ray_count)
        # The depth term is already that of all rays, on every rank.
        names = [name for name in terms if name != "depth"]
        amounts = self.amounts | ray_amounts(names, local_batch, rendered, options)
        mask = local_batch.mask.view(-1, local_batch.patch**2).any(1) if self._in_patches else local_batch.mask
        mask_rays = int(mask.sum())
        # A fraction cannot be summed over ranks, so it is sent as two counts.
        counts = [_samples_of(rendered), rendered.filled, round(rendered.starved * mask_rays), mask_rays]
        device = rendered.opacity.device
        numbers = [*counts, *(amounts[name] for name in names)]
        local_numbers = torch.stack([torch.as_tensor(number, dtype=torch.float64, device=device) for number in numbers])
        summed_numbers = self._exchange.sum(local_numbers)
        # A single host read for all four counts.
        samples, filled, starved, mask_rays_of_all = map(int, summed_numbers[: len(counts)].tolist())
        local_amounts = local_numbers[len(counts) :]
        summed_amounts = summed_numbers[len(counts) :]
        # Multiplied by the number of ranks, because `Step.update` averages over them.
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
            starved=starved / max(mask_rays_of_all, 1),
        )

    def _placed(self, columns: Float[Tensor, "rays n"]) -> Float[Tensor, "all n"]:
        """Gather rows of all ranks' rendered rays in their common order; gradients flow to the local rows."""
        rows = self._rows[: len(columns)]
        count = columns.shape[1]
        columns_of_all = columns.new_zeros(self.ray_count, count, dtype=torch.float64)
        columns_of_all[rows] = columns.detach().to(columns_of_all)
        gathered = self._exchange.sum(columns_of_all.view(-1)).view(self.ray_count, count).to(columns.dtype)
        # The sum has no autograd graph: the local rows, which have one, are put back.
        return gathered.index_copy(0, rows, columns)


def _samples_of(rendered: RenderedRays) -> int:
    return len(cast("PackedSamples", rendered.samples))  # rays of several ranks are not rendered by GPU kernels


class SharedRaySplit(RaySplit):
    """Splits the rays of a step into micro-batches, and each micro-batch among the ranks.

    All ranks have to work on the same micro-batch: if one of them runs out of memory, all retry the step with more
    micro-batches. ``step.backward`` restores ``undo`` before a retry, which is when the other ranks are notified.

    Args:
        source: generator of the random numbers that place samples.
        exchange: sums over the ranks.
        in_patches: whether each patch is marched as one ray.
    """

    def __init__(self, source: RaySource, exchange: RankExchange, *, in_patches: bool) -> None:
        super().__init__(source)
        self._exchange = exchange
        self._in_patches = in_patches

    def __call__(self, batches: Sequence[RayBatch], count: int) -> Iterator[tuple[Rays, float]]:
        """Yield this rank's rays of each micro-batch with the micro-batch's fraction of the step.

        Raises:
            ShortElsewhereError: after the last micro-batch, if another rank ran out of memory in its backward pass.
        """
        yield from super().__call__(batches, count)
        # Reached after the last backward pass, because `step.backward` requests the next micro-batch only then.
        self._exchange.finish()

    def rays(self, piece: RayBatch) -> SharedRays:
        """Return this rank's rays of a micro-batch."""
        return SharedRays(piece, self.source, self._exchange, in_patches=self._in_patches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the random numbers before a retry of the step, and make the other ranks retry it too."""
        super().load_state_dict(state)
        self._exchange.repeat()


def split_for(ranks: Ranks, config: NormalsConfig, scene: NormalsScene, source: RaySource) -> RaySplit:
    """Return the split of a step's rays into micro-batches and, with several ranks, of each micro-batch among them."""
    if ranks.alone:
        return RaySplit(source)
    patch = config.rendering.patch
    patches = max(patches_of_graphs(config.rays, len(scene.train), patch, config.rays.rays))
    exchange = RankExchange(ranks, NUMBERS_PER_RAY * patches * patch**2 + OTHER_NUMBERS, scene.device)
    return SharedRaySplit(source, exchange, in_patches=config.rendering.gradient_method == "dfd")
