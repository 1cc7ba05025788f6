"""Terms that look at several views at once: clouds of integrated depth, and what two views saw of one place (PMNI)."""

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
"""Length of the mean of the four normals around a place from which on they are of one smooth piece of the surface:
about 28 degrees between two and two. Across creases and contours, what is between pixels is no normal, and its slope
huge."""
ALIKE = 0.7
"""Cosine of the angle between two views' normals from which on they may be of one place: 45 degrees. Poses are never so
wrong; what differs more is a contour that the field does not have yet."""


class ViewTerms:
    """The terms point_cloud, surface and consistency of batches; none is computed without a weight.

    Neighbours of a view are the one before and the one after it, around the ring. A batch looks at its own views'
    rays against their neighbours; over the views of a step every pair is seen from both sides, as in PMNI.

    Args:
        pixels: of the training views.
        options: how terms are formed.

    Attributes:
        scales: of the views' integrated depth: running estimates, in the checkpoint.
    """

    def __init__(self, pixels: Pixels, options: TermOptions) -> None:
        self._pixels = pixels
        self._share = options.point_share
        self.scales = ViewScales(len(pixels), pixels.mask.device)

    def terms(self, weights: Mapping[str, float], model: NormalsModel, rays: Rays, rendered: RenderedRays) -> Terms:
        """Return the terms that have a weight; without any of the three, there are none and nothing is computed.

        Args:
            weights: of the terms that are active.
            model: its field, and the poses that gradients flow to.
            rays: of a micro-batch; how much each term is a mean over is noted in their ``amounts``.
            rendered: what they see.

        Raises:
            ValueError: a term needs integrated depth, and no view has one.
        """
        terms = Terms()
        if not weights.keys() & {"point_cloud", "surface", "consistency"}:
            return terms
        batch = rays.batch.first(rendered.ray_count)
        poses = model.poses()
        amounts = rays.amounts
        if weights.keys() & {"point_cloud", "surface"}:
            clouds = self._clouds
            # Before the points are placed by them. Scales of all ranks' rays stay equal on every rank.
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
        """Return the scales, for a checkpoint."""
        return {"scales": self.scales.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the scales of a checkpoint."""
        self.scales.load_state_dict(state["scales"])

    @cached_property
    def _clouds(self) -> IntegratedClouds:
        return IntegratedClouds(self._pixels, self._share)

    def _depth_points(
        self, batch: RayBatch, poses: Float[Tensor, "views 4 4"]
    ) -> tuple[Float[Tensor, "n 3"], Int64[Tensor, " n"]]:
        """Where the integrated depth of in-mask rays lies, in the frame of the field; gradients to the poses."""
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
        """Mean distance of the points from the nearest ones of both neighbours' clouds, which stay where they are."""
        fixed = poses.detach()
        scales = self.scales.values
        # The empty first entry lets `cat` work where no neighbor was rendered yet; the error of no pairs is 0.
        pairs: list[tuple[Tensor, Tensor, Tensor]] = [(points[:0], points[:0], points[:0, 0] > 0)]
        for neighbours in self._around(view):
            for neighbour in torch.unique(neighbours).tolist():
                if scales[neighbour] <= 0:  # never rendered yet
                    continue
                points_of_pair = points[neighbours == neighbour]
                # Points go into the axes and the scale of the neighbor's cloud, so that its tree is never built again.
                local_points = (
                    _moved(inverse_rigid(fixed[neighbour])[None], points_of_pair.detach()) / scales[neighbour]
                )
                nearest, inner = clouds.nearest(neighbour, local_points)
                pairs.append((points_of_pair, _moved(fixed[neighbour][None], scales[neighbour] * nearest), inner))
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
        """Difference of the normals that a ray's own view and each neighbour saw where the ray meets the surface.

        The place moves with its camera, and where it falls in the neighbour's picture with both: gradients to all of
        both poses, none to the field (PMNI: rotations only, and the weights of samples).
        """
        rows = torch.nonzero(batch.mask & batch.known & (rendered.opacity > SOLID))[:, 0]
        view = batch.view[rows]
        opacity = rendered.opacity[rows].detach()
        pose_of_ray = poses.index_select(0, view)
        distance = (rendered.distance[rows].detach() / opacity)[:, None]
        positions = _moved(pose_of_ray, distance * batch.directions[rows])
        observed = _turned(pose_of_ray, batch.normals[rows])
        others = torch.cat([view[:0], *self._around(view)])
        sides = len(others) // max(len(view), 1)
        observed = observed.repeat(sides, 1)
        opacity = opacity.repeat(sides)
        positions = positions.repeat(sides, 1)
        other_poses = poses.index_select(0, others)
        normals, known = observed_normals(self._pixels, others, _moved(inverse_rigid(other_poses), positions))
        other_normals = _turned(other_poses, normals)
        rows = torch.nonzero(known & ((observed * other_normals).sum(-1).detach() > ALIKE))[:, 0]
        # Sphere tracing is the costly test: it comes last, for the pairs that passed the others.
        rows = rows[visible(model.sdf, positions.detach()[rows], other_poses.detach()[rows, :3, 3])]
        known = torch.zeros_like(known).index_fill(0, rows, value=True)
        amounts["consistency"] = known.sum()
        return view_consistency_error(observed, other_normals, known, opacity)

    def _around(self, view: Int64[Tensor, " n"]) -> list[Int64[Tensor, " n"]]:
        """The next and the previous view around the ring; of two views there is one other, of one view none."""
        count = len(self._pixels)
        steps = (1, -1)[: min(count - 1, 2)]
        return [(view + step) % count for step in steps]


def observed_normals(
    pixels: Pixels, view: Int64[Tensor, " n"], positions: Float[Tensor, "n 3"]
) -> tuple[Float[Tensor, "n 3"], Bool[Tensor, " n"]]:
    """Return the normals that views observed where places fall in their pictures, bilinearly, of length 1.

    Gradients flow to the places. A normal is known where the place is in front of the camera and all four pixels around
    it have one, of one smooth piece of the surface; elsewhere it is 0.

    Args:
        pixels: of the views.
        view: that looks at each place.
        positions: in the axes of that view's camera.

    Returns:
        Normals in the same axes, and whether they are known.
    """
    fx, fy, cx, cy = pixels.lenses[view].unbind(-1)
    ahead = positions[:, 2] > 0
    # A division by 0 in rows that do not count would still make their gradients NaN.
    depth = torch.where(ahead, positions[:, 2], 1)
    # Minus one half: indices of pixels whose centers lie at +0.5.
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
        # Outside, u and v count from pixel 0 and may be huge: cut off here, they cannot overflow on the way back.
        total = total + torch.where(within[:, None], weight, 0) * pixels.normals[coordinates]
        known = known & pixels.known[coordinates]
        mean = mean + 0.25 * pixels.normals[coordinates]
    known = known & (mean.norm(dim=-1) > EVEN)
    # As with the depth: rsqrt(0) would give NaN gradients where nothing is known.
    squared = torch.where(known, total.square().sum(-1), 1)
    return torch.where(known[:, None], total, 0) * squared.rsqrt()[:, None], known


def _off_surface(
    model: NormalsModel, points: Float[Tensor, "n 3"], amounts: dict[str, Tensor | int]
) -> Float[Tensor, ""]:
    """Mean of |f| at points; those outside of the sphere, where there is no field, do not count."""
    values = model.sdf(points[points.detach().norm(dim=-1) < RADIUS])
    amounts["surface"] = len(values)
    return surface_error(values)


def _moved(motions: Float[Tensor, "#n 4 4"], points: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
    """Each point by its own motion."""
    return _turned(motions, points) + motions[:, :3, 3]


def _turned(motions: Float[Tensor, "#n 4 4"], vectors: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
    return (motions[:, :3, :3] @ vectors[:, :, None])[:, :, 0]
