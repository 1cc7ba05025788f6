"""The visual hull of masks: every place that all cameras see inside their silhouettes."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.model import NormalView


class Hull(NamedTuple):
    """Cells of a cube around the origin, and which of them are inside."""

    inside: Bool[Tensor, "n n n"]
    half: float

    @property
    def cell(self) -> float:
        """Width of a cell."""
        return 2 * self.half / len(self.inside)

    def centres(self, cells: Bool[Tensor, "n n n"]) -> Float[Tensor, "cells 3"]:
        """Return the centres of some cells."""
        return (cells.nonzero().double() + 0.5) * self.cell - self.half

    def surface(self) -> Bool[Tensor, "n n n"]:
        """Return the cells inside that have a face to the outside."""
        return self.inside & ~torch.from_numpy(ndimage.binary_erosion(self.inside.numpy()))

    def dilated(self) -> "Hull":
        """Return the hull with one more layer of cells, corners included."""
        inside = ndimage.binary_dilation(self.inside.numpy(), ndimage.generate_binary_structure(3, 3))
        return self._replace(inside=torch.from_numpy(inside))

    def contains(self, points: Float[Tensor, "*k 3"]) -> Bool[Tensor, "*k"]:
        """Tell which points are in a cell that is inside."""
        count = len(self.inside)
        cells = ((points + self.half) / self.cell).floor().long()
        in_grid = ((cells >= 0) & (cells < count)).all(-1)
        # Clamped so that points outside index something; `in_grid` masks them.
        x, y, z = cells.clamp(0, count - 1).unbind(-1)
        return in_grid & self.inside[x, y, z]


def visual_hull(views: Sequence[NormalView], *, cells: int = 72, half: float = 1.5) -> Hull:
    """Carve a cube by all masks; what a picture does not show is outside.

    A cell stays if its centre falls into every mask, so that the hull may be half a cell too small.
    """
    hull = Hull(torch.ones(cells, cells, cells, dtype=torch.bool), half)
    remaining = hull.centres(hull.inside)
    for view in views:
        remaining = remaining[sample_view(view, remaining)[0]]
    inside = torch.zeros_like(hull.inside)
    x, y, z = ((remaining + half) / hull.cell).floor().long().unbind(-1)
    inside[x, y, z] = True
    return hull._replace(inside=inside)


def sample_view(
    view: NormalView, points: Float[Tensor, "k 3"]
) -> tuple[Bool[Tensor, "k"], Float[Tensor, "k 3"], Float[Tensor, "k"]]:
    """Return where points fall into a view's mask, the normals there in the camera's axes, and the points' depth."""
    pixels, depth = view.camera.project(points)
    height, width = view.size
    in_picture = (depth > 0) & (pixels >= 0).all(-1) & (pixels[:, 0] < width) & (pixels[:, 1] < height)
    # huge values behind the camera must not be cast to whole numbers
    column, row = torch.where(in_picture[:, None], pixels, torch.zeros_like(pixels)).floor().long().unbind(-1)
    return in_picture & view.mask[row, column], view.normals[row, column].to(points), depth
