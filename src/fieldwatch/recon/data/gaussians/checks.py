"""Checks of Gaussians that were read, whatever the format of the file."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data.gaussians.cloud import GaussianCloud

EIGHT_BIT_LOGIT = math.log(2 * 255 - 1)
"""Logit of 1 - 1 / 510, half an 8-bit step below 1: the bound of opacities that were stored as exactly 1."""


def finite_opacities(path: Path, logits: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], tuple[str, ...]]:
    """Clamp infinite logits to half an 8-bit step inside (0, 1); return them and a note about it."""
    infinite = int(logits.isinf().sum())
    if not infinite:
        return logits, ()
    note = (
        f"{infinite} of {len(logits)} Gaussians of {path} have opacities of exactly 0 or 1, as written by 8-bit "
        "formats; they were set to 0.002 and 0.998, so that they can be trained"
    )
    return torch.where(logits.isinf(), logits.clamp(-EIGHT_BIT_LOGIT, EIGHT_BIT_LOGIT), logits), (note,)


def infinite_values(path: Path, columns: Mapping[str, Tensor]) -> str:
    """Return an error message about the first column with values that are not finite, else an empty string."""
    for name, values in columns.items():
        # The fast path needs no per-row reduction, which matters for millions of Gaussians.
        if bool(torch.isfinite(values).all()):
            continue
        rows = torch.nonzero(~torch.isfinite(values.flatten(1) if values.ndim > 1 else values[:, None]).all(1))[:, 0]
        return (
            f"{path}: {name} is not finite in {len(rows)} of {len(values)} vertices, the first in row {int(rows[0])}: "
            "the training that wrote it diverged; pass an earlier iteration, or remove these vertices"
        )
    return ""


def problem_of(path: Path, cloud: GaussianCloud) -> str:
    """Return an error message if there are no Gaussians, or values that are not finite, else an empty string."""
    if not len(cloud):
        return (
            f"{path} contains no Gaussians (0 vertices): the training that wrote it pruned all of them; pass an "
            "earlier iteration"
        )
    columns = {
        "x, y, z": cloud.means,
        "scale": cloud.log_scales,
        "rot": cloud.quaternions,
        "opacity": cloud.opacity_logits,
        "f_dc": cloud.constant,
        "f_rest": cloud.rest,
    }
    return infinite_values(path, columns if cloud.filter_3d is None else {**columns, "filter_3D": cloud.filter_3d})
