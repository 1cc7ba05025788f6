"""Errors of a rendered view: angles between normals, silhouette, depth."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data import NormalView
from fieldwatch.recon.pipelines.normals.views import RenderedSurface

Split = Literal["train", "held_out"]
NEAR = 5.0
NEARLY = 11.25
"""Angles in degrees below which normals count as correct, as in most papers."""


@dataclass(frozen=True, kw_only=True)
class ViewError:
    """Errors of a view. Values that cannot be measured are None.

    Attributes:
        name: name of the view.
        split: whether the view is a training or a held-out view.
        mae: mean angle between rendered and observed normals, in degrees, over pixels of the mask that have an observed
            normal and a rendered surface (the intersection, as in PS-NeRF; within it SuperNormal's measure).
        median: median of these angles.
        below_5: fraction of these angles below 5 degrees.
        below_11_25: fraction of these angles below 11.25 degrees.
        missed: fraction of the mask's pixels without a rendered surface.
        iou: intersection over union of mask and rendered silhouette, in [0, 1].
        depth_error: mean difference from the known depth after fitting one scale per view (the median of their ratios),
            in units of the scene's sphere.
        pixels: number of pixels at which angles were measured.
    """

    name: str
    split: Split
    mae: float | None
    median: float | None
    below_5: float | None
    below_11_25: float | None
    missed: float
    iou: float
    depth_error: float | None
    pixels: int

    def row(self) -> dict[str, Any]:
        """Return a row of a table, with None for values that cannot be measured."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewComparison:
    """A rendered view and its observation, on the host.

    Attributes:
        number: index of the view in the scene.
        view: observed view.
        rendered: rendering from the camera's assumed pose.
        angles: angles between the two normals in degrees; NaN where one is missing.
        error: errors of the view.
    """

    number: int
    view: NormalView
    rendered: RenderedSurface
    angles: Float[Tensor, "height width"]
    error: ViewError

    @classmethod
    def of(cls, number: int, view: NormalView, rendered: RenderedSurface, split: Split) -> "ViewComparison":
        """Measure a view.

        Args:
            number: index of the view in the scene.
            view: observed view.
            rendered: rendered view, on any device.
            split: whether the view is a training or a held-out view.
        """
        names = ("opacity", "normals", "camera_normals", "distance", "depth")
        # On the host, where the angles of all views are collected.
        rendered = RenderedSurface(**{name: getattr(rendered, name).cpu() for name in names})
        both = view.valid & rendered.mask
        angles = torch.full(view.size, torch.nan)
        angles[both] = angles_between(rendered.camera_normals[both], view.normals[both])
        angles_of_both = angles[both]
        error = ViewError(
            name=view.name,
            split=split,
            **_spread(angles_of_both),
            missed=_share(view.mask & ~rendered.mask, view.mask),
            iou=_share(view.mask & rendered.mask, view.mask | rendered.mask),
            depth_error=_depth_error(view, rendered),
            pixels=len(angles_of_both),
        )
        return cls(number=number, view=view, rendered=rendered, angles=angles, error=error)


def angles_between(first: Float[Tensor, "n 3"], second: Float[Tensor, "n 3"]) -> Float[Tensor, " n"]:
    """Return the angles between unit vectors in degrees; unlike acos of the dot product, accurate near 0."""
    # |a - b| = 2 sin(angle / 2) for unit vectors.
    return torch.rad2deg(2 * torch.asin((0.5 * (first - second).norm(dim=-1)).clamp_max(1)))


def angle_statistics(angles: Float[Tensor, " n"]) -> dict[str, float]:
    """Return mean, median and fractions of angles in degrees; empty if there are no angles."""
    if not len(angles):
        return {}
    return {
        "mae": float(angles.double().mean()),
        "median": float(angles.median()),
        "below_5": float((angles < NEAR).double().mean()),
        "below_11_25": float((angles < NEARLY).double().mean()),
    }


def _spread(angles: Tensor) -> dict[str, Any]:
    return dict.fromkeys(("mae", "median", "below_5", "below_11_25")) | angle_statistics(angles)


def _share(part: Tensor, whole: Tensor) -> float:
    """Return the fraction; 0 for an empty whole, since 1 would reward an empty mask that is correctly not rendered."""
    return float(part.sum() / whole.sum().clamp_min(1))


def _depth_error(view: NormalView, rendered: RenderedSurface) -> float | None:
    if view.depth is None:
        return None
    # Depth 0 means unknown.
    both = view.mask & rendered.mask & (view.depth > 0)
    if not bool(both.any()):
        return None
    known = view.depth[both].double()
    rendered_depth = rendered.depth[both].double()
    # The median, because the mean ratio would be dominated by the few pixels at depth discontinuities.
    return float(((rendered_depth / known).median() * known - rendered_depth).abs().mean())
