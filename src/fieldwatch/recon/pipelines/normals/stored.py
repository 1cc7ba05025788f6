"""Reopening of a normals run: its config, its scene and the model of one of its checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldwatch import Checkpoints, Retention
from fieldwatch.pipeline import CheckpointSelector, Device, StoredStateError, config_of_run, load_item
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.model import NormalsModel, first_model
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.start import prepare_scene


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredNormalsRun:
    """A normals run opened for inspection.

    Attributes:
        folder: run folder.
        config: configuration of the training.
        scene: training data.
        model: surface, grid and poses, in the frame of the unit sphere.
        step: number of finished steps at the checkpoint.
    """

    folder: Path
    config: NormalsConfig
    scene: NormalsScene
    model: NormalsModel
    step: int


def stored_config(folder: Path) -> NormalsConfig:
    """Return the configuration that a normals run was started with.

    Raises:
        NotARun: the folder holds no run or a run of another pipeline, or its run.json is damaged.
    """
    return config_of_run(folder, "normals", NormalsConfig)


def open_run(
    folder: Path, checkpoint: CheckpointSelector = "last", *, device: Device | None = None
) -> StoredNormalsRun:
    """Open a run at one of its checkpoints, read-only.

    Args:
        folder: run folder.
        checkpoint: "last", "best" (by the mean angular error), or a step.
        device: device of the model; None uses that of the training.

    Raises:
        NotARun: the folder holds no normals run.
        StoredStateError: the checkpoint does not exist or is damaged.
        ValueError, OSError: the maps can no longer be read, as in `prepare_scene`.
    """
    config = stored_config(folder)
    checkpoints = Checkpoints(folder / "checkpoints", keep=Retention(metric="mae", better="lower"))
    saved = checkpoints.find(checkpoint)
    items = checkpoints.read(saved.step)
    # The device of the training may not exist on this machine.
    here = replace(config, device=device or config.device)
    scene = prepare_scene(here)
    try:
        model = model_from(items, here, scene)
    except StoredStateError as error:
        raise StoredStateError(
            f"{saved.path} does not match {folder / 'run.json'} ({error}): restore one of the two, or the maps that "
            "the run was started with"
        ) from error
    return StoredNormalsRun(folder=folder, config=config, scene=scene, model=model, step=saved.step)


def model_from(items: Mapping[str, Any], config: NormalsConfig, scene: NormalsScene) -> NormalsModel:
    """Create a model from the items of a checkpoint, on the scene's device.

    Raises:
        StoredStateError: the items do not belong to a normals run with this config.
    """
    model = first_model(config, scene)
    load_item(model, items, "model")
    return model
