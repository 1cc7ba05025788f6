"""Shares of Gaussians that are where no surface is: in front of cameras, in empty space, or seen by a single photo."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.data import read_gaussian_ply
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.render import View, rasterize

VISIBLE = 0.05
"""Opacity above which a Gaussian is counted."""
IN_FRONT = 0.5
"""Fraction of the depth of a view's nearest surface below which a Gaussian stands in front."""
NEAREST = 0.02
"""Quantile of a view's depths that is its nearest surface."""
EMPTY = 0.9
"""Fraction of the true depth below which space is empty."""
SINGLE = 0.9
"""Fraction of a Gaussian's light that falls on one view for it to be seen by that view alone."""
LEAST_LIGHT = 0.5
"""Light from which a Gaussian veils a view, pixels."""
BEYOND = 2.0
"""Depth of pixels that show no surface, as a multiple of the view's largest depth."""


@dataclass(frozen=True, kw_only=True)
class Strays:
    """Numbers of all, of counted and of stray Gaussians; those that need the true depth are None without one."""

    total: int
    count: int
    in_front: int
    floating: int | None
    veiling: int | None

    def share(self, number: int | None) -> str:
        """Return a number as a share of the counted Gaussians."""
        return "-" if number is None else f"{number / max(self.count, 1):.2%}"


def view_of(camera: Camera) -> View:
    """Return the renderer's view of a camera."""
    names = ("fx", "fy", "cx", "cy", "width", "height")
    return View(camera_from_world=camera.camera_from_world.float(), **{name: getattr(camera, name) for name in names})


def strays(
    ply: Path,
    cameras: Sequence[Camera],
    *,
    depths: Float[np.ndarray, "views height width"] | None,
    points: Float[Tensor, "n 3"] | None,
    antialiased: bool,
) -> Strays:
    """Count the stray Gaussians of a trained file.

    Args:
        ply: Gaussians.
        cameras: training cameras.
        depths: true depth of each training view, 0 where there is no surface; None if it is unknown.
        points: points of the reconstruction, used if the depth is unknown.
        antialiased: whether the Gaussians were trained with antialiasing.
    """
    cloud = read_gaussian_ply(ply)
    opacities = cloud.opacity_logits.sigmoid()
    counted = opacities > VISIBLE
    in_front = torch.zeros_like(counted)
    light = torch.zeros(len(cameras), len(cloud))
    early = torch.zeros(len(cameras), len(cloud), dtype=torch.bool)
    for row, camera in enumerate(cameras):
        view = view_of(camera)
        if depths is not None:
            truth = torch.from_numpy(depths[row])
            surface = truth[truth > 0]
        else:
            surface = _depths_inside(points, view)
            truth = None
        pixels, depth, inside = _projected(cloud.means, view)
        nearest = float(surface.quantile(NEAREST))
        in_front |= inside & (depth < IN_FRONT * nearest)
        if truth is None:
            continue
        # At silhouettes, the nearest surface of the neighboring pixels counts.
        filled = torch.where(truth > 0, truth, BEYOND * surface.max())
        nearby = -torch.nn.functional.max_pool2d(-filled[None], 3, stride=1, padding=1)[0]
        early[row] = inside & (depth < EMPTY * nearby[pixels[:, 1], pixels[:, 0]])
        ones = torch.ones(len(cloud), 1, requires_grad=True)
        output = rasterize(
            cloud.means,
            cloud.quaternions,
            cloud.log_scales.exp(),
            opacities,
            view,
            features=ones,
            antialiased=antialiased,
        )
        light[row] = torch.autograd.grad(output.features.sum(), ones)[0][:, 0]
    if depths is None:
        return Strays(
            total=len(cloud),
            count=int(counted.sum()),
            in_front=int((in_front & counted).sum()),
            floating=None,
            veiling=None,
        )
    most, view_index = light.max(0)
    single = (most > SINGLE * light.sum(0)) & (most > LEAST_LIGHT)
    veiling = single & early.gather(0, view_index[None])[0]
    floating = early.sum(0) >= 2
    return Strays(
        total=len(cloud),
        count=int(counted.sum()),
        in_front=int((in_front & counted).sum()),
        floating=int((floating & counted).sum()),
        veiling=int((veiling & counted).sum()),
    )


def _depths_inside(points: Float[Tensor, "n 3"] | None, view: View) -> Float[Tensor, " inside"]:
    if points is None:
        raise ValueError("expected points of the reconstruction where the true depth is unknown, got None")
    _, depth, inside = _projected(points, view)
    return depth[inside]


def _projected(means: Float[Tensor, "n 3"], view: View) -> tuple[Tensor, Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Return the pixels (column, row) of centers, their depths, and whether they are inside the photo."""
    local = means @ view.rotation.T + view.camera_from_world[:3, 3]
    depth = local[:, 2]
    x = local[:, 0] / depth * view.fx + view.cx
    y = local[:, 1] / depth * view.fy + view.cy
    inside = (depth > view.near) & (x >= 0) & (y >= 0) & (x < view.width) & (y < view.height)
    pixels = torch.where(inside[:, None], torch.stack([x, y], 1), 0).long()
    return pixels, depth, inside
