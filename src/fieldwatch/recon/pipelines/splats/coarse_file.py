"""Trained Gaussians in the format of SuGaR's coarse stage: a `.pt` file that `torch.load` reads with `weights_only`."""

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
    """Return the Gaussians as they are rendered, on the host, with the 3D filter fused into scales and opacities.

    Readers of splat files do not know the filter and would render the Gaussians differently without this.
    """
    cloud = model.gaussians.to_cloud()
    if model.mip is None:
        return cloud
    # The filter is part of the cloud, as Mip-Splatting's files store it, before it is fused.
    return replace(cloud, filter_3d=model.mip.widths.detach().cpu()).fused()


def write_coarse_file(  # noqa: PLR0913  one argument per key of the file
    path: Path,
    model: SplatModel,
    *,
    iteration: int,
    epoch: int = 0,
    losses: Sequence[float] = (),
    optimizer: Optimizer | None = None,
) -> Path:
    """Write Gaussians atomically under the keys of SuGaR's coarse checkpoints and return the path.

    SH coefficients below degree 3 are padded with zeros to the 15 functions that SuGaR expects.

    Args:
        path: path of the `.pt` file; an existing file is replaced.
        model: model to write; its 3D filter is fused into scales and opacities.
        iteration: number of finished training steps.
        epoch: number of epochs over the photos.
        losses: recorded training losses, in order.
        optimizer: optimizer whose state is included, with its group names and order unchanged; None omits it.
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
        # SuGaR calls opacity logits densities and stores them as a column.
        "all_densities": cloud.opacity_logits[:, None],
        "_scales": cloud.log_scales,
        "_quaternions": cloud.quaternions,
        "_sh_coordinates_dc": cloud.constant[:, None],
        "_sh_coordinates_rest": functional.pad(cloud.rest, (0, 0, 0, missing)),
    }
