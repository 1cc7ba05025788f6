"""A normals run opened again: its config, its scene and the surface of one of its checkpoints."""

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
    """A normals run, ready to be looked at.

    Attributes:
        folder: the run folder.
        config: what it was trained with.
        scene: what it was trained on.
        model: its surface, grid and poses, in the frame of the unit sphere.
        step: the checkpoint's number of finished steps.
    """

    folder: Path
    config: NormalsConfig
    scene: NormalsScene
    model: NormalsModel
    step: int


def stored_config(folder: Path) -> NormalsConfig:
    """The config a normals run was started with.

    Raises:
        NotARun: the folder holds no run, one of another pipeline, or its run.json was damaged.
    """
    return config_of_run(folder, "normals", NormalsConfig)


def open_run(
    folder: Path, checkpoint: CheckpointSelector = "last", *, device: Device | None = None
) -> StoredNormalsRun:
    """Open a run at one of its checkpoints; nothing in the folder changes.

    Args:
        folder: the run folder.
        checkpoint: "last", "best" (by the mean angular error), or a step.
        device: where to look at it; None means where it was trained.

    Raises:
        NotARun: the folder holds no normals run.
        StoredStateError: there is no such checkpoint, or it is damaged.
        ValueError, OSError: the maps cannot be read any more, as in `prepare_scene`.
    """
    config = stored_config(folder)
    checkpoints = Checkpoints(folder / "checkpoints", keep=Retention(metric="mae", better="lower"))
    saved = checkpoints.find(checkpoint)
    items = checkpoints.read(saved.step)
    here = replace(config, device=device or config.device)
    scene = prepare_scene(here)
    try:
        model = model_from(items, here, scene)
    except StoredStateError as error:
        raise StoredStateError(
            f"{saved.path} does not hold the surface of {folder / 'run.json'} ({error}): restore the one or the other, "
            "or the maps that the run began with"
        ) from error
    return StoredNormalsRun(folder=folder, config=config, scene=scene, model=model, step=saved.step)


def model_from(items: Mapping[str, Any], config: NormalsConfig, scene: NormalsScene) -> NormalsModel:
    """Make the model that a checkpoint's items hold, on the scene's device.

    Raises:
        StoredStateError: they are not those of a normals run with this config.
    """
    model = first_model(config, scene)
    load_item(model, items, "model")
    return model
