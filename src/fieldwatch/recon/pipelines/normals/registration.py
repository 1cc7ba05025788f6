"""Registration of a new view of a trained object: its camera pose, and how certain the pose is.

All directions and rolls are compared coarsely (`registration_search`), and the best distinct poses are refined
(`registration_refine`). The result is the best pose and the best pose that differs from it: if that is nearly as good,
the object looks alike from both, and the view cannot tell them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.data import NormalView, scaled_normal_view
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.normals.config import RenderOptions
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.registration_refine import refine_pose
from fieldwatch.recon.pipelines.normals.registration_search import PoseCandidate, find_poses, rotation_between
from fieldwatch.recon.pipelines.normals.registration_shape import Shape, filled
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.view_errors import ViewComparison
from fieldwatch.recon.pipelines.normals.views import render_view
from fieldwatch.recon.pipelines.normals.world import pose_in_world

_SPREAD = 2.0
"""Minimum rotation between coarse poses, in multiples of `distinct`; closer ones would converge to the same pose."""


@dataclass(frozen=True, kw_only=True)
class RegistrationOptions:
    """Options of the pose search.

    Attributes:
        cells: mesh cells along a side of the field's box.
        directions: number of viewing directions.
        rolls: number of rolls per direction.
        window: width and height of the compared images in pixels.
        candidates: number of poses to refine.
        finalists: number of distinct poses to refine at the finest resolution.
        distinct: minimum angle between the rotations of distinct poses, in degrees.
        coarse: longer image side of the first refinement, in pixels.
        fine: longer image side of the last refinement, in pixels.
        steps: maximum number of steps per refinement.
        most_error: mean angular error above which the view does not fit, in degrees.
        least_iou: silhouette IoU below which the view does not fit.

    Raises:
        InputError: a value is out of its bounds.
    """

    cells: int = 64
    directions: int = 400
    rolls: int = 36
    window: int = 36
    candidates: int = 8
    finalists: int = 3
    distinct: float = 20.0
    coarse: int = 56
    fine: int = 160
    steps: int = 16
    most_error: float = 15.0
    least_iou: float = 0.85

    def __post_init__(self) -> None:
        """Check the bounds."""
        least = {"cells": 8, "directions": 4, "rolls": 1, "window": 8, "candidates": 1, "finalists": 1, "coarse": 8}
        least |= {"fine": 8, "steps": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise InputError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        if not (0 < self.distinct < 180 and 0 < self.most_error <= 180 and 0 <= self.least_iou <= 1):
            raise InputError(
                "distinct and most_error must be degrees greater than 0 and at most 180, least_iou must be in [0, 1]; "
                f"got distinct {self.distinct:g}, most_error {self.most_error:g}, least_iou {self.least_iou:g}"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Registration:
    """Estimated camera pose of a view.

    Attributes:
        comparison: the observed view, the surface rendered from the estimated pose, and the angles between their
            normals, on the host.
        best: best pose and its score, in the frame of the scene's sphere.
        runner_up: best pose that differs from it by `distinct` degrees or more; None if all candidates converged to the
            same pose.
        options: options of the search.
    """

    comparison: ViewComparison
    best: PoseCandidate
    runner_up: PoseCandidate | None
    options: RegistrationOptions

    @property
    def camera(self) -> Camera:
        """Camera in the frame of the scene's sphere."""
        return self.comparison.view.camera

    @property
    def fits(self) -> bool:
        """Whether the surface explains the view; otherwise the view shows another object, or the lens is wrong."""
        error = self.comparison.error
        limits = self.options
        # No angle at all means that nothing overlaps.
        return error.mae is not None and error.mae <= limits.most_error and self.iou >= limits.least_iou

    @property
    def ambiguous(self) -> bool:
        """Whether another pose explains the view nearly as well: by score, within 1 degree plus a tenth."""
        # The margin grows with the score: for a bad fit, small differences mean less.
        return self.runner_up is not None and self.runner_up.score - self.best.score < 1 + 0.1 * self.best.score

    @property
    def iou(self) -> float:
        """IoU of the silhouettes, excluding holes of the mask, which may be tunnels or defects."""
        mask = self.comparison.view.mask
        rendered_mask = self.comparison.rendered.mask
        filled_mask = filled(mask)
        # Everything except the holes.
        counts = mask | ~filled_mask
        return float(
            (filled_mask & rendered_mask & counts).sum() / ((filled_mask | rendered_mask) & counts).sum().clamp_min(1)
        )

    @property
    def completed(self) -> Float32[Tensor, "height width 3"]:
        """Normals in OpenCV camera axes: observed if available, else rendered from the surface, else 0."""
        view = self.comparison.view
        return torch.where(view.valid[..., None], view.normals, self.comparison.rendered.camera_normals.float())

    @property
    def added(self) -> Bool[Tensor, "height width"]:
        """Pixels of `completed` that were rendered from the surface."""
        return self.comparison.rendered.mask & ~self.comparison.view.valid

    def world_from_camera(self, scene: NormalsScene) -> Float64[Tensor, "4 4"]:
        """Return the pose in the world frame of the run's meshes."""
        return pose_in_world(self.best.pose, scene)

    def figures(self) -> dict[str, Any]:
        """Return measures of the fit, as plain values for a file."""
        error = self.comparison.error
        rival = self.runner_up
        return {
            "mae": error.mae,
            "median": error.median,
            "below_5": error.below_5,
            "below_11_25": error.below_11_25,
            "missed": error.missed,
            "iou": self.iou,
            "pixels": error.pixels,
            "completed_pixels": int(self.added.sum()),
            "score": self.best.score,
            "rival_score": None if rival is None else rival.score,
            "rival_rotation": None if rival is None else rotation_between(self.best.pose, rival.pose),
            "rival_unit_from_camera": None if rival is None else rival.pose.tolist(),
            "fits": self.fits,
            "ambiguous": self.ambiguous,
            "most_error": self.options.most_error,
            "least_iou": self.options.least_iou,
        }


