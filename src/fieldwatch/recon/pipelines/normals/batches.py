"""Rays of a step: drawn in the masks, in bands around them, and anywhere else, with what is known about each."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.pipelines.normals.config import RayOptions
from fieldwatch.recon.pipelines.normals.scene import Pixels

NEAR_SHARE = 0.75
"""Of the rays outside of the mask, the share that is drawn in the band around it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RayBatch:
    """Rays of some views, one view's after the other's; in patches, a patch's one after the other, row by row.

    Attributes:
        view: of each ray, as a number among the training views.
        pixel: of each ray, in its view, row by row.
        directions: in camera axes, of length 1.
        normals: observed, in camera axes; 0 where there is none.
        mask: rays that see the object.
        known: rays whose normal is known.
        distance: integrated, along the ray, up to one scale per view; 0 where there is none.
        weights: over the rays of a view, what each stands for, so that their sum speaks of the whole picture; 1 in
            the mean over many draws.
        patch: pixels of a patch each way.
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

    def __len__(self) -> int:
        """Count the rays."""
        return len(self.view)

    @property
    def views(self) -> Int64[Tensor, " views"]:
        """Views that the rays are of."""
        return torch.unique_consecutive(self.view)

    def first(self, rays: int) -> "RayBatch":
        """Return the first rays."""
        return self.select(slice(rays))

    def split(self, count: int) -> "list[RayBatch]":
        """Cut the rays into micro-batches: by views, while there are enough of them, else every view's patches in turn.

        In turn, because those inside the mask come first: each micro-batch has rays of the object and around it.

        Args:
            count: how many; there are fewer where there are fewer patches, a few more where views do not divide evenly.
        """
        if count == 1:
            return [self]
        views = [torch.nonzero(self.view == view)[:, 0] for view in self.views.tolist()]
        if count <= len(views):
            ends = [len(views) * piece // count for piece in range(count + 1)]
            return [self.select(torch.cat(views[first:last])) for first, last in pairwise(ends)]
        each = -(-count // len(views))
        patches = [rows.view(-1, self.patch**2) for rows in views]
        # Never more pieces than patches, so that none is empty.
        return [self.select(rows[piece::each].reshape(-1)) for rows in patches for piece in range(min(each, len(rows)))]

    def select(self, rows: slice | Int64[Tensor, " n"]) -> "RayBatch":
        """Return some rays; whole patches, if the batch comes in patches."""
        columns = ("view", "pixel", "directions", "normals", "mask", "known", "distance", "weights")
        return RayBatch(**{name: getattr(self, name)[rows] for name in columns}, patch=self.patch)


def patches_of_view(options: RayOptions, views: int, patch: int, rays: int) -> int:
    """Return how many patches every view of a step gets.

    Args:
        options: which rays.
        views: of the step.
        patch: pixels of a patch each way.
        rays: of the step, about.
    """
    return max((options.rays_per_view or rays // views) // patch**2, 1)


def patches_of_graphs(options: RayOptions, views: int, patch: int, rays: int) -> list[int]:
    """Return how many patches each graph of a step gets.

    Args:
        options: which rays.
        views: that there are to be trained on.
        patch: pixels of a patch each way.
        rays: of the step, about.
    """
    wanted = min(options.views_per_step or views, views)
    each = patches_of_view(options, wanted, patch, rays)
    together = options.views_per_graph
    return [each * min(together, wanted - first) for first in range(0, wanted, together)]


class RaySource:
    """Draws the rays of steps, from a generator of its own, whose state a checkpoint holds.

    Args:
        pixels: of the training views.
        options: which rays.
        patch: pixels of a patch each way, odd.
        seed: of the generator.

    Raises:
        InputError: a view is smaller than a patch.
    """

    def __init__(self, pixels: Pixels, options: RayOptions, *, patch: int = 1, seed: int = 0) -> None:
        self._pixels = pixels
        self._options = options
        self._patch = patch
        self._generator = torch.Generator(device=pixels.mask.device).manual_seed(seed)
        if patch > int(torch.minimum(pixels.widths, pixels.heights).min()):
            raise InputError(f"--patch is {patch} pixels each way, which some view is not: choose a smaller one")
        self._offsets = self._patch_offsets()

    def draw(self, rays: int) -> list[RayBatch]:
        """Draw the rays of a step; one batch for each group of views whose graph is alive at a time.

        Args:
            rays: over all batches, about: every view gets as many, at least one patch.
        """
        options = self._options
        count = len(self._pixels)
        wanted = min(options.views_per_step or count, count)
        order = torch.randperm(count, generator=self._generator, device=self._generator.device)[:wanted]
        each = patches_of_view(options, wanted, self._patch, rays)
        groups = order.sort().values.split(options.views_per_graph)
        return [self._gathered([self._draw_from_view(view, each) for view in group.tolist()]) for group in groups]

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Draw shifts of samples, in steps."""
        return torch.rand(rays, generator=self._generator, device=self._generator.device)

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Draw places within parts of a ray."""
        return torch.rand(rays, columns, generator=self._generator, device=self._generator.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state, for a checkpoint."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the generator's state of a checkpoint."""
        self._generator.set_state(state["generator"])

    def _draw_from_view(self, view: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels, their view and their weights: `count` patches, from each region its share."""
        regions = self._pixels.regions[view]
        shares = self._shares(regions)
        area = sum(map(len, regions))
        drawn_regions: list[tuple[Tensor, Tensor]] = []
        for region, share, drawn in zip(regions, shares, self._counts(shares, count), strict=True):
            if drawn:
                rows = torch.randint(len(region), (drawn,), generator=self._generator, device=region.device)
                # Share of the picture over share of the rays: without it the silhouette is biased (decision 0021).
                weight = len(region) / area / share
                drawn_regions.append((region[rows], torch.full((drawn,), weight, device=region.device)))
        pixel, weight = (torch.cat(column) for column in zip(*drawn_regions, strict=True))
        if self._patch > 1:
            pixel = self._patches(view, pixel)
            # A patch counts as its central pixel does, also where it reaches into another region.
            weight = weight.repeat_interleave(self._patch**2)
        return pixel, torch.full_like(pixel, view), weight

    def _counts(self, shares: list[float], count: int) -> list[int]:
        """Whole numbers that add up to `count`, in the mean by share: where the sums of shares meet a shifted ruler."""
        # One random number for all borders: each count is then off its share by less than one, and right in the mean.
        shift = float(torch.rand((), generator=self._generator, device=self._generator.device))
        ends = [int(sum(shares[: i + 1]) * count + shift) for i in range(len(shares) - 1)]
        ends = [0, *(min(end, count) for end in ends), count]
        return [last - first for first, last in pairwise(ends)]

    def _shares(self, regions: tuple[Tensor, ...]) -> list[float]:
        """Share of the rays for each region; that of an empty one goes to the others."""
        outside = 1 - self._options.inside
        wanted = [self._options.inside, NEAR_SHARE * outside, (1 - NEAR_SHARE) * outside]
        nonempty = [share if len(region) else 0.0 for share, region in zip(wanted, regions, strict=True)]
        return [share / sum(nonempty) for share in nonempty]

    def _patch_offsets(self) -> Int64[Tensor, "patch 2"]:
        reach = torch.arange(self._patch, device=self._pixels.mask.device) - self._patch // 2
        return torch.stack(torch.meshgrid(reach, reach, indexing="ij"), -1).view(-1, 2)

    def _patches(self, view: int, centre: Int64[Tensor, " n"]) -> Int64[Tensor, " pixels"]:
        """All pixels of patches around centres, which are moved into the picture."""
        width = int(self._pixels.widths[view])
        height = int(self._pixels.heights[view])
        half = self._patch // 2
        # Moved, not cut: finite differences want whole patches.
        row = (centre // width).clamp(half, height - 1 - half)
        column = (centre % width).clamp(half, width - 1 - half)
        rows = row[:, None] + self._offsets[:, 0]
        columns = column[:, None] + self._offsets[:, 1]
        return (rows * width + columns).view(-1)

    def _gathered(self, views: list[tuple[Tensor, Tensor, Tensor]]) -> RayBatch:
        pixel, view, weights = (torch.cat(column) for column in zip(*views, strict=True))
        pixels = self._pixels
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
        )
