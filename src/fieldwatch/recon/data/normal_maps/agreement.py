"""How well normals agree: with the outlines of their masks, and across views."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.hull import Hull, sampled
from fieldwatch.recon.data.normal_maps.model import NormalView

Turn = Callable[[NormalView, Float[Tensor, "n 3"]], Float[Tensor, "n 3"]]
"""A guess at what the vectors in the files are: what it makes of them in the camera's axes."""

_BLUR = 1.5  # pixels
_FLAT = 0.3  # a normal with less in the image plane says nothing about its direction there
_GRAZING = 0.5  # a normal with a smaller cosine to its ray moves too much from pixel to pixel to be compared
_APART = math.cos(math.radians(65))  # views further apart see little of the same; the hull is not the surface
_FEWEST = 30


def as_read(view: NormalView, normals: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
    """Take the vectors as they are."""
    del view
    return normals


def from_world(*signs: float) -> Turn:
    """Take the vectors, with some components negated while reading, for directions in the world."""

    def turned(view: NormalView, normals: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
        rotation = view.camera.world_from_camera[:3, :3].double()
        return normals.double() * torch.tensor(signs, dtype=torch.float64) @ rotation

    return turned


def flipped(*signs: float) -> Turn:
    """Take some components for negated."""
    return lambda view, normals: normals * torch.tensor(signs).to(normals)  # noqa: ARG005 - one view is like another


def outward_share(views: Sequence[NormalView], turn: Turn = as_read) -> tuple[float, float] | None:
    """Return how far normals at the outlines of the masks face outwards: the mean of x and of y, products of units.

    A smooth surface turns away from the camera at its outline, and its normal there lies across the outline: the two
    means are then near 0.5 and add up to nearly 1. A negative one tells of a component with the wrong sign. None if
    too few pixels tell.
    """
    parts = [torch.zeros(0, 2, dtype=torch.float64)]
    for view in views:
        edge, outwards = _outline(view.mask)
        edge &= view.known
        normals = turn(view, view.normals[edge])[:, :2].double()
        length = normals.norm(dim=-1)
        told = length > _FLAT
        parts.append((normals / length[:, None])[told] * outwards[edge][told])
    means = torch.cat(parts)
    return (float(means[:, 0].mean()), float(means[:, 1].mean())) if len(means) >= _FEWEST else None


def _outline(mask: Bool[Tensor, "h w"]) -> tuple[Bool[Tensor, "h w"], Float[Tensor, "h w 2"]]:
    """Return the pixels just within a mask's outline (not along the picture's edge), and unit vectors out of it."""
    array = mask.numpy()
    edge = array & ~np.asarray(ndimage.binary_erosion(array, border_value=1), np.bool_)
    blurred = ndimage.gaussian_filter(array.astype(float), _BLUR, mode="nearest")
    down, across = (torch.from_numpy(ndimage.sobel(blurred, axis)) for axis in (0, 1))
    outwards = -torch.stack([across, down], -1)
    length = outwards.norm(dim=-1, keepdim=True)
    return torch.from_numpy(edge) & (length[..., 0] > 1e-6), outwards / length.clamp_min(1e-6)


def median_disagreement(views: Sequence[NormalView], hull: Hull, turn: Turn = as_read) -> float | None:
    """Return the median angle, in degrees, between the normals that two views show at the same place of the hull.

    Only views less than 65 degrees apart are compared. The hull is not the surface: a healthy set has some ten
    degrees, wrong poses or axes 40 and more. None if no two views see enough of the same.
    """
    points = hull.centres(hull.surface())
    if not len(points):
        return None
    shown = [_shown(view, points, hull.cell, turn) for view in views]
    angles = [torch.zeros(0, dtype=torch.float64)]
    for one, other in combinations(range(len(views)), 2):
        if float(views[one].camera.forward @ views[other].camera.forward) < _APART:
            continue
        seen, normals = shown[one]
        also, others = shown[other]
        both = seen & also
        angles.append((normals[both] * others[both]).sum(-1).clamp(-1, 1).acos())
    every = torch.cat(angles)
    return math.degrees(float(every.median())) if len(every) >= _FEWEST else None


def _shown(
    view: NormalView, points: Float[Tensor, "n 3"], cell: float, turn: Turn
) -> tuple[Bool[Tensor, "n"], Float[Tensor, "n 3"]]:
    """Return which points a view sees, and the normals in the world that it shows there."""
    inside, normals, depth = sampled(view, points)
    normals = torch.nn.functional.normalize(turn(view, normals).double(), dim=-1)
    pixels = view.camera.project(points)[0]
    # the nearest point per square as wide as a cell hides the others
    wide = max(float(view.camera.fx * cell / depth.clamp_min(1e-6).median()), 1.0)
    squares = (torch.where(inside[:, None], pixels, torch.zeros_like(pixels)) / wide).floor().long()
    columns = int(view.size[1] / wide) + 1
    place = squares[:, 1] * columns + squares[:, 0]
    nearest = torch.full((columns * (int(view.size[0] / wide) + 1),), torch.inf, dtype=depth.dtype)
    nearest = nearest.scatter_reduce(0, place[inside], depth[inside], "amin")
    rays = torch.nn.functional.normalize(points - view.camera.position.to(points), dim=-1)
    world = normals @ view.camera.world_from_camera[:3, :3].T.double()
    steep = (world * rays).sum(-1).abs() > _GRAZING
    known = normals.square().sum(-1) > 0.5
    return inside & known & steep & (depth <= nearest[place] + 2 * cell), world
