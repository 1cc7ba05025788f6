"""Reopening a splats run: its config, its scene, and the Gaussians of one of its checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from fieldwatch import Checkpoints, Retention
from fieldwatch.pipeline import CheckpointSelector, Device, StoredStateError, config_of_run, load_item, stored_item
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.gaussians import PARAMETERS, Gaussians, Rows
from fieldwatch.recon.pipelines.splats.mip_filter import MipFilter
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.start import photos_left_out_by, prepare_scene


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredRun:
    """A stored splats run, ready to render.

    Attributes:
        folder: run folder.
        config: settings of the run.
        scene: scene that the run was trained on.
        model: Gaussians, with their 3D filter and the photos' color transforms if the run has them.
        step: number of finished steps of the checkpoint.
    """

    folder: Path
    config: SplatsConfig
    scene: Scene
    model: SplatModel
    step: int


def stored_config(folder: Path) -> SplatsConfig:
    """Return the config that a splats run was started with.

    Raises:
        NotARun: The folder contains no run or a run of another pipeline, or its run.json is damaged.
    """
    return config_of_run(folder, "splats", SplatsConfig)


def open_run(folder: Path, checkpoint: CheckpointSelector = "last", *, device: Device | None = None) -> StoredRun:
    """Open a run at one of its checkpoints, without modifying the folder.

    Args:
        folder: run folder.
        checkpoint: "last", "best" (by held-out PSNR), or a step.
        device: device to render on; None uses the run's.

    Raises:
        NotARun: The folder contains no splats run.
        StoredStateError: The checkpoint does not exist or is damaged.
        ValueError, OSError: The scene cannot be read, as in `prepare_scene`.
    """
    config = stored_config(folder)
    # The metric that "best" refers to.
    checkpoints = Checkpoints(folder / "checkpoints", keep=Retention(metric="psnr"))
    saved = checkpoints.find(checkpoint)
    items = checkpoints.read(saved.step)
    # Without the photos that the run left out, even if they are available now: the split would change.
    scene = prepare_scene(replace(config, device=device or config.device), photos_left_out_by(folder))
    try:
        model = model_from(items, scene, antialiased=config.antialiased)
    except StoredStateError as error:
        raise StoredStateError(
            f"{saved.path} does not contain the Gaussians of {folder / 'run.json'} ({error}): restore one of the two"
        ) from error
    return StoredRun(folder=folder, config=config, scene=scene, model=model, step=saved.step)


def model_from(items: Mapping[str, Any], scene: Scene, *, antialiased: bool = False) -> SplatModel:
    """Return the model of a checkpoint's items, on the scene's device.

    Raises:
        StoredStateError: The items do not belong to a splats run.
    """
    stored = stored_item(items, "gaussians")
    gaussians = Gaussians(Rows(**{name: stored_item(stored, name) for name in PARAMETERS})).to(scene.device)
    mip = None
    exposures = None
    if "mip" in items:
        mip = MipFilter(scene.training_views, gaussians.means)
        load_item(mip, items, "mip")
    if "exposures" in items:
        exposures = Exposures([scene.photos.names[i] for i in scene.photos.train])
        load_item(exposures, items, "exposures")
        exposures.to(scene.device)
    log_beta = nn.Parameter(stored_item(items["beta"], "log_beta").to(scene.device)) if "beta" in items else None
    return SplatModel(
        gaussians, scene.background, mip=mip, exposures=exposures, antialiased=antialiased, log_beta=log_beta
    )
