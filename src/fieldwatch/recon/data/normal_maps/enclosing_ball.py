"""Where an object is, and how large, from masks and cameras alone: the ball around the visual hull."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.hull import Hull
from fieldwatch.recon.data.normal_maps.model import NormalView

_MIN_DIRECTION_SPREAD = (
    1e-4  # spread of directions (sine squared) below which rays do not tell where they meet: half a degree
)
# cells each way
_COARSE_CELLS = 40
_FINE_CELLS = 72
_GROWTH = 1.6
_TIGHTNESS = 1.06
_MAX_ROUNDS = 24
_BALL_STEPS = 200  # of the enclosing ball; it is then within half a percent


class EnclosingBall(NamedTuple):
    """A centre in world units and a radius."""

    centre: Float[Tensor, "3"]
    radius: float


def enclosing_ball(points: Float[Tensor, "n 3"]) -> EnclosingBall:
    """Return a ball around points, hardly larger than the smallest one.

    Badoiu and Clarkson, Smaller core-sets for balls, 2003: go towards the farthest point by ever smaller steps.
    """
    centre = 0.5 * (points.amin(0) + points.amax(0))
    for step in range(1, _BALL_STEPS + 1):
        farthest = points[int((points - centre).square().sum(-1).argmax())]
        centre = centre + (farthest - centre) / (step + 1)
    return EnclosingBall(centre, float((points - centre).norm(dim=-1).max()))


def nearest_to_rays(origins: Float[Tensor, "n 3"], directions: Float[Tensor, "n 3"]) -> Float[Tensor, "3"]:
    """Return the point with the least sum of squared distances to lines; directions have length 1.

    Raises:
        NormalMapError: the lines are parallel, so that no one place is nearest.
    """
    # Projectors onto the planes perpendicular to the rays: normal equations of the distances.
    across = torch.eye(3).to(directions) - directions[:, :, None] * directions[:, None]
    if float(torch.linalg.eigvalsh(across.mean(0))[0]) < _MIN_DIRECTION_SPREAD:
        msg = (
            f"{len(directions)} views look the same way, to half a degree: where the object is cannot be told from "
            "that; give views from several sides, or a cameras_sphere.npz"
        )
        raise NormalMapError(msg)
    return torch.linalg.solve(across.sum(0), (across @ origins[:, :, None]).sum(0)[:, 0])


def object_ball(views: Sequence[NormalView]) -> EnclosingBall:
    """Return the ball around the visual hull of the masks, in the frame of the cameras, whatever its scale.

    It begins where the rays through the middles of the masks come nearest to each other (the principal axes, of which
    others' recipes speak, miss an object that is not in the middle of the picture), with a cube as wide as the masks
    are there; the cube is carved, grows while the hull touches its sides, and shrinks to the hull.

    Args:
        views: none of their masks is black.

    Raises:
        NormalMapError: parallel views, no place that is in all masks, or a hull without end.
    """
    rays = [_middle_ray(view) for view in views]
    origins, directions = (torch.stack(parts) for parts in zip(*rays, strict=True))
    centre = nearest_to_rays(origins, directions)
    half = 1.5 * max(_reach(view, centre) for view in views)
    farthest = float((origins - centre).norm(dim=-1).max())
    cells = _COARSE_CELLS
    for _ in range(_MAX_ROUNDS):
        hull = carved(views, centre, half, cells)
        if not bool(hull.inside.any()):
            raise NormalMapError(_empty_intersection(views, centre, half))
        if _touches(hull):
            half *= _GROWTH
            # A hull that reaches beyond all cameras is open: more growth will not close it.
            if half > 2 * farthest:
                break
            continue
        ball = enclosing_ball(hull.centres(hull.surface()) + centre)
        # Cell centers were enclosed: add half a cell's diagonal for the corners.
        ball = ball._replace(radius=ball.radius + 0.5 * hull.cell * 3**0.5)  # a cell's corner
        tight = ball.radius * _TIGHTNESS > 0.9 * half
        if tight and cells == _FINE_CELLS:
            return ball
        centre = ball.centre
        # Shrink the cube around the ball, so that the next round's cells are finer.
        half = min(half, _TIGHTNESS * ball.radius)
        cells = _FINE_CELLS if tight else cells
    msg = (
        f"the visual hull of {len(views)} masks has no end within {half:.3g} units of {_numbers(centre)}, as when the "
        "object is seen from one side only, or cut by the edge of most pictures: give views from more sides"
    )
    raise NormalMapError(msg)


def carved(views: Sequence[NormalView], centre: Float[Tensor, "3"], half: float, cells: int) -> Hull:
    """Return the cells of a cube around some place that no mask excludes."""
    hull = Hull(torch.ones(cells, cells, cells, dtype=torch.bool), half)
    remaining = torch.arange(cells**3)
    points = hull.centres(hull.inside) + centre
    for view in views:
        keep = _in_mask(view, points)
        remaining = remaining[keep]
        points = points[keep]
    inside = torch.zeros(cells**3, dtype=torch.bool)
    inside[remaining] = True
    return hull._replace(inside=inside.reshape(hull.inside.shape))


def _touches(hull: Hull) -> bool:
    """Whether the hull reaches a side of its cube."""
    inner = hull.inside[1:-1, 1:-1, 1:-1]
    return int(inner.sum()) < int(hull.inside.sum())


def refuse_black(views: Sequence[NormalView]) -> None:
    """Refuse views that show nothing.

    Raises:
        NormalMapError: names them.
    """
    if black := [view.name for view in views if not bool(view.mask.any())]:
        msg = (
            f"the masks of views {', '.join(black[:8])} ({len(black)} of {len(views)}) are black: draw the object "
            "white, or leave these views out (exclude)"
        )
        raise NormalMapError(msg)


def cut_masks(views: Sequence[NormalView]) -> list[str]:
    """Return names of the views whose mask touches the edge of the picture: the object may go on there."""
    return [view.name for view in views if _is_cut(view)]


def _is_cut(view: NormalView) -> bool:
    mask = view.mask
    return bool(mask[0].any() | mask[-1].any() | mask[:, 0].any() | mask[:, -1].any())


def _in_mask(view: NormalView, points: Float[Tensor, "n 3"]) -> Bool[Tensor, "n"]:
    """Tell which points a mask does not exclude; one that touches the edge says nothing about what is not shown."""
    pixels, depth = view.camera.project(points)
    height, width = view.size
    in_picture = (depth > 0) & (pixels >= 0).all(-1) & (pixels[:, 0] < width) & (pixels[:, 1] < height)
    column, row = torch.where(in_picture[:, None], pixels, torch.zeros_like(pixels)).floor().long().unbind(-1)
    inside = in_picture & view.mask[row, column]
    # A cut mask cannot exclude what lies outside its picture.
    return inside | ~in_picture if _is_cut(view) else inside


def _middle_ray(view: NormalView) -> tuple[Float[Tensor, "3"], Float[Tensor, "3"]]:
    """Return the ray through the middle of a mask."""
    row, column = view.mask.nonzero().double().mean(0).tolist()
    camera = view.camera.to(dtype=torch.float64)
    across = (column + 0.5 - camera.cx) / camera.fx
    down = (row + 0.5 - camera.cy) / camera.fy
    direction = camera.world_from_camera[:3, :3] @ torch.tensor([across, down, 1.0], dtype=torch.float64)
    return camera.position, direction / direction.norm()


def _reach(view: NormalView, centre: Float[Tensor, "3"]) -> float:
    """Return the largest distance of the rays through a mask from a point."""
    origins, directions = (rays[view.mask].double() for rays in view.camera.rays())
    towards = centre - origins
    along = (towards * directions).sum(-1, keepdim=True)
    return float((towards - along * directions).norm(dim=-1).max())


def _empty_intersection(views: Sequence[NormalView], centre: Float[Tensor, "3"], half: float) -> str:
    """Say which masks exclude the place that most of them hold."""
    steps = torch.linspace(-half, half, 2 * _COARSE_CELLS // 3, dtype=torch.float64)
    points = torch.cartesian_prod(steps, steps, steps) + centre
    inside = torch.stack([_in_mask(view, points) for view in views])
    best = int(inside.sum(0).argmax())
    excluding = [view.name for view, agrees in zip(views, inside[:, best].tolist(), strict=True) if not agrees]
    return (
        f"no place is in all {len(views)} masks: around {_numbers(centre)} at best {len(views) - len(excluding)} "
        "of them "
        f"agree, without views {', '.join(excluding[:8])}: their masks or their poses are wrong (or black and "
        "white are "
        "exchanged); mend them, or leave them out (exclude)"
    )


def _numbers(values: Tensor) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in values.tolist()) + ")"
