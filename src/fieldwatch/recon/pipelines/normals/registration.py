"""A new view of an object whose surface is trained: where it was taken from, and how sure that is.

All directions and rolls are compared roughly (`registration_search`), the best ones that are apart are made exact
(`registration_refine`), and the best of them is told, together with the best one that is another pose: where that is
nearly as good, the object looks alike from both sides, and no picture tells them apart.
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
"""Times `distinct`: how far rough poses are apart; nearer ones would come to the same place."""


@dataclass(frozen=True, kw_only=True)
class RegistrationOptions:
    """How a view is looked for.

    Attributes:
        cells: of the mesh, along a side of the field's box.
        directions: from which the surface is looked at.
        rolls: of each direction.
        window: pixels of the compared pictures, each way.
        candidates: poses that are made more exact.
        finalists: different poses that are made exact in the finest picture.
        distinct: degrees between rotations from which on two poses are different ones.
        coarse: longer side of the first picture that poses are refined in, pixels.
        fine: of the last one.
        steps: of a refinement, at most, in each picture.
        most_error: mean angular error above which the view does not fit, degrees.
        least_iou: IoU of the silhouettes below which it does not.

    Raises:
        InputError: a number that makes no sense.
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
        """Refuse what cannot be looked for."""
        least = {"cells": 8, "directions": 4, "rolls": 1, "window": 8, "candidates": 1, "finalists": 1, "coarse": 8}
        least |= {"fine": 8, "steps": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise InputError(f"{name} is {getattr(self, name)}: wanted at least {bound}")
        if not (0 < self.distinct < 180 and 0 < self.most_error <= 180 and 0 <= self.least_iou <= 1):
            raise InputError(
                f"distinct is {self.distinct:g}, most_error {self.most_error:g} and least_iou {self.least_iou:g}: "
                "wanted are degrees above 0, at most 180, and a share from 0 to 1"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Registration:
    """Where a view was taken from.

    Attributes:
        comparison: what was observed, what the surface shows from there, and the angle between them, on the host.
        best: the pose that was found, in the frame of the scene's sphere, and its score.
        runner_up: the best pose that is another one (by `distinct` degrees or more); None where all that were tried
            came to the same place.
        options: how it was looked for.
    """

    comparison: ViewComparison
    best: PoseCandidate
    runner_up: PoseCandidate | None
    options: RegistrationOptions

    @property
    def camera(self) -> Camera:
        """The camera, in the frame of the scene's sphere."""
        return self.comparison.view.camera

    @property
    def fits(self) -> bool:
        """Whether the surface explains the view: otherwise it shows another object, or the lens is wrong."""
        error = self.comparison.error
        limits = self.options
        return error.mae is not None and error.mae <= limits.most_error and self.iou >= limits.least_iou

    @property
    def ambiguous(self) -> bool:
        """Whether another pose explains the view nearly as well: within a degree and a tenth."""
        return self.runner_up is not None and self.runner_up.score - self.best.score < 1 + 0.1 * self.best.score

    @property
    def iou(self) -> float:
        """IoU of the silhouettes; pixels in holes of the mask do not count, they may be tunnels or damages."""
        mask = self.comparison.view.mask
        rendered_mask = self.comparison.rendered.mask
        filled_mask = filled(mask)
        counts = mask | ~filled_mask
        return float(
            (filled_mask & rendered_mask & counts).sum() / ((filled_mask | rendered_mask) & counts).sum().clamp_min(1)
        )

    @property
    def completed(self) -> Float32[Tensor, "height width 3"]:
        """Normals in OpenCV camera axes: observed where there is one, else what the surface shows, else 0."""
        view = self.comparison.view
        return torch.where(view.valid[..., None], view.normals, self.comparison.rendered.camera_normals.float())

    @property
    def added(self) -> Bool[Tensor, "height width"]:
        """Pixels that `completed` has from the surface."""
        return self.comparison.rendered.mask & ~self.comparison.view.valid

    def world_from_camera(self, scene: NormalsScene) -> Float64[Tensor, "4 4"]:
        """Return the pose in the world of the run's meshes."""
        return pose_in_world(self.best.pose, scene)

    def figures(self) -> dict[str, Any]:
        """Return what tells how good the fit is, as plain values for a file."""
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
    """Find where a view of the trained surface was taken from. Nothing is trained, nothing random is drawn.

    PMNI has no such thing: it optimises poses along with the surface, from a start that is nearly right. Here the
    surface is known and the pose is not at all. The whole object must be in the picture; holes in the mask do no harm.

    Args:
        model: what was trained.
        view: what was observed, through a known lens; the pose of its camera means nothing.
        rendering: how the surface is rendered, from the run's config.
        options: how it is looked for.

    Returns:
        The best pose, whether the surface fits the view there or not: ask `fits` and `ambiguous`.

    Raises:
        InputError: the mask is empty, no normal is known in it, or there is no surface.
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
            f"view {view.name!r}: the surface is not seen from any direction through this lens: check fx, fy, cx, cy"
        )
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
    """Make poses exact, first all in a small picture; return those that came to different places, the best first."""
    small, large = (_within(view, side) for side in (options.coarse, options.fine))
    rough = sorted(
        (refine_pose(shape, small, candidate.pose, options.steps) for candidate in candidates),
        key=lambda candidate: candidate.score,
    )
    distinct_poses = list[PoseCandidate]()
    for start in rough:
        if len(distinct_poses) == options.finalists:
            break
        # It would come to the same place: the fine picture is the costly one.
        if _near(start, distinct_poses, options.distinct) is not None:
            continue
        end = refine_pose(shape, large, start.pose, options.steps)
        # Starts that were apart may still come to one place; the better end stays.
        same = _near(end, distinct_poses, options.distinct)
        if same is None:
            distinct_poses.append(end)
        elif end.score < distinct_poses[same].score:
            distinct_poses[same] = end
    return sorted(distinct_poses, key=lambda candidate: candidate.score)


def _near(candidate: PoseCandidate, distinct_poses: Sequence[PoseCandidate], distinct: float) -> int | None:
    """Return the number of the first place that is no other than this one."""
    near = (i for i, other in enumerate(distinct_poses) if rotation_between(candidate.pose, other.pose) < distinct)
    return next(near, None)


def _within(view: NormalView, side: int) -> NormalView:
    factor = side / max(view.size)
    return view if factor >= 1 else scaled_normal_view(view, factor)


def _refuse_empty(view: NormalView) -> None:
    if not bool(view.mask.any()):
        raise InputError(
            f"view {view.name!r}: its mask is empty, so nothing tells where the object is: give another mask"
        )
    if not bool(view.valid.any()):
        raise InputError(
            f"view {view.name!r}: no pixel of its mask ({int(view.mask.sum())} pixels) has a normal: check that map "
            "and mask belong together"
        )
