"""Agreement of normals with the outlines of their masks and across views."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.hull import Hull, sample_view
from fieldwatch.recon.data.normal_maps.model import NormalView
from fieldwatch.recon.geometry import evenly_spaced

NormalTransform = Callable[[NormalView, Float[Tensor, "n 3"]], Float[Tensor, "n 3"]]
"""A hypothesis about the axes of normals in the files: converts them to camera axes accordingly."""

_OUTLINE_SIGMA = 1.5  # pixels
_FLAT = 0.3  # minimum length in the image plane for a normal to have a meaningful direction there
_GRAZING = 0.5  # minimum cosine to the ray; below it normals change too much from pixel to pixel to be compared
_MIN_VIEW_COSINE = math.cos(math.radians(65))  # views farther apart overlap little, and the hull is not the surface
_MIN_SAMPLES = 30
_REACH = 8  # pixels beyond a mask that the blur and the gradient of its outline reach
MOST_VIEWS = 40
"""Number of views, evenly spread over a set, that tell what holds for all of them."""


def spread_views(views: Sequence[NormalView], most: int = MOST_VIEWS) -> Sequence[NormalView]:
    """Return views evenly spread over a set; all of them, if there are at most that many."""
    return evenly_spaced(views, most)


def as_read(view: NormalView, normals: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
    """Return the normals unchanged."""
    del view
    return normals


def outward_share(views: Sequence[NormalView], transform: NormalTransform = as_read) -> tuple[float, float] | None:
    """Return how well the normals at the outlines of the masks agree with the outward directions, for x and for y.

    A smooth surface turns away from the camera at its outline, where its normal is perpendicular to the outline. The
    mean products of the unit vectors in x and in y are then near 0.5 each and sum to almost 1. A negative value
    indicates a component with the wrong sign. Returns None if there are too few informative pixels.
    """
    products = [torch.zeros(0, 2, dtype=torch.float64)]
    for view in views:
        edge, outwards = outline_pixels(view.mask)
        edge &= view.known
        normals = transform(view, view.normals[edge])[:, :2].double()
        # The outline only constrains the direction in the image plane.
        length = normals.norm(dim=-1)
        informative = length > _FLAT
        products.append((normals / length[:, None])[informative] * outwards[edge][informative])
    means = torch.cat(products)
    return (float(means[:, 0].mean()), float(means[:, 1].mean())) if len(means) >= _MIN_SAMPLES else None


def outline_pixels(mask: Bool[Tensor, "h w"]) -> tuple[Bool[Tensor, "h w"], Float[Tensor, "h w 2"]]:
    """Return the pixels just inside a mask's outline (without the image border) and outward unit vectors."""
    window = _window_of(mask)
    array = mask[window].numpy()
    # border_value=1: the image border is no outline of the object.
    edge = array & ~np.asarray(ndimage.binary_erosion(array, border_value=1), np.bool_)
    blurred = ndimage.gaussian_filter(array.astype(float), _OUTLINE_SIGMA, mode="nearest")
    down, across = (torch.from_numpy(ndimage.sobel(blurred, axis)) for axis in (0, 1))
    # The mask decreases toward the outside, so its gradient points inward.
    outwards = -torch.stack([across, down], -1)
    length = outwards.norm(dim=-1, keepdim=True)
    edges = torch.zeros_like(mask)
    edges[window] = torch.from_numpy(edge) & (length[..., 0] > 1e-6)
    directions = torch.zeros(*mask.shape, 2, dtype=outwards.dtype)
    directions[window] = outwards / length.clamp_min(1e-6)
    return edges, directions


def _window_of(mask: Bool[Tensor, "h w"]) -> tuple[slice, slice]:
    """Return rows and columns of a mask and its surroundings; what is farther away does not change its outline."""
    spans: list[slice] = []
    for axis in (1, 0):
        filled = mask.any(axis).nonzero()[:, 0]
        first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (0, 0)
        spans.append(slice(max(first - _REACH, 0), last + 1 + _REACH))
    return spans[0], spans[1]


def median_disagreement(views: Sequence[NormalView], hull: Hull, transform: NormalTransform = as_read) -> float | None:
    """Return the median angle in degrees between the normals of two views at the same points of the hull.

    Only views less than 65 degrees apart are compared. Since the hull is not the surface, correct sets have about 10
    degrees; wrong poses or axes give 40 or more. Returns None if no two views overlap enough.
    """
    # Every pair is compared.
    views = spread_views(views)
    points = hull.centers(hull.surface())
    if not len(points):
        return None
    samples = [_visible_normals(view, points, hull.cell, transform) for view in views]
    angles = [torch.zeros(0, dtype=torch.float64)]
    for first, second in combinations(range(len(views)), 2):
        if float(views[first].camera.forward @ views[second].camera.forward) < _MIN_VIEW_COSINE:
            continue
        first_visible, first_normals = samples[first]
        second_visible, second_normals = samples[second]
        # Both views must see the point, otherwise an occluder is compared with the surface behind it.
        both = first_visible & second_visible
        angles.append((first_normals[both] * second_normals[both]).sum(-1).clamp(-1, 1).acos())
    all_angles = torch.cat(angles)
    return math.degrees(float(all_angles.median())) if len(all_angles) >= _MIN_SAMPLES else None


def _visible_normals(
    view: NormalView, points: Float[Tensor, "n 3"], cell: float, transform: NormalTransform
) -> tuple[Bool[Tensor, "n"], Float[Tensor, "n 3"]]:
    """Return which points a view sees, and its normals at all points in world axes."""
    inside, normals, depth = sample_view(view, points)
    normals = torch.nn.functional.normalize(transform(view, normals).double(), dim=-1)
    pixels = view.camera.project(points)[0]
    # Per square of a cell's width, the nearest point occludes the others.
    square_width = max(float(view.camera.fx * cell / depth.clamp_min(1e-6).median()), 1.0)
    squares = (torch.where(inside[:, None], pixels, torch.zeros_like(pixels)) / square_width).floor().long()
    columns = int(view.size[1] / square_width) + 1
    square_index = squares[:, 1] * columns + squares[:, 0]
    nearest = torch.full((columns * (int(view.size[0] / square_width) + 1),), torch.inf, dtype=depth.dtype)
    # A z-buffer of the hull points: the smallest depth per square.
    nearest = nearest.scatter_reduce(0, square_index[inside], depth[inside], "amin")
    rays = torch.nn.functional.normalize(points - view.camera.position.to(points), dim=-1)
    world = normals @ view.camera.world_from_camera[:3, :3].T.double()
    steep = (world * rays).sum(-1).abs() > _GRAZING
    known = normals.square().sum(-1) > 0.5
    return inside & known & steep & (depth <= nearest[square_index] + 2 * cell), world
