"""Ray sampling: rays inside the masks, in a band around them and elsewhere, with the observations at their pixels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.pipelines.normals.config import RayOptions
from fieldwatch.recon.pipelines.normals.scene import Pixels
from fieldwatch.recon.render.sdf_gpu import draw_rays, sdf_kernels_problem
from fieldwatch.recon.transfers import upload

NEAR_SHARE = 0.75
"""Fraction of the rays outside the mask that is sampled in the band around it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RayBatch:
    """Rays of several views, grouped by view; if sampled in patches, grouped by patch and row by row within it.

    Attributes:
        view: index of each ray's view among the training views.
        pixel: row-major pixel index of each ray in its view.
        directions: unit directions in camera axes.
        normals: observed normals in camera axes; 0 where unknown.
        mask: whether the ray sees the object.
        known: whether the ray's normal is known.
        distance: integrated distance along the ray, up to one scale per view; 0 where unknown.
        weights: importance weights that make a weighted mean over a view's rays an estimate over the whole image; they
            average 1 over many draws.
        patch: side of a patch in pixels.
        rays_per_view: number of rays of each view, all of them in a row; 0 if views were split or differ.
        host_views: indices of the views as the host knows them; empty if views were split.
    """

    view: Int64[Tensor, " rays"]
    pixel: Int64[Tensor, " rays"]
    directions: Float[Tensor, "rays 3"]
    normals: Float[Tensor, "rays 3"]
    mask: Bool[Tensor, " rays"]
    known: Bool[Tensor, " rays"]
    distance: Float[Tensor, " rays"]
    weights: Float[Tensor, " rays"]
    patch: int = 1
    rays_per_view: int = 0
    host_views: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of rays."""
        return len(self.view)

    @property
    def views(self) -> Int64[Tensor, " views"]:
        """Indices of the views in this batch."""
        return torch.unique_consecutive(self.view)

    @property
    def drawn_views(self) -> Sequence[int]:
        """Indices of the views, read from the device only if views were split."""
        return self.host_views or self.views.tolist()

    @property
    def view_count(self) -> int:
        """Number of views, without a read from the device; 0 if views were split or differ."""
        return -(-len(self) // self.rays_per_view) if self.rays_per_view else 0

    def first(self, rays: int) -> "RayBatch":
        """Return the first ``rays`` rays."""
        return replace(self.select(slice(rays)), rays_per_view=self.rays_per_view)

    def split(self, count: int) -> "list[RayBatch]":
        """Split the rays into micro-batches: by views if there are enough, else by interleaving every view's patches.

        Patches are interleaved because those inside the mask come first: every micro-batch gets rays on and around the
        object.

        Args:
            count: number of micro-batches; fewer if there are fewer patches, a few more if views do not divide evenly.
        """
        if count == 1:
            return [self]
        # Views are kept whole if possible, because the depth term fits one scale per view.
        views = [torch.nonzero(self.view == view)[:, 0] for view in self.views.tolist()]
        if count <= len(views):
            ends = [len(views) * piece // count for piece in range(count + 1)]
            whole = [self.select(torch.cat(views[first:last])) for first, last in pairwise(ends)]
            return [replace(piece, rays_per_view=self.rays_per_view) for piece in whole]
        each = -(-count // len(views))  # rounded up
        patches = [rows.view(-1, self.patch**2) for rows in views]
        # Never more micro-batches than patches, so that none is empty.
        return [self.select(rows[piece::each].reshape(-1)) for rows in patches for piece in range(min(each, len(rows)))]

    def select(self, rows: slice | Int64[Tensor, " n"]) -> "RayBatch":
        """Select rays by row; whole patches if the batch was sampled in patches."""
        columns = ("view", "pixel", "directions", "normals", "mask", "known", "distance", "weights")
        return RayBatch(**{name: getattr(self, name)[rows] for name in columns}, patch=self.patch)


def patches_of_view(options: RayOptions, views: int, patch: int, rays: int, most: int | None = None) -> int:
    """Return the number of patches per view in a step.

    Args:
        options: ray sampling options.
        views: number of views in the step.
        patch: side of a patch in pixels.
        rays: approximate number of rays in the step.
        most: maximum number of rays per view; None for no limit.
    """
    usual = options.rays_per_view or rays // views
    return max((usual if most is None else min(usual, most)) // patch**2, 1)


def patches_of_graphs(options: RayOptions, views: int, patch: int, rays: int, most: int | None = None) -> list[int]:
    """Return the number of patches in each autograd graph of a step.

    Args:
        options: ray sampling options.
        views: number of training views.
        patch: side of a patch in pixels.
        rays: approximate number of rays in the step.
        most: maximum number of rays per view; None for no limit.
    """
    view_count = min(options.views_per_step or views, views)
    each = patches_of_view(options, view_count, patch, rays, most)
    together = options.views_per_graph
    return [each * min(together, view_count - first) for first in range(0, view_count, together)]


class RaySource:
    """Samples the rays of each step with a separate generator, whose state is part of the checkpoint.

    Args:
        pixels: pixels of the training views.
        options: ray sampling options.
        patch: side of a patch in pixels, odd.
        seed: seed of the generator.

    Raises:
        InputError: a view is smaller than a patch.
    """

    def __init__(self, pixels: Pixels, options: RayOptions, *, patch: int = 1, seed: int = 0) -> None:
        self._pixels = pixels
        self._device = pixels.mask.device
        self._options = options
        self._patch = patch
        # On the host, so that a GPU gets the same rays as the CPU, and their numbers need no read from the device.
        self._generator = torch.Generator().manual_seed(seed)
        # Patches are shifted into the image, which is impossible for larger patches.
        if patch > int(torch.minimum(pixels.widths, pixels.heights).min()):
            raise InputError(f"--patch must not exceed the size of any view, got {patch} pixels: choose a smaller one")
        self._offsets = self._patch_offsets()
        on_gpu = self._device.type == "cuda" and patch == 1 and sdf_kernels_problem() is None
        self._regions = _Regions.of(pixels) if on_gpu else None

    def draw(self, rays: int, most: int | None = None) -> list[RayBatch]:
        """Sample the rays of a step, one batch for each group of views that share an autograd graph.

        Args:
            rays: approximate number of rays over all batches; each view gets an equal part, at least one patch.
            most: maximum number of rays per view; None for no limit.
        """
        options = self._options
        count = len(self._pixels)
        view_count = min(options.views_per_step or count, count)
        order = torch.randperm(count, generator=self._generator)[:view_count]
        each = patches_of_view(options, view_count, self._patch, rays, most)
        # Sorted, so that the rays of a batch are grouped by view in ascending order.
        groups = order.sort().values.split(options.views_per_graph)
        if self._regions is not None:
            return [self._drawn_on_device(self._regions, group.tolist(), each) for group in groups]
        return [
            self._gathered(group.tolist(), [self._draw_from_view(view, each) for view in group.tolist()])
            for group in groups
        ]

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Draw offsets of the samples of each ray, uniform in [0, 1) steps."""
        return upload(torch.rand(rays, generator=self._generator), self._device)

    def jitter_and_noise(self, rays: int, columns: int) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays columns"]]:
        """Draw what `jitter` and then `noise` draw, with one copy to the device."""
        jitter = torch.rand(rays, generator=self._generator)
        noise = torch.rand(rays, columns, generator=self._generator)
        together = upload(torch.cat([jitter, noise.view(-1)]), self._device)
        return together[:rays], together[rays:].view(rays, columns)

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Draw the positions of stratified samples within their strata, uniform in [0, 1)."""
        return upload(torch.rand(rays, columns, generator=self._generator), self._device)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the generator."""
        self._generator.set_state(state["generator"])

    def _draw_from_view(self, view: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sample ``count`` patches of a view, divided among its regions; return pixels, view indices and weights."""
        regions = self._pixels.regions[view]
        shares = self._shares([len(region) for region in regions])
        area = sum(map(len, regions))
        drawn_regions: list[tuple[Tensor, Tensor]] = []
        for region, share, region_count in zip(regions, shares, self._counts(shares, count), strict=True):
            if region_count:
                rows = upload(torch.randint(len(region), (region_count,), generator=self._generator), region.device)
                # Fraction of the image over fraction of the rays: without it the silhouette is biased (decision 0021).
                weight = len(region) / area / share
                drawn_regions.append((region[rows], torch.full((region_count,), weight, device=region.device)))
        pixel, weight = (torch.cat(column) for column in zip(*drawn_regions, strict=True))
        if self._patch > 1:
            pixel = self._patches(view, pixel)
            # All pixels of a patch have the weight of its center, even if the patch reaches into another region.
            weight = weight.repeat_interleave(self._patch**2)
        return pixel, torch.full_like(pixel, view), weight

    def _counts(self, shares: list[float], count: int) -> list[int]:
        """Return counts that sum to ``count`` and whose expectations are the shares: systematic sampling."""
        # One random shift for all borders: each count deviates by less than one from its share and is unbiased.
        shift = float(torch.rand((), generator=self._generator))
        ends = [int(sum(shares[: i + 1]) * count + shift) for i in range(len(shares) - 1)]
        ends = [0, *(min(end, count) for end in ends), count]
        return [last - first for first, last in pairwise(ends)]

    def _shares(self, sizes: Sequence[int]) -> list[float]:
        """Return the fraction of rays for each region; that of an empty region is redistributed."""
        # Most outside rays are close to the silhouette, where its position is decided.
        outside = 1 - self._options.inside
        target = [self._options.inside, NEAR_SHARE * outside, (1 - NEAR_SHARE) * outside]
        nonempty = [share if size else 0.0 for share, size in zip(target, sizes, strict=True)]
        return [share / sum(nonempty) for share in nonempty]

    def _patch_offsets(self) -> Int64[Tensor, "patch 2"]:
        # Offsets of a patch's pixels from its center, row by row.
        reach = torch.arange(self._patch, device=self._pixels.mask.device) - self._patch // 2
        return torch.stack(torch.meshgrid(reach, reach, indexing="ij"), -1).view(-1, 2)

    def _patches(self, view: int, center: Int64[Tensor, " n"]) -> Int64[Tensor, " pixels"]:
        """Return all pixels of patches around center pixels, shifted to lie inside the image."""
        width = int(self._pixels.widths[view])
        height = int(self._pixels.heights[view])
        half = self._patch // 2
        # Shifted, not clipped: finite differences need whole patches.
        row = (center // width).clamp(half, height - 1 - half)
        column = (center % width).clamp(half, width - 1 - half)
        rows = row[:, None] + self._offsets[:, 0]
        columns = column[:, None] + self._offsets[:, 1]
        return (rows * width + columns).view(-1)

    def _drawn_on_device(self, regions: "_Regions", views: Sequence[int], count: int) -> RayBatch:
        """Draw the same rays as `_draw_from_view`, with one copy to the device and one kernel for all views."""
        places: list[Tensor] = []
        weights: list[Tensor] = []
        for view in views:
            sizes = regions.sizes[view]
            shares = self._shares(sizes)
            drawn = zip(sizes, regions.starts[view], shares, self._counts(shares, count), strict=True)
            for size, start, share, region_count in drawn:
                if region_count:
                    places.append(start + torch.randint(size, (region_count,), generator=self._generator))
                    weights.append(torch.full((region_count,), size / sum(sizes) / share))
        of_view = torch.tensor(views).repeat_interleave(count)
        pixels = self._pixels
        # One copy: of 64-bit integers, then of numbers.
        parts = (torch.stack([torch.cat(places), of_view]), torch.cat(weights))
        copied = upload(torch.cat([part.view(-1).view(torch.uint8) for part in parts]), self._device)
        integers = parts[0].numel() * parts[0].itemsize
        drawn = draw_rays(
            copied[:integers].view(torch.int64).view(2, -1),
            regions.pixels,
            *(pixels.offsets, pixels.widths, pixels.lenses),
            *(pixels.normals, pixels.mask, pixels.known, pixels.distance),
        )
        return RayBatch(
            **drawn._asdict(),
            weights=copied[integers:].view(torch.float32),
            rays_per_view=count,
            host_views=tuple(views),
        )

    def _gathered(self, drawn_views: Sequence[int], views: list[tuple[Tensor, Tensor, Tensor]]) -> RayBatch:
        pixel, view, weights = (torch.cat(column) for column in zip(*views, strict=True))
        pixels = self._pixels
        counts = {len(each) for each, _, _ in views}
        # `pixel` counts within a view, the flat tensors of `Pixels` over all views.
        rows = pixels.offsets[view] + pixel
        return RayBatch(
            view=view,
            pixel=pixel,
            directions=pixels.directions(view, pixel),
            normals=pixels.normals[rows],
            mask=pixels.mask[rows],
            known=pixels.known[rows],
            distance=pixels.distance[rows],
            weights=weights,
            patch=self._patch,
            rays_per_view=counts.pop() if len(counts) == 1 else 0,
            host_views=tuple(drawn_views),
        )


class _Regions(NamedTuple):
    """Regions of all views in one list on a GPU, with the place and the size of each."""

    pixels: Int64[Tensor, " _"]
    starts: list[list[int]]
    sizes: list[list[int]]

    @classmethod
    def of(cls, pixels: Pixels) -> "_Regions":
        sizes = [[len(region) for region in regions] for regions in pixels.regions]
        ends = iter(accumulate(size for view in sizes for size in view))
        starts = [[next(ends) - size for size in view] for view in sizes]
        return cls(torch.cat([region for regions in pixels.regions for region in regions]), starts, sizes)