def register_view(
    model: NormalsModel,
    view: NormalView,
    rendering: RenderOptions,
    *,
    options: RegistrationOptions | None = None,
) -> Registration:
    """Estimate the camera pose of a view of the trained surface, deterministically and without training.

    PMNI has no counterpart: it optimizes poses along with the surface, from an initial pose that is nearly right. Here
    the surface is known and the pose is unknown. The image must show the whole object; holes in the mask are allowed.

    Args:
        model: trained model.
        view: observed view with a known lens; the pose of its camera is ignored.
        rendering: rendering options of the run.
        options: options of the search.

    Returns:
        The best pose, whether or not the view fits there: check `fits` and `ambiguous`.

    Raises:
        InputError: the mask is empty, it has no known normal, or there is no surface.
        MeshError: the field is not finite somewhere.
    """
    options = options or RegistrationOptions()
    _refuse_empty(view)
    shape = Shape(model, options.cells)
    candidates = find_poses(
        shape,
        view,
        directions=options.directions,
        rolls=options.rolls,
        window=options.window,
        wanted=options.candidates,
        distinct=_SPREAD * options.distinct,
    )
    if not candidates:
        raise InputError(
            f"view {view.name!r}: the surface is not visible from any direction with this lens: check fx, fy, cx, cy"
        )
    # The score of the refinement uses the mesh; the final comparison renders the field like an evaluation.
    ranked = _refined(shape, view, candidates, options)
    best = ranked[0]
    others = (other for other in ranked[1:] if rotation_between(other.pose, best.pose) >= options.distinct)
    placed_view = replace(view, camera=replace(view.camera, world_from_camera=best.pose))
    rendered = render_view(model, placed_view.camera, rendering, rendering.last_step)
    return Registration(
        comparison=ViewComparison.of(-1, placed_view, rendered, "held_out"),
        best=best,
        runner_up=next(others, None),
        options=options,
    )


def _refined(
    shape: Shape, view: NormalView, candidates: Sequence[PoseCandidate], options: RegistrationOptions
) -> list[PoseCandidate]:
    """Refine all poses in a small image and distinct ones in a large image; return the distinct poses, best first."""
    # Coarse to fine: most candidates are rejected at the small size, which is cheap.
    small, large = (_within(view, side) for side in (options.coarse, options.fine))
    rough = sorted(
        (refine_pose(shape, small, candidate.pose, options.steps) for candidate in candidates),
        key=lambda candidate: candidate.score,
    )
    distinct_poses = list[PoseCandidate]()
    for start in rough:
        if len(distinct_poses) == options.finalists:
            break
        # It would converge to the same pose, and the fine refinement is the expensive one.
        if _near(start, distinct_poses, options.distinct) is not None:
            continue
        end = refine_pose(shape, large, start.pose, options.steps)
        # Distinct starts may still converge to the same pose; keep the better one.
        same = _near(end, distinct_poses, options.distinct)
        if same is None:
            distinct_poses.append(end)
        elif end.score < distinct_poses[same].score:
            distinct_poses[same] = end
    return sorted(distinct_poses, key=lambda candidate: candidate.score)


def _near(candidate: PoseCandidate, distinct_poses: Sequence[PoseCandidate], distinct: float) -> int | None:
    """Return the index of the first pose that is not distinct from the candidate."""
    near = (i for i, other in enumerate(distinct_poses) if rotation_between(candidate.pose, other.pose) < distinct)
    return next(near, None)


def _within(view: NormalView, side: int) -> NormalView:
    factor = side / max(view.size)
    # Never enlarged: that would add pixels, but no information.
    return view if factor >= 1 else scaled_normal_view(view, factor)


def _refuse_empty(view: NormalView) -> None:
    if not bool(view.mask.any()):
        raise InputError(f"view {view.name!r} has an empty mask, so the object cannot be located: give another mask")
    if not bool(view.valid.any()):
        raise InputError(
            f"view {view.name!r} has no normal at any of the {int(view.mask.sum())} pixels of its mask: check that "
            "map and mask belong together"
        )
