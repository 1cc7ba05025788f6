"""The rays of a graph, divided among ranks: who looks along which, and with whose random numbers."""

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.pipelines.normals.batches import RayBatch, RaySource
from fieldwatch.pipelines.normals.exchange import Exchange
from fieldwatch.render import PackedSamples


class SharedRays:
    """One rank's part of the rays of a graph: of every so many patches one, so that all see all views and regions.

    It stands in for the source of rays: random numbers are drawn for the rays of all ranks, on each rank, and cut.

    Args:
        whole: the rays of all ranks, the same on each.
        source: draws the random numbers.
        exchange: sums over the ranks.
        in_patches: whether a patch is marched along as one.

    Attributes:
        whole: as above.
        own: this rank's; none where there are fewer patches than ranks.
        kept: rays of all ranks, the first ones, that are looked along.
    """

    def __init__(self, whole: RayBatch, source: RaySource, exchange: Exchange, *, in_patches: bool) -> None:
        ranks, area, device = exchange.ranks, whole.patch**2, whole.view.device
        patches = torch.arange(len(whole) // area, device=device)[ranks.rank :: ranks.world]
        self._source, self._exchange = source, exchange
        self._rows = (patches[:, None] * area + torch.arange(area, device=device)).view(-1)
        self._marched = patches if in_patches else self._rows
        self._area = area if in_patches else 1
        self.whole, self.own, self.kept = whole, whole.at(self._rows), len(whole)

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Return shifts of samples, in steps, of the first own rays."""
        return self._source.jitter(len(self.whole) // self._area)[self._marched[:rays]]

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Return places within parts of a ray, of the first own rays."""
        return self._source.noise(self.kept // self._area, columns)[self._marched[:rays]]

    def bounded(self, samples: PackedSamples, most: int) -> PackedSamples:
        """Leave out rays from the first on that would exceed a number of samples, counted over all ranks.

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

    def placed(self, columns: Float[Tensor, "rays n"]) -> Float[Tensor, "all n"]:
        """Return what all ranks have of their kept rays, in the order of the whole; gradients flow to the own part.

        Args:
            columns: of the own rays, as many as are kept.
        """
        rows, count = self._rows[: len(columns)], columns.shape[1]
        of_all = columns.new_zeros(self.kept, count, dtype=torch.float64)
        of_all[rows] = columns.detach().to(of_all)
        found = self._exchange.sum(of_all.view(-1)).view(self.kept, count).to(columns.dtype)
        return found.index_copy(0, rows, columns)
