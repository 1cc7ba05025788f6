"""Reopening of a video run: its config, its scene and the network of one of its checkpoints."""

from dataclasses import dataclass, replace
from pathlib import Path

from fieldwatch import Checkpoints, InputError, Retention
from fieldwatch.pipeline import CheckpointSelector, Device, StoredStateError, config_of_run, load_item, read_manifest
from fieldwatch.recon.pipelines.video.config import VideoConfig
from fieldwatch.recon.pipelines.video.descriptor import ImageDescriptor
from fieldwatch.recon.pipelines.video.models import VideoModel, build_model
from fieldwatch.recon.pipelines.video.scene import VideoScene
from fieldwatch.recon.pipelines.video.start import prepare_scene
from fieldwatch.recon.pipelines.video.teacher import CLIP_FOLDER_VARIABLE, find_teacher


@dataclass(frozen=True, kw_only=True)
class StoredVideoRun:
    """A video run opened for rendering.

    Attributes:
        folder: run folder.
        config: configuration of the training.
        scene: training data.
        model: network, in evaluation mode.
        step: number of finished steps at the checkpoint.
        head_trained: whether the semantic term was active before that step.
    """

    folder: Path
    config: VideoConfig
    scene: VideoScene
    model: VideoModel
    step: int
    head_trained: bool


def stored_config(folder: Path) -> VideoConfig:
    """Return the configuration that a video run was started with.

    Raises:
        NotARun: the folder holds no run or a run of another pipeline, or its run.json is damaged.
    """
    return config_of_run(folder, "video", VideoConfig)


def open_run(folder: Path, checkpoint: CheckpointSelector = "last", *, device: Device | None = None) -> StoredVideoRun:
    """Open a run at one of its checkpoints, read-only.

    Args:
        folder: run folder.
        checkpoint: "last", "best" (by held-out PSNR), or a step.
        device: device of the network; None uses that of the training.

    Raises:
        NotARun: the folder holds no video run.
        StoredStateError: the checkpoint does not exist or is damaged.
        ClipError: the training clip can no longer be read.
        ValueError: the teacher of its targets is not available.
    """
    config = stored_config(folder)
    checkpoints = Checkpoints(folder / "checkpoints", keep=Retention(metric="psnr"))
    saved = checkpoints.find(checkpoint)
    items = checkpoints.read(saved.step)
    # Interpolated frames are slow to compute and needed for training only.
    scene_config = replace(
        _with_its_descriptor(folder, config),
        device=device or config.device,
        between_weight=0.0,
        between_motion="straight",
    )
    scene = prepare_scene(scene_config)
    _refuse_other_teacher(folder, scene.teacher)
    model = build_model(config.model, scene.geometry, config.options).to(scene.device)
    try:
        load_item(model, items, "model")
    except StoredStateError as error:
        raise StoredStateError(
            f"{saved.path} does not match the network of {folder / 'run.json'}: restore one of the two ({error})"
        ) from error
    # From the record, not from the config: it is the window in steps of the actual training.
    window = read_manifest(folder).windows.get("clip")
    return StoredVideoRun(
        folder=folder,
        config=config,
        scene=scene,
        model=model.eval(),
        step=saved.step,
        # Steps are numbered from 0: after n steps, the last one was n - 1.
        head_trained=window is not None and saved.step > window[0],
    )


def check_teacher(folder: Path, config: VideoConfig) -> None:
    """Refuse to resume a run with another teacher than it was started with ("auto" depends on the machine).

    Raises:
        ValueError: the teachers differ; the message names both and what to do.
    """
    _refuse_other_teacher(folder, find_teacher(config.teacher).teacher.name)


def _with_its_descriptor(folder: Path, config: VideoConfig) -> VideoConfig:
    """Keep the image descriptor if "auto" selected it at the start, even if CLIP has become available since."""
    return replace(config, teacher="descriptor") if _teacher(folder) == ImageDescriptor.name else config


def _refuse_other_teacher(folder: Path, available: str) -> None:
    expected = _teacher(folder)
    # Records without this entry cannot be checked.
    if expected is not None and expected != available:
        raise InputError(
            f"{folder} was trained on targets by {expected}, but --teacher {stored_config(folder).teacher} finds "
            f"{available} here: make {expected} available (for CLIP, set ${CLIP_FOLDER_VARIABLE} to its folder), or "
            "start a new training"
        )


def _teacher(folder: Path) -> str | None:
    return read_manifest(folder).about.get("teacher")
