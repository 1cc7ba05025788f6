"""Point clouds of integrated depth, and one scale per view, since integrated depth is known up to a factor (PMNI)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy import ndimage
from scipy.spatial import KDTree
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.losses import depth_scale
from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.rendering import RenderedDistances, RenderedRays
from fieldwatch.recon.pipelines.normals.scene import Pixels

SOLID = 0.5
"""Opacity above which a ray has hit the surface, so that its distance is meaningful."""
MOMENTUM = 0.9
"""Momentum of the running estimate of a view's scale."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cloud:
    """Unscaled points of a view, in the axes of its camera.

    Attributes:
        tree: k-d tree of the points, on the CPU.
        points: the points, on the training device.
        inner: whether all neighbors of the point's pixel have a depth, too.
    """

    tree: KDTree
    points: Float[Tensor, "n 3"]
    inner: Bool[Tensor, " n"]


class IntegratedClouds:
    """Integrated depth of every view as points in camera axes, which do not change while poses are optimized.

    Each view's k-d tree is built once, on first use: neither poses nor scales invalidate it.

    Args:
        pixels: pixels of the training views.
        share: fraction of the pixels with depth that become points, evenly spaced. Edge pixels are always kept, so that
            the edge of the cloud does not move.

    Raises:
        InputError: no view has an integrated depth.
    """

    def __init__(self, pixels: Pixels, share: float) -> None:
        if not pixels.has_depth:
            raise InputError(
                "the terms point_cloud and surface need integrated depth, but no view has one: integrate the normals "
                "(fieldwatch.recon.data.integrate_normals), or remove these terms from the stages"
            )
        self._pixels = pixels
        self._share = share
        self._clouds: dict[int, _Cloud | None] = {}

    def nearest(self, view: int, positions: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, "n 3"], Bool[Tensor, " n"]]:
        """Return the nearest point of a view's cloud to each position, and whether it is an inner point of the cloud.

        A nearest point at the edge of the cloud is not a match, because the position may lie outside of what the view
        sees (Turk & Levoy 1994 reject such pairs when they align meshes).

        Args:
            view: index of the view.
            positions: query points in the axes of the view's camera and the scale of its integrated depth. No gradient.
        """
        cloud = self._cloud(view)
        # A view without depth matches nothing; an empty query would fail in the k-d tree.
        if cloud is None or not len(positions):
            return torch.zeros_like(positions), torch.zeros_like(positions[:, 0], dtype=torch.bool)
        # On the CPU: SciPy's k-d tree has no GPU version.
        indices = cloud.tree.query(positions.detach().double().numpy(force=True))[1]
        rows = torch.from_numpy(np.asarray(indices, dtype=np.int64)).to(positions.device)
        return cloud.points[rows], cloud.inner[rows]

    def _cloud(self, view: int) -> _Cloud | None:
        if view not in self._clouds:
            self._clouds[view] = self._make(view)
        return self._clouds[view]

    def _make(self, view: int) -> _Cloud | None:
        """Build a cloud of all edge points and every N-th inner point, or None if the view has no depth."""
        pixels = self._pixels
        height, width, first = (int(each[view]) for each in (pixels.heights, pixels.widths, pixels.offsets))
        distance = pixels.distance[first : first + height * width]
        known = (distance > 0).view(height, width).numpy(force=True)
        # Erosion treats pixels beyond the border as unknown, so border pixels are edge pixels as well.
        inner = np.asarray(ndimage.binary_erosion(known, np.ones((3, 3), dtype=bool)), dtype=np.bool_)
        # Without the edge points, the edge of a thinned cloud would move inward, and points beyond it would match.
        inside, edge = (np.flatnonzero(part) for part in (inner, known & ~inner))
        thinned = inside[np.unique((np.arange(int(len(inside) * self._share)) / self._share).astype(np.int64))]
        rows = torch.from_numpy(np.concatenate([thinned, edge])).to(distance.device)
        if not len(rows):
            return None
        points = distance[rows, None] * pixels.directions(torch.full_like(rows, view), rows)
        return _Cloud(
            tree=KDTree(points.double().numpy(force=True)),
            points=points,
            inner=torch.arange(len(rows), device=rows.device) < len(thinned),
        )


class ViewScales:
    """Running estimates of the factor by which each view's integrated depth is multiplied; part of the checkpoint.

    Each estimate is the least squares solution a = <z, z_r> / <z, z> against the rendered distance over a batch's rays
    (`depth_scale`). PMNI has a separate network for the scales, which none of its published settings trains.

    Args:
        views: number of views.
        device: training device.

    Attributes:
        values: scale factors; 0 where not yet estimated.
    """

    def __init__(self, views: int, device: torch.device) -> None:
        self.values: Float[Tensor, " views"] = torch.zeros(views, device=device)

    @torch.no_grad()
    def observe(self, batch: RayBatch, rendered: RenderedRays | RenderedDistances) -> None:
        """Update the scales of a batch's views; estimates that are not positive are ignored."""
        # The rendered distance is a sum of weights times distances: dividing by the opacity gives the mean.
        rendered_distance = rendered.distance / rendered.opacity.clamp_min(SOLID)
        counted = batch.mask & (batch.distance > 0) & (rendered.opacity > SOLID)
        for view in batch.drawn_views:
            new = depth_scale(batch.distance, rendered_distance, counted & (batch.view == view))
            old = self.values[view]
            # The first estimate is taken directly, since there is nothing to average with.
            mixed = torch.where(old > 0, MOMENTUM * old + (1 - MOMENTUM) * new, new)
            self.values[view] = torch.where(new > 0, mixed, old)

    def state_dict(self) -> dict[str, Any]:
        """Return the estimates."""
        return {"values": self.values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the estimates."""
        self.values = state["values"].to(self.values).clone()
