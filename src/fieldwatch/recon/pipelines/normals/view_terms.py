"""Loss terms between views: point clouds of integrated depth, and normals two views observe at one point (PMNI)."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fieldwatch import Terms
from fieldwatch.recon.geometry import inverse_rigid
from fieldwatch.recon.losses import matched_error, surface_error, view_consistency_error
from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import TermOptions
from fieldwatch.recon.pipelines.normals.integrated_clouds import SOLID, IntegratedClouds, ViewScales
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.rays import Rays
from fieldwatch.recon.pipelines.normals.rendering import RADIUS, RenderedRays
from fieldwatch.recon.pipelines.normals.scene import Pixels
from fieldwatch.recon.pipelines.normals.visibility import visible

EVEN = 0.97
"""Minimum length of the mean of four neighboring pixels' normals for them to be on one smooth piece of the surface,
about 28 degrees between two pairs. Across creases and contours, an interpolated normal is invalid, and its slope
huge."""
ALIKE = 0.7
"""Minimum cosine between two views' normals for them to be of the same point: 45 degrees. Pose errors are smaller; a
larger angle means a contour that the field does not reproduce yet."""


class ViewTerms:
    """Computes the terms point_cloud, surface and consistency of a batch, each only if it has a weight.

    The neighbors of a view are the previous and the next one around the ring. A batch compares the rays of its views
    with their neighbors; over the views of a step, every pair is compared from both sides, as in PMNI.

    Args:
        pixels: pixels of the training views.
        options: how terms are computed.

    Attributes:
        scales: running estimates of the scales of the views' integrated depth; part of the checkpoint.
    """

    def __init__(self, pixels: Pixels, options: TermOptions) -> None:
        self._pixels = pixels
        self._share = options.point_share
        self.scales = ViewScales(len(pixels), pixels.mask.device)

    def terms(self, weights: Mapping[str, float], model: NormalsModel, rays: Rays, rendered: RenderedRays) -> Terms:
        """Return the terms that have a weight; without any, nothing is computed.

        Args:
            weights: weights of the active terms.
            model: model with the field and the poses, which receive gradients.
            rays: rays of a micro-batch; the amount that each term is a mean over is stored in their ``amounts``.
            rendered: rendering results of the rays.

        Raises:
            ValueError: a term needs integrated depth, but no view has one.
        """
        terms = Terms()
        if not weights.keys() & {"point_cloud", "surface", "consistency"}:
            return terms
        batch = rendered.rendered_of(rays.batch)
        poses = model.poses()
        amounts = rays.amounts
        if weights.keys() & {"point_cloud", "surface"}:
            clouds = self._clouds
            # Before the points, which use the scales. Observing the rays of all ranks keeps scales equal on each rank.
            self.scales.observe(*rays.rendered_by_all(rendered))
            points, view = self._depth_points(batch, poses)
            if "point_cloud" in weights:
                terms |= Terms(point_cloud=(weights["point_cloud"], self._apart(clouds, points, view, poses, amounts)))
            if "surface" in weights:
                terms |= Terms(surface=(weights["surface"], _off_surface(model, points, amounts)))
        if "consistency" in weights:
            error = self._inconsistency(model, poses, batch, rendered, amounts)
            terms |= Terms(consistency=(weights["consistency"], error))
        return terms

    def state_dict(self) -> dict[str, Any]:
        """Return the scales."""
        return {"scales": self.scales.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the scales."""
        self.scales.load_state_dict(state["scales"])

    @cached_property
    def _clouds(self) -> IntegratedClouds:
        return IntegratedClouds(self._pixels, self._share)

    def _depth_points(
        self, batch: RayBatch, poses: Float[Tensor, "views 4 4"]
    ) -> tuple[Float[Tensor, "n 3"], Int64[Tensor, " n"]]:
        """Return points of integrated depth of rays in the mask, in the field's frame; gradients flow to the poses."""
        scale = self.scales.values[batch.view]
        rows = torch.nonzero(batch.mask & (batch.distance > 0) & (scale > 0))[:, 0]
        local = (scale * batch.distance)[rows, None] * batch.directions[rows]
        return _moved(poses.index_select(0, batch.view[rows]), local), batch.view[rows]

    def _apart(
        self,
        clouds: IntegratedClouds,
        points: Float[Tensor, "n 3"],
        view: Int64[Tensor, " n"],
        poses: Float[Tensor, "views 4 4"],
        amounts: dict[str, Tensor | int],
    ) -> Float[Tensor, ""]:
        """Return the mean distance from points to the nearest points of both neighbors' clouds, which are constants."""
        fixed = poses.detach()
        scales = self.scales.values
        # The empty first entry is for `cat` if no neighbor has been rendered yet; the error of no pairs is 0.
        pairs: list[tuple[Tensor, Tensor, Tensor]] = [(points[:0], points[:0], points[:0, 0] > 0)]
        for neighbors in self._around(view):
            for neighbor in torch.unique(neighbors).tolist():
                if scales[neighbor] <= 0:  # not rendered yet
                    continue
                points_of_pair = points[neighbors == neighbor]
                # Transform the points into the axes and scale of the neighbor's cloud, whose tree is built only once.
                local_points = _moved(inverse_rigid(fixed[neighbor])[None], points_of_pair.detach()) / scales[neighbor]
                nearest, inner = clouds.nearest(neighbor, local_points)
                pairs.append((points_of_pair, _moved(fixed[neighbor][None], scales[neighbor] * nearest), inner))
        points_of_pair, matches, inner = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        amounts["point_cloud"] = inner.sum()
        return matched_error(points_of_pair, matches, inner)

    def _inconsistency(
        self,
        model: NormalsModel,
        poses: Float[Tensor, "views 4 4"],
        batch: RayBatch,
        rendered: RenderedRays,
        amounts: dict[str, Tensor | int],
    ) -> Float[Tensor, ""]:
        """Return the difference between the normals that a ray's view and each neighbor observe at its surface point.

        The point moves with the ray's camera, and its projection into the neighbor's image with both cameras: gradients
        flow to both poses completely, and none to the field (PMNI: to rotations and sample weights only).
        """
        rows = torch.nonzero(batch.mask & batch.known & (rendered.opacity > SOLID))[:, 0]
        view = batch.view[rows]
        opacity = rendered.opacity[rows].detach()
        pose_of_ray = poses.index_select(0, view)
        distance = (rendered.distance[rows].detach() / opacity)[:, None]
        positions = _moved(pose_of_ray, distance * batch.directions[rows])
        observed = _turned(pose_of_ray, batch.normals[rows])
        # The empty first entry is for `cat` with a single view.
        others = torch.cat([view[:0], *self._around(view)])
        sides = len(others) // max(len(view), 1)
        observed = observed.repeat(sides, 1)
        opacity = opacity.repeat(sides)
        positions = positions.repeat(sides, 1)
        other_poses = poses.index_select(0, others)
        normals, known = observed_normals(self._pixels, others, _moved(inverse_rigid(other_poses), positions))
        other_normals = _turned(other_poses, normals)
        # Cheap tests first: a known normal, and normals that may be of the same point.
        rows = torch.nonzero(known & ((observed * other_normals).sum(-1).detach() > ALIKE))[:, 0]
        # Sphere tracing is the expensive test, so it comes last, for the pairs that passed the others.
        rows = rows[visible(model.sdf, positions.detach()[rows], other_poses.detach()[rows, :3, 3])]
        known = torch.zeros_like(known).index_fill(0, rows, value=True)
        amounts["consistency"] = known.sum()
        return view_consistency_error(observed, other_normals, known, opacity)

    def _around(self, view: Int64[Tensor, " n"]) -> list[Int64[Tensor, " n"]]:
        """Return the next and the previous view around the ring; with two views only one, with one view none."""
        count = len(self._pixels)
        # With two views, the next and the previous view are the same.
        steps = (1, -1)[: min(count - 1, 2)]
        return [(view + step) % count for step in steps]


