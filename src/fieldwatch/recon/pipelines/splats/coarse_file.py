"""Trained Gaussians as SuGaR's coarse stage saves them: one `.pt` file, loadable without running any code of it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from fieldwatch.files import whole_file
from fieldwatch.recon.data import GaussianCloud
from fieldwatch.recon.geometry import MAX_DEGREE, harmonics_count
from fieldwatch.recon.pipelines.splats.model import SplatModel


def fused_cloud(model: SplatModel) -> GaussianCloud:
    """Return the Gaussians as they are drawn, on the host; a 3D filter goes into scales and opacities.

    What reads splat files knows no such filter, so it would show something else without this.
    """
    cloud = model.gaussians.to_cloud()
    if model.mip is None:
        return cloud
    return replace(cloud, filter_3d=model.mip.widths.detach().cpu()).fused()


def write_coarse_file(  # noqa: PLR0913  each is one key of the file
    path: Path,
    model: SplatModel,
    *,
    iteration: int,
    epoch: int = 0,
    losses: Sequence[float] = (),
    optimizer: Optimizer | None = None,
) -> Path:
    """Write Gaussians under the names of SuGaR's coarse checkpoints; whole or not at all. Return the path.

    Harmonics below degree 3 are filled up with zeros, to the 15 functions that SuGaR expects.

    Args:
        path: of the `.pt` file; replaced when it exists.
        model: the Gaussians; a 3D filter is fused into them.
        iteration: number of training steps made.
        epoch: number of passes over the photos.
        losses: of training, in the order in which they were noted.
        optimizer: whose state goes along; its groups keep our names and our order.
    """
    content = {
        "state_dict": _state(fused_cloud(model)),
        "train_losses": [float(loss) for loss in losses],
        "epoch": epoch,
        "iteration": iteration,
        "optimizer_state_dict": {} if optimizer is None else optimizer.state_dict(),
    }
    with whole_file(path) as draft:
        torch.save(content, draft)
    return path


def _state(cloud: GaussianCloud) -> dict[str, Tensor]:
    missing = harmonics_count(MAX_DEGREE) - 1 - cloud.rest.shape[1]
    return {
        "_points": cloud.means,
        "all_densities": cloud.opacity_logits[:, None],
        "_scales": cloud.log_scales,
        "_quaternions": cloud.quaternions,
        "_sh_coordinates_dc": cloud.constant[:, None],
        "_sh_coordinates_rest": functional.pad(cloud.rest, (0, 0, 0, missing)),
    }
