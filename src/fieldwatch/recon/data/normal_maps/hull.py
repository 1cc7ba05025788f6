"""Visual hull of masks: the points that project into the silhouettes of all views."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.model import NormalView


class Hull(NamedTuple):
    """A hull as occupied cells of a cube around the origin; `half` is half the side of the cube."""

    inside: Bool[Tensor, "n n n"]
    half: float

    @property
    def cell(self) -> float:
        """Width of a cell."""
        return 2 * self.half / len(self.inside)

    def centers(self, cells: Bool[Tensor, "n n n"]) -> Float[Tensor, "cells 3"]:
        """Return the centers of the selected cells."""
        return (cells.nonzero().double() + 0.5) * self.cell - self.half

    def surface(self) -> Bool[Tensor, "n n n"]:
        """Return the occupied cells that have an empty neighbor across a face."""
        return self.inside & ~torch.from_numpy(ndimage.binary_erosion(self.inside.numpy()))

    def dilated(self) -> "Hull":
        """Return the hull dilated by one layer of cells, including diagonal neighbors."""
        inside = ndimage.binary_dilation(self.inside.numpy(), ndimage.generate_binary_structure(3, 3))
        return self._replace(inside=torch.from_numpy(inside))

    def contains(self, points: Float[Tensor, "*k 3"]) -> Bool[Tensor, "*k"]:
        """Return which points lie in occupied cells."""
        count = len(self.inside)
        cells = ((points + self.half) / self.cell).floor().long()
        in_grid = ((cells >= 0) & (cells < count)).all(-1)
        # Clamping gives points outside a valid index; `in_grid` masks them.
        x, y, z = cells.clamp(0, count - 1).unbind(-1)
        return in_grid & self.inside[x, y, z]


def visual_hull(views: Sequence[NormalView], *, cells: int = 72, half: float = 1.5) -> Hull:
    """Carve a cube with all masks; points that project outside an image are removed.

    A cell is kept if its center projects into every mask, so the hull may be half a cell too small.
    """
    hull = Hull(torch.ones(cells, cells, cells, dtype=torch.bool), half)
    remaining = hull.centers(hull.inside)
    # Each view only tests the cells that all previous views have kept.
    for view in views:
        remaining = remaining[sample_view(view, remaining)[0]]
    inside = torch.zeros_like(hull.inside)
    x, y, z = ((remaining + half) / hull.cell).floor().long().unbind(-1)
    inside[x, y, z] = True
    return hull._replace(inside=inside)


def sample_view(
    view: NormalView, points: Float[Tensor, "k 3"]
) -> tuple[Bool[Tensor, "k"], Float[Tensor, "k 3"], Float[Tensor, "k"]]:
    """Return which points project into a view's mask, the normals there in camera axes, and the points' depths."""
    pixels, depth = view.camera.project(points)
    height, width = view.size
    in_picture = (depth > 0) & (pixels >= 0).all(-1) & (pixels[:, 0] < width) & (pixels[:, 1] < height)
    # Points in the camera plane project to huge values, whose conversion to integers is undefined.
    column, row = torch.where(in_picture[:, None], pixels, torch.zeros_like(pixels)).floor().long().unbind(-1)
    return in_picture & view.mask[row, column], view.normals[row, column].to(points), depth
