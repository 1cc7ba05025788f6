"""Points of the integrated depth of all views, and how large each view's are: known up to one scale each (PMNI)."""

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
"""Opacity from which on a ray has met the surface, so that its distance means something."""
MOMENTUM = 0.9
"""Of the running estimate of a view's scale."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cloud:
    """Points of one view in its camera's axes, not scaled.

    Attributes:
        tree: of the points, on the CPU.
        points: the same, on the training device.
        inner: those that all neighbours of their pixel have a depth, too.
    """

    tree: KDTree
    points: Float[Tensor, "n 3"]
    inner: Bool[Tensor, " n"]


class IntegratedClouds:
    """The integrated depth of every view as points in its camera's axes, in which nothing moves while poses learn.

    So the tree of a view is made once, when it is first asked for, whatever becomes of poses and scales.

    Args:
        pixels: of the training views.
        share: of the pixels with a depth that become points, evenly over them; those at the edge all do, so that the
            edge stays where it is.

    Raises:
        InputError: no view has an integrated depth.
    """

    def __init__(self, pixels: Pixels, share: float) -> None:
        if not pixels.has_depth:
            raise InputError(
                "the terms point_cloud and surface look at integrated depth, and no view has one: integrate the "
                "normals (fieldwatch.recon.data.integrate_normals), or leave these terms out of the stages"
            )
        self._pixels = pixels
        self._share = share
        self._clouds: dict[int, _Cloud | None] = {}

    def nearest(self, view: int, positions: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, "n 3"], Bool[Tensor, " n"]]:
        """Return the nearest point of a view's cloud to each place, and whether it lies inside of the cloud.

        A nearest point at the edge of the cloud is no match: the place may well lie beside what the view sees (Turk &
        Levoy 1994 leave out such pairs when they align meshes).

        Args:
            view: whose cloud.
            positions: in the axes of its camera, in the scale of its integrated depth. No gradient.
        """
        cloud = self._cloud(view)
        if cloud is None or not len(positions):
            return torch.zeros_like(positions), torch.zeros_like(positions[:, 0], dtype=torch.bool)
        neighbours = cloud.tree.query(positions.detach().double().numpy(force=True))[1]
        rows = torch.from_numpy(np.asarray(neighbours, dtype=np.int64)).to(positions.device)
        return cloud.points[rows], cloud.inner[rows]

    def _cloud(self, view: int) -> _Cloud | None:
        if view not in self._clouds:
            self._clouds[view] = self._make(view)
        return self._clouds[view]

    def _make(self, view: int) -> _Cloud | None:
        """Take all points at the edge, and of the others every so many-th; None where the view has no depth."""
        pixels = self._pixels
        height, width, first = (int(each[view]) for each in (pixels.heights, pixels.widths, pixels.offsets))
        distance = pixels.distance[first : first + height * width]
        known = (distance > 0).view(height, width).numpy(force=True)
        # The picture's border counts as unknown, so pixels there are edge as well.
        inner = np.asarray(ndimage.binary_erosion(known, np.ones((3, 3), dtype=bool)), dtype=np.bool_)
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
    """By what factor each view's integrated depth is to be multiplied, as running estimates; a checkpoint holds them.

    Each estimate is the closed form a = <z, z_r> / <z, z> over the rays of a batch (`depth_scale`): least squares
    against the rendered distance. PMNI has a network of its own for scales that none of its shipped settings trains.

    Args:
        views: number of them.
        device: of the training.

    Attributes:
        values: factors; 0 where none is known yet.
    """

    def __init__(self, views: int, device: torch.device) -> None:
        self.values: Float[Tensor, " views"] = torch.zeros(views, device=device)

    @torch.no_grad()
    def observe(self, batch: RayBatch, rendered: RenderedRays | RenderedDistances) -> None:
        """Take in what a batch says about its views; a factor that is not above 0 says nothing."""
        rendered_distance = rendered.distance / rendered.opacity.clamp_min(SOLID)
        counted = batch.mask & (batch.distance > 0) & (rendered.opacity > SOLID)
        for view in batch.views.tolist():
            new = depth_scale(batch.distance, rendered_distance, counted & (batch.view == view))
            old = self.values[view]
            mixed = torch.where(old > 0, MOMENTUM * old + (1 - MOMENTUM) * new, new)
            self.values[view] = torch.where(new > 0, mixed, old)

    def state_dict(self) -> dict[str, Any]:
        """Return the estimates, for a checkpoint."""
        return {"values": self.values.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the estimates of a checkpoint."""
        self.values = state["values"].to(self.values).clone()
