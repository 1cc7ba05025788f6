"""Locate an object from masks and cameras alone: the ball that encloses its visual hull."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.hull import Hull
from fieldwatch.recon.data.normal_maps.model import NormalView

# Spread of ray directions (sine squared, half a degree) below which their nearest point is undetermined.
_MIN_DIRECTION_SPREAD = 1e-4
# Cells of the carved cube in each direction.
_COARSE_CELLS = 40
_FINE_CELLS = 72
_GROWTH = 1.6
_TIGHTNESS = 1.06
_MAX_ROUNDS = 24
_BALL_STEPS = 200  # the enclosing ball is then within half a percent of the smallest one


class EnclosingBall(NamedTuple):
    """Center and radius of a ball in world units."""

    center: Float[Tensor, "3"]
    radius: float


def enclosing_ball(points: Float[Tensor, "n 3"]) -> EnclosingBall:
    """Return an approximation of the smallest ball that contains all points.

    The center moves toward the farthest point in decreasing steps (Badoiu and Clarkson, Smaller core-sets for balls,
    2003).
    """
    center = 0.5 * (points.amin(0) + points.amax(0))
    for step in range(1, _BALL_STEPS + 1):
        farthest = points[int((points - center).square().sum(-1).argmax())]
        center = center + (farthest - center) / (step + 1)
    return EnclosingBall(center, float((points - center).norm(dim=-1).max()))


def nearest_to_rays(origins: Float[Tensor, "n 3"], directions: Float[Tensor, "n 3"]) -> Float[Tensor, "3"]:
    """Return the point with the smallest sum of squared distances to lines with unit directions.

    Raises:
        NormalMapError: if the lines are parallel, so that the point is undetermined.
    """
    # I - d d^T projects onto the plane perpendicular to a line; the sum gives the normal equations.
    across = torch.eye(3).to(directions) - directions[:, :, None] * directions[:, None]
    if float(torch.linalg.eigvalsh(across.mean(0))[0]) < _MIN_DIRECTION_SPREAD:
        msg = (
            f"the directions of all {len(directions)} views differ by less than half a degree, which does not "
            "determine the position of the object: add views from other sides, or a cameras_sphere.npz"
        )
        raise NormalMapError(msg)
    return torch.linalg.solve(across.sum(0), (across @ origins[:, :, None]).sum(0)[:, 0])


def object_ball(views: Sequence[NormalView]) -> EnclosingBall:
    """Return the ball that encloses the visual hull of the masks, in camera frame units of any scale.

    The search starts at the point nearest to the rays through the mask centroids (the optical axes, used elsewhere,
    miss an object that is not in the image center) with a cube of the masks' width. The cube is carved, grows while
    the hull touches its sides, and then shrinks to the hull.

    Args:
        views: views with masks, none of which is black.

    Raises:
        NormalMapError: if the views are parallel, the masks have no common point, or the hull is unbounded.
    """
    rays = [_middle_ray(view) for view in views]
    origins, directions = (torch.stack(parts) for parts in zip(*rays, strict=True))
    center = nearest_to_rays(origins, directions)
    # The margin makes most hulls fit into the first cube.
    half = 1.5 * max(_reach(view, center) for view in views)
    farthest = float((origins - center).norm(dim=-1).max())
    cells = _COARSE_CELLS
    for _ in range(_MAX_ROUNDS):
        hull = carved(views, center, half, cells)
        if not bool(hull.inside.any()):
            raise NormalMapError(_empty_intersection(views, center, half))
        if _touches(hull):
            half *= _GROWTH
            # A hull that extends beyond all cameras is open, and growing the cube will not close it.
            if half > 2 * farthest:
                break
            continue
        ball = enclosing_ball(hull.centers(hull.surface()) + center)
        # The ball encloses cell centers; half a cell diagonal adds the corners.
        ball = ball._replace(radius=ball.radius + 0.5 * hull.cell * 3**0.5)
        # Fine cells are only worth their cost once the cube fits the ball closely.
        tight = ball.radius * _TIGHTNESS > 0.9 * half
        if tight and cells == _FINE_CELLS:
            return ball
        center = ball.center
        # Shrinking the cube to the ball makes the cells of the next round finer.
        half = min(half, _TIGHTNESS * ball.radius)
        cells = _FINE_CELLS if tight else cells
    msg = (
        f"the visual hull of {len(views)} masks is unbounded within {half:.3g} units of {_numbers(center)}, because "
        "the object is seen from one side only, or cut off by the edge of most images: add views from more sides"
    )
    raise NormalMapError(msg)


def carved(views: Sequence[NormalView], center: Float[Tensor, "3"], half: float, cells: int) -> Hull:
    """Return the cells of a cube around `center` that no mask excludes."""
    hull = Hull(torch.ones(cells, cells, cells, dtype=torch.bool), half)
    # Only the cells left by the previous views are projected, so each view is cheaper than the one before.
    remaining = torch.arange(cells**3)
    points = hull.centers(hull.inside) + center
    for view in views:
        keep = _in_mask(view, points)
        remaining = remaining[keep]
        points = points[keep]
    inside = torch.zeros(cells**3, dtype=torch.bool)
    inside[remaining] = True
    return hull._replace(inside=inside.reshape(hull.inside.shape))


def _touches(hull: Hull) -> bool:
    """Return whether the hull touches a side of its cube."""
    inner = hull.inside[1:-1, 1:-1, 1:-1]
    return int(inner.sum()) < int(hull.inside.sum())


def refuse_black(views: Sequence[NormalView]) -> None:
    """Check that no mask is black.

    Raises:
        NormalMapError: if a mask is black. The message names the views.
    """
    if black := [view.name for view in views if not bool(view.mask.any())]:
        msg = (
            f"the masks of views {', '.join(black[:8])} ({len(black)} of {len(views)}) are black: paint the object "
            "white, or leave these views out with --exclude"
        )
        raise NormalMapError(msg)


def cut_masks(views: Sequence[NormalView]) -> list[str]:
    """Return the names of the views whose mask touches the image edge, where the object may be cut off."""
    return [view.name for view in views if _is_cut(view)]


def _is_cut(view: NormalView) -> bool:
    mask = view.mask
    return bool(mask[0].any() | mask[-1].any() | mask[:, 0].any() | mask[:, -1].any())


def _in_mask(view: NormalView, points: Float[Tensor, "n 3"]) -> Bool[Tensor, "n"]:
    """Return which points a mask does not exclude."""
    pixels, depth = view.camera.project(points)
    height, width = view.size
    in_picture = (depth > 0) & (pixels >= 0).all(-1) & (pixels[:, 0] < width) & (pixels[:, 1] < height)
    column, row = torch.where(in_picture[:, None], pixels, torch.zeros_like(pixels)).floor().long().unbind(-1)
    inside = in_picture & view.mask[row, column]
    # If the mask touches the image edge, the object may extend beyond it, so points outside the image are kept.
    return inside | ~in_picture if _is_cut(view) else inside


def _middle_ray(view: NormalView) -> tuple[Float[Tensor, "3"], Float[Tensor, "3"]]:
    """Return origin and direction of the ray through the centroid of a mask."""
    row, column = view.mask.nonzero().double().mean(0).tolist()
    camera = view.camera.to(dtype=torch.float64)
    across = (column + 0.5 - camera.cx) / camera.fx
    down = (row + 0.5 - camera.cy) / camera.fy
    direction = camera.world_from_camera[:3, :3] @ torch.tensor([across, down, 1.0], dtype=torch.float64)
    return camera.position, direction / direction.norm()


def _reach(view: NormalView, center: Float[Tensor, "3"]) -> float:
    """Return the largest distance between a point and the rays through a mask."""
    origins, directions = (rays[view.mask].double() for rays in view.camera.rays())
    toward = center - origins
    along = (toward * directions).sum(-1, keepdim=True)
    return float((toward - along * directions).norm(dim=-1).max())


def _empty_intersection(views: Sequence[NormalView], center: Float[Tensor, "3"], half: float) -> str:
    """Return an error message that names the masks that exclude the point contained in most masks."""
    steps = torch.linspace(-half, half, 2 * _COARSE_CELLS // 3, dtype=torch.float64)
    points = torch.cartesian_prod(steps, steps, steps) + center
    inside = torch.stack([_in_mask(view, points) for view in views])
    best = int(inside.sum(0).argmax())
    excluding = [view.name for view, agrees in zip(views, inside[:, best].tolist(), strict=True) if not agrees]
    return (
        f"the {len(views)} masks have no common point: around {_numbers(center)} at most "
        f"{len(views) - len(excluding)} of them agree, without views {', '.join(excluding[:8])}: their masks or poses "
        "are wrong (or black and white are swapped); correct them, or leave these views out with --exclude"
    )


def _numbers(values: Tensor) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in values.tolist()) + ")"
