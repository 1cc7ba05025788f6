"""What bound Gaussians and their mesh are trained towards (SuGaR, section 4.3)."""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fieldwatch import Terms
from fieldwatch.pipelines.splats.model import SplatModel
from fieldwatch.pipelines.splats.objective import rendering_error
from fieldwatch.pipelines.splats.refined.config import RefineConfig
from fieldwatch.pipelines.splats.scene import Shot
from fieldwatch.render import Splatted


def refine_terms(  # noqa: PLR0913  settings, what was drawn, and of what
    config: RefineConfig,
    model: SplatModel[Any],
    drawn: Splatted,
    shot: Shot,
    *,
    normals: Float[Tensor, "m 3"],
    pairs: Int64[Tensor, "e 2"],
) -> Terms:
    """All terms of a step: rendering as in the coarse stage, and how alike neighbouring faces' normals are.

    Args:
        config: settings.
        model: what was drawn.
        drawn: the picture.
        shot: the photo.
        normals: of the mesh's faces.
        pairs: faces that share an edge.
    """
    terms = Terms(rendering=(1.0, rendering_error(config.dssim, model.exposures, drawn, shot)))
    if config.normal_consistency_weight:
        terms |= Terms(normal_consistency=(config.normal_consistency_weight, normal_consistency(normals, pairs)))
    return terms


def normal_consistency(normals: Float[Tensor, "m 3"], pairs: Int64[Tensor, "e 2"]) -> Float[Tensor, ""]:
    """Mean over inner edges of 1 - cosine between the normals of the two faces: 0 on a plane, 1 at right angles.

    A face without area has a normal of zero and counts 1, with no gradient. Without inner edges it is 0.
    """
    if not len(pairs):
        return normals.sum() * 0
    one, other = normals.index_select(0, pairs[:, 0]), normals.index_select(0, pairs[:, 1])
    return (1 - (one * other).sum(1)).mean()


def inner_pairs(faces: Int64[Tensor, "m 3"]) -> Int64[Tensor, "e 2"]:
    """Return the faces on both sides of every edge that has exactly two; edges of more or of one face have none."""
    ends = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).sort(1).values
    owners = torch.arange(len(faces), device=faces.device).repeat(3)
    _, edge, uses = torch.unique(ends, dim=0, return_inverse=True, return_counts=True)
    inner = uses[edge] == 2
    order = edge[inner].argsort(stable=True)
    return owners[inner][order].view(-1, 2)
