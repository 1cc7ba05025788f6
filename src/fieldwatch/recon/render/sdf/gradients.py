"""Gradients of a signed distance field in space, three ways."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

DistanceField = Callable[[Tensor], Tensor]
"""Signed distances ("n", positive outside) at points ("n 3"), each point by itself."""

_AXES = torch.eye(3)
_FLAT = 1e-4  # of the volume that three unit directions span


def gradient_ad(
    field: DistanceField, points: Float[Tensor, "n 3"], *, create_graph: bool = True
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 3"]]:
    """Signed distances and their gradients by automatic differentiation: exact, with a second pass in training.

    Gradients by the points flow on into what made them (poses), where they need one.

    Args:
        field: signed distances ("n") at points ("n 3").
        points: where.
        create_graph: whether the gradients are to be differentiated again; False in evaluation, where the result has
            no graph.

    Raises:
        ValueError: the field gives another number of distances than there are points.
    """
    with torch.enable_grad():
        # Points that belong to a graph stay in it, so that poses get gradients.
        positions = points if points.requires_grad else points.detach().requires_grad_()
        values = _checked(field(positions), positions)
        (gradient,) = torch.autograd.grad(values.sum(), positions, create_graph=create_graph)
    return (values, gradient) if create_graph else (values.detach(), gradient)


def gradient_fd(field: DistanceField, points: Float[Tensor, "n 3"], eps: float = 1e-3) -> Float[Tensor, "n 3"]:
    """Gradients by central differences along the axes: six evaluations, an error of eps^2 / 6 third derivatives.

    Exact for fields of second degree, up to rounding: 6e-8 |f| / eps in single precision.

    Args:
        field: signed distances ("n") at points ("n 3").
        points: where.
        eps: half the distance between the two places of a difference.

    Raises:
        ValueError: eps is not positive, or the field gives another number of distances than there are points.
    """
    if not eps > 0:
        raise ValueError(f"central differences over 2 * {eps}: eps must be above 0, such as 1e-3")
    offsets = eps * _AXES.to(points)
    positions = torch.cat([points + offsets[:, None], points - offsets[:, None]]).view(-1, 3)
    values = _checked(field(positions), positions).view(2, 3, len(points))
    return ((values[0] - values[1]) / (2 * eps)).T


def gradient_dfd(
    start: Float[Tensor, "samples rows columns"],
    end: Float[Tensor, "samples rows columns"],
    start_points: Float[Tensor, "samples rows columns 3"],
    end_points: Float[Tensor, "samples rows columns 3"],
) -> Float[Tensor, "samples rows columns 3"]:
    """Gradients by directional finite differences over patches of rays (Cao 2024, SuperNormal).

    Costs no evaluation beyond those of rendering: along the ray the forward difference between the ends of a section,
    along rows and columns of the image central differences between neighbouring pixels on the same marching plane
    (one-sided at the border of the patch). With V the three directions, the gradient is V^-1 times the three
    derivatives. Exact for planes; the error is half a step times the second derivative along the ray.

    Args:
        start: signed distances where sections begin, at the pixels of patches of 2 x 2 or more.
        end: the same where they end.
        start_points: where sections begin: those of a sample lie on a plane (`plane_distances`). No gradient flows
            into them.
        end_points: where they end.

    Returns:
        Gradients where the sections begin.

    Raises:
        ValueError: patches of one row or column, sections without length, or a patch seen edge on.
    """
    if min(start.shape[1:]) < 2:
        raise ValueError(f"a patch of {tuple(start.shape[1:])} pixels has no neighbours: use 3 x 3 or more, odd")
    positions = start_points.detach()
    offsets = torch.stack([end_points.detach() - positions, _across(positions, 2), _across(positions, 1)], -2)
    changes = torch.stack([end - start, _across(start, 2), _across(start, 1)], -1)
    lengths = torch.linalg.vector_norm(offsets, dim=-1, keepdim=True)
    v0, v1, v2 = (offsets / lengths).unbind(-2)
    d0, d1, d2 = (changes / lengths[..., 0]).unbind(-1)
    # Cramer's rule: the rows of V^-1 are cross products over the volume.
    crosses = [torch.linalg.cross(a, b) for a, b in ((v1, v2), (v2, v0), (v0, v1))]
    volume = (v0 * crosses[0]).sum(-1, keepdim=True)
    if not bool((volume.abs() > _FLAT).all()):
        raise ValueError(
            "the directions along a ray and to its neighbours do not span space: sections must have a length, and the "
            "pixels of a patch must lie apart on a plane across their rays"
        )
    return (d0[..., None] * crosses[0] + d1[..., None] * crosses[1] + d2[..., None] * crosses[2]) / volume


def plane_distances(
    distances: Float[Tensor, " samples"],
    central: Float[Tensor, "samples 3"],
    directions: Float[Tensor, "samples rows columns 3"],
    axis: Float[Tensor, "samples 3"],
) -> Float[Tensor, "samples rows columns"]:
    """Where the rays of a patch meet the plane, parallel to the image, on which a sample of its central ray lies.

    t_j = t_c <d_c, n> / <d_j, n> (SuperNormal): the marching plane is at one depth for all pixels of the patch.

    Args:
        distances: t_c of samples along central rays.
        central: d_c, directions of those rays.
        directions: d_j, of all rays of their patches, of length 1.
        axis: n, the optical axes of their cameras.
    """
    depth = distances * (central * axis).sum(-1)
    return depth[:, None, None] / (directions * axis[:, None, None]).sum(-1)


def _across(values: Tensor, axis: int) -> Tensor:
    """Central differences along an axis, not divided by anything; one-sided at both ends."""
    size = values.shape[axis]
    first, last = (values.narrow(axis, at + 1, 1) - values.narrow(axis, at, 1) for at in (0, size - 2))
    inner = values.narrow(axis, 2, size - 2) - values.narrow(axis, 0, size - 2)
    return torch.cat([first, inner, last], axis)


def _checked(values: Tensor, points: Tensor) -> Tensor:
    if values.shape != points.shape[:1]:
        raise ValueError(
            f"the field gave distances of shape {tuple(values.shape)} for {len(points)} points: it must give one "
            "number for each (squeeze the last axis)"
        )
    return values
