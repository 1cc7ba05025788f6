"""Spatial gradients of a signed distance field: automatic, central and directional differences."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

DistanceField = Callable[[Tensor], Tensor]
"""Maps points ("n 3") to signed distances ("n", positive outside), each point independently."""

_AXES = torch.eye(3)
_FLAT = 1e-4  # smallest volume spanned by three unit directions


def gradient_ad(
    field: DistanceField, points: Float[Tensor, "n 3"], *, create_graph: bool = True
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 3"]]:
    """Return signed distances and gradients by automatic differentiation: exact, with a second pass in training.

    If the points require gradients, these flow on to their inputs, such as poses.

    Args:
        field: signed distance function.
        points: points to evaluate.
        create_graph: whether the gradients will be differentiated again. False, for evaluation, returns tensors
            without a graph.

    Raises:
        ValueError: the number of distances differs from the number of points.
    """
    with torch.enable_grad():
        # Points that belong to a graph stay attached, so that poses get gradients.
        positions = points if points.requires_grad else points.detach().requires_grad_()
        values = _checked(field(positions), positions)
        (gradient,) = torch.autograd.grad(values.sum(), positions, create_graph=create_graph)
    return (values, gradient) if create_graph else (values.detach(), gradient)


def gradient_fd(field: DistanceField, points: Float[Tensor, "n 3"], eps: float = 1e-3) -> Float[Tensor, "n 3"]:
    """Return gradients by central differences along the axes, with six evaluations per point.

    The error is eps² / 6 times the third derivative, plus rounding of 6e-8 |f| / eps in single precision. Quadratic
    fields have no truncation error.

    Args:
        field: signed distance function.
        points: points to evaluate.
        eps: half the distance between the two points of a difference.

    Raises:
        ValueError: `eps` is not positive, or the number of distances differs from the number of points.
    """
    if not eps > 0:
        raise ValueError(f"eps of central differences must be greater than 0, such as 1e-3, got {eps}")
    # All six offsets in one batch: a single call of the field.
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
    """Return gradients by directional finite differences over patches of rays (Cao 2024, SuperNormal).

    This needs no evaluations beyond those of rendering. Along the ray it takes the forward difference between the ends
    of a section; along rows and columns of the image, central differences between neighboring pixels on the same
    marching plane (one-sided at the border of the patch). With V the three directions, the gradient is V^-1 times the
    three derivatives. Exact for planes; the error is half a step times the second derivative along the ray.

    Args:
        start: signed distances at section starts, at the pixels of patches of at least 2 x 2.
        end: signed distances at section ends.
        start_points: positions of the section starts; those of one sample lie on a plane (see `plane_distances`). They
            get no gradient.
        end_points: positions of the section ends.

    Returns:
        Gradients at the section starts.

    Raises:
        ValueError: a patch has only one row or column or is seen edge-on, or a section has no length.
    """
    if min(start.shape[1:]) < 2:
        raise ValueError(f"a patch must have at least 2 x 2 pixels, or better 3 x 3, got {tuple(start.shape[1:])}")
    positions = start_points.detach()
    offsets = torch.stack([end_points.detach() - positions, _across(positions, 2), _across(positions, 1)], -2)
    changes = torch.stack([end - start, _across(start, 2), _across(start, 1)], -1)
    # Unit directions, so that the volume below measures the angles between them only.
    lengths = torch.linalg.vector_norm(offsets, dim=-1, keepdim=True)
    v0, v1, v2 = (offsets / lengths).unbind(-2)
    d0, d1, d2 = (changes / lengths[..., 0]).unbind(-1)
    # Cramer's rule: the columns of V^-1 are cross products divided by the volume.
    crosses = [torch.linalg.cross(a, b) for a, b in ((v1, v2), (v2, v0), (v0, v1))]
    volume = (v0 * crosses[0]).sum(-1, keepdim=True)
    if not bool((volume.abs() > _FLAT).all()):
        raise ValueError(
            "the directions along a ray and to its neighbors do not span space: sections must have a length, and the "
            "pixels of a patch must be distinct points on a plane across their rays"
        )
    return (d0[..., None] * crosses[0] + d1[..., None] * crosses[1] + d2[..., None] * crosses[2]) / volume


def plane_distances(
    distances: Float[Tensor, " samples"],
    central: Float[Tensor, "samples 3"],
    directions: Float[Tensor, "samples rows columns 3"],
    axis: Float[Tensor, "samples 3"],
) -> Float[Tensor, "samples rows columns"]:
    """Return the distances at which the rays of a patch intersect the marching plane of a sample of the central ray.

    t_j = t_c <d_c, n> / <d_j, n> (SuperNormal): the plane is parallel to the image, at one depth for the whole patch.

    Args:
        distances: t_c, distances of the samples along the central rays.
        central: d_c, unit directions of the central rays.
        directions: d_j, unit directions of all rays of the patches.
        axis: n, optical axes of the cameras.
    """
    depth = distances * (central * axis).sum(-1)
    return depth[:, None, None] / (directions * axis[:, None, None]).sum(-1)


def _across(values: Tensor, axis: int) -> Tensor:
    """Return undivided central differences along an axis, one-sided at both ends."""
    size = values.shape[axis]
    first, last = (values.narrow(axis, at + 1, 1) - values.narrow(axis, at, 1) for at in (0, size - 2))
    inner = values.narrow(axis, 2, size - 2) - values.narrow(axis, 0, size - 2)
    return torch.cat([first, inner, last], axis)


def _checked(values: Tensor, points: Tensor) -> Tensor:
    if values.shape != points.shape[:1]:
        raise ValueError(
            f"the field returned distances of shape {tuple(values.shape)} for {len(points)} points, expected one "
            "number each (squeeze the last axis)"
        )
    return values