def observed_normals(
    pixels: Pixels, view: Int64[Tensor, " n"], positions: Float[Tensor, "n 3"]
) -> tuple[Float[Tensor, "n 3"], Bool[Tensor, " n"]]:
    """Return the unit normals that views observed at given points, by bilinear interpolation.

    Gradients flow to the points. A normal is known if the point is in front of the camera and all four pixels around
    its projection have a normal, on one smooth piece of the surface; elsewhere it is 0.

    Args:
        pixels: pixels of the views.
        view: index of the view that observes each point.
        positions: points in the axes of that view's camera.

    Returns:
        Normals in the same axes, and whether they are known.
    """
    fx, fy, cx, cy = pixels.lenses[view].unbind(-1)
    ahead = positions[:, 2] > 0
    # Dividing by 0 would make gradients NaN even in rows that are masked out.
    depth = torch.where(ahead, positions[:, 2], 1)
    # Minus 0.5: pixel centers are at +0.5.
    x = fx * positions[:, 0] / depth + cx - 0.5
    y = fy * positions[:, 1] / depth + cy - 0.5
    width = pixels.widths[view]
    height = pixels.heights[view]
    within = ahead & (x >= 0) & (y >= 0) & (x <= width - 1) & (y <= height - 1)
    left, top = (torch.where(within, coordinates.detach(), 0).floor().long() for coordinates in (x, y))
    u = (x - left)[:, None]
    v = (y - top)[:, None]
    total = torch.zeros_like(positions)
    known = within
    mean = torch.zeros_like(positions)
    for down, right, weight in ((0, 0, (1 - u) * (1 - v)), (0, 1, u * (1 - v)), (1, 0, (1 - u) * v), (1, 1, u * v)):
        row = torch.minimum(top + down, height - 1)
        column = torch.minimum(left + right, width - 1)
        coordinates = pixels.offsets[view] + row * width + column
        # Outside, u and v are relative to pixel 0 and may be huge; masked here, they cannot overflow in backward.
        total = total + torch.where(within[:, None], weight, 0) * pixels.normals[coordinates]
        known = known & pixels.known[coordinates]
        mean = mean + 0.25 * pixels.normals[coordinates]
    known = known & (mean.norm(dim=-1) > EVEN)
    # As with the depth, rsqrt(0) would give NaN gradients where the normal is unknown.
    squared = torch.where(known, total.square().sum(-1), 1)
    return torch.where(known[:, None], total, 0) * squared.rsqrt()[:, None], known


def _off_surface(
    model: NormalsModel, points: Float[Tensor, "n 3"], amounts: dict[str, Tensor | int]
) -> Float[Tensor, ""]:
    """Return the mean of |f| at points; points outside the sphere, where the field is undefined, are excluded."""
    values = model.sdf(points[points.detach().norm(dim=-1) < RADIUS])
    amounts["surface"] = len(values)
    return surface_error(values)


def _moved(motions: Float[Tensor, "#n 4 4"], points: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
    """Transform each point by its own rigid motion."""
    return _turned(motions, points) + motions[:, :3, 3]


def _turned(motions: Float[Tensor, "#n 4 4"], vectors: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
    return (motions[:, :3, :3] @ vectors[:, :, None])[:, :, 0]
