"""A splats run opened again: its config, its scene and the Gaussians of one of its checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from fieldwatch import Checkpoints, Retention
from fieldwatch.pipeline import Device, StoredStateError, Which, config_of_run, load_part, part_of
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.gaussians import PARAMETERS, Gaussians, Rows
from fieldwatch.recon.pipelines.splats.mip_filter import MipFilter
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.start import photos_left_out_by, prepare_scene


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredRun:
    """A splats run, ready to draw.

    Attributes:
        folder: the run folder.
        config: what it was trained with.
        scene: what it was trained on.
        model: its Gaussians, with their 3D filter and the photos' colours where it has them.
        step: the checkpoint's number of finished steps.
    """

    folder: Path
    config: SplatsConfig
    scene: Scene
    model: SplatModel
    step: int


def stored_config(folder: Path) -> SplatsConfig:
    """The config a splats run was started with.

    Raises:
        NotARun: the folder holds no run, one of another pipeline, or its run.json was damaged.
    """
    return config_of_run(folder, "splats", SplatsConfig)


def open_run(folder: Path, checkpoint: Which = "last", *, device: Device | None = None) -> StoredRun:
    """Open a run at one of its checkpoints; nothing in the folder changes.

    Args:
        folder: the run folder.
        checkpoint: "last", "best" (by held-out PSNR), or a step.
        device: where to draw; None means where it was trained.

    Raises:
        NotARun: the folder holds no splats run.
        StoredStateError: there is no such checkpoint, or it is damaged.
        ValueError, OSError: the scene cannot be read any more, as in `prepare_scene`.
    """
    config = stored_config(folder)
    checkpoints = Checkpoints(folder / "checkpoints", keep=Retention(metric="psnr"))
    saved = checkpoints.find(checkpoint)
    items = checkpoints.read(saved.step)
    scene = prepare_scene(replace(config, device=device or config.device), photos_left_out_by(folder))
    try:
        model = model_from(items, scene, antialiased=config.antialiased)
    except StoredStateError as error:
        raise StoredStateError(
            f"{saved.path} does not hold the Gaussians of {folder / 'run.json'} ({error}): restore the one or the other"
        ) from error
    return StoredRun(folder=folder, config=config, scene=scene, model=model, step=saved.step)


def model_from(items: Mapping[str, Any], scene: Scene, *, antialiased: bool = False) -> SplatModel:
    """Make the model that a checkpoint's items hold, on the scene's device.

    Raises:
        StoredStateError: they are not those of a splats run.
    """
    stored = part_of(items, "gaussians")
    gaussians = Gaussians(Rows(**{name: part_of(stored, name) for name in PARAMETERS})).to(scene.device)
    mip = None
    exposures = None
    if "mip" in items:
        mip = MipFilter(scene.training_views, gaussians.means)
        load_part(mip, items, "mip")
    if "exposures" in items:
        exposures = Exposures([scene.photos.names[i] for i in scene.photos.train])
        load_part(exposures, items, "exposures")
        exposures.to(scene.device)
    log_beta = nn.Parameter(part_of(items["beta"], "log_beta").to(scene.device)) if "beta" in items else None
    return SplatModel(
        gaussians, scene.background, mip=mip, exposures=exposures, antialiased=antialiased, log_beta=log_beta
    )
