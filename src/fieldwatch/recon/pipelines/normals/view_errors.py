"""What is wrong with one rendered view: angles between normals, the silhouette, the distance."""

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
"""Degrees below which a normal counts as right; those of most papers."""


@dataclass(frozen=True, kw_only=True)
class ViewError:
    """Errors of one view. None where there is nothing to measure.

    Attributes:
        name: of the view.
        split: whether it was trained on.
        mae: mean angle between rendered and observed normals, degrees, over pixels that are in the mask, have an
            observed normal and are seen (the intersection, as PS-NeRF has it; within it SuperNormal's measure).
        median: of those angles.
        below_5: share of them below 5 degrees.
        below_11_25: share of them below 11.25 degrees.
        missed: share of the pixels of the mask that are not seen.
        iou: of the mask and the silhouette that is seen, in [0, 1].
        depth_error: mean difference from the known depth, after one scale per view (the median of their ratios), units
            of the scene's sphere.
        pixels: that the angles were taken at.
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
        """Return one row of a table; nothing where there is nothing to measure."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewComparison:
    """One view as the model sees it, beside what was observed; all on the host.

    Attributes:
        number: of the view in the scene.
        view: what was observed.
        rendered: what the model shows from where it takes the camera to be.
        angles: between the two normals, degrees; NaN where one is missing.
        error: the figures.
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
            number: of the view in the scene.
            view: what was observed.
            rendered: what the model shows, on any device.
            split: whether the view was trained on.
        """
        names = ("opacity", "normals", "camera_normals", "distance", "depth")
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
    """Return the angles between unit vectors, degrees: acos of their product, without its rounding near 0."""
    return torch.rad2deg(2 * torch.asin((0.5 * (first - second).norm(dim=-1)).clamp_max(1)))


def angle_statistics(angles: Float[Tensor, " n"]) -> dict[str, float]:
    """Return mean, median and shares of angles, degrees; nothing for none."""
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
    """1 of 0 for a union of nothing would flatter: an empty mask that nothing is seen of gives 0."""
    return float(part.sum() / whole.sum().clamp_min(1))


def _depth_error(view: NormalView, rendered: RenderedSurface) -> float | None:
    if view.depth is None:
        return None
    both = view.mask & rendered.mask & (view.depth > 0)
    if not bool(both.any()):
        return None
    known = view.depth[both].double()
    rendered_depth = rendered.depth[both].double()
    # The median, because a mean ratio would follow the few pixels at jumps of depth.
    return float(((rendered_depth / known).median() * known - rendered_depth).abs().mean())
