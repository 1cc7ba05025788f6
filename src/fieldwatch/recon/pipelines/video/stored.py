"""A video run opened again: its config, its scene and the network of one of its checkpoints."""

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
    """A video run, ready to draw.

    Attributes:
        folder: the run folder.
        config: what it was trained with.
        scene: what it was trained on.
        model: the network, in evaluation mode.
        step: the checkpoint's number of finished steps.
        head_trained: the semantic term was active before that step.
    """

    folder: Path
    config: VideoConfig
    scene: VideoScene
    model: VideoModel
    step: int
    head_trained: bool


def stored_config(folder: Path) -> VideoConfig:
    """The config a video run was started with.

    Raises:
        NotARun: the folder holds no run, one of another pipeline, or its run.json was damaged.
    """
    return config_of_run(folder, "video", VideoConfig)


def open_run(folder: Path, checkpoint: CheckpointSelector = "last", *, device: Device | None = None) -> StoredVideoRun:
    """Open a run at one of its checkpoints; nothing in the folder changes.

    Args:
        folder: the run folder.
        checkpoint: "last", "best" (by held-out PSNR), or a step.
        device: where to draw; None means where it was trained.

    Raises:
        NotARun: the folder holds no video run.
        StoredStateError: there is no such checkpoint, or it is damaged.
        ClipError: the clip it was trained on cannot be read any more.
        ValueError: the teacher that made its targets is not here.
    """
    config = stored_config(folder)
    checkpoints = Checkpoints(folder / "checkpoints", keep=Retention(metric="psnr"))
    saved = checkpoints.find(checkpoint)
    items = checkpoints.read(saved.step)
    # stand-ins are for training: making them takes long
    scene_config = replace(_with_its_descriptor(folder, config), device=device or config.device, between_weight=0.0)
    scene = prepare_scene(scene_config)
    _refuse_other_teacher(folder, scene.teacher)
    model = build_model(config.model, scene.geometry, config.options).to(scene.device)
    try:
        load_item(model, items, "model")
    except StoredStateError as error:
        raise StoredStateError(
            f"{saved.path} does not fit the network of {folder / 'run.json'}: restore the one or the other ({error})"
        ) from error
    window = read_manifest(folder).windows.get("clip")
    return StoredVideoRun(
        folder=folder,
        config=config,
        scene=scene,
        model=model.eval(),
        step=saved.step,
        # After n steps the last one was number n - 1.
        head_trained=window is not None and saved.step > window[0],
    )


def check_teacher(folder: Path, config: VideoConfig) -> None:
    """Refuse to continue a run with another teacher than the one it began with ("auto" depends on the machine).

    Raises:
        ValueError: names both, and what to do.
    """
    _refuse_other_teacher(folder, find_teacher(config.teacher).teacher.name)


def _with_its_descriptor(folder: Path, config: VideoConfig) -> VideoConfig:
    """Where "auto" meant the image descriptor, it still does, even if CLIP has come to this machine since."""
    return replace(config, teacher="descriptor") if _teacher(folder) == ImageDescriptor.name else config


def _refuse_other_teacher(folder: Path, available: str) -> None:
    wanted = _teacher(folder)
    if wanted is not None and wanted != available:
        raise InputError(
            f"{folder} was trained on targets by {wanted}, but --teacher {stored_config(folder).teacher} finds "
            f"{available} here: make the first one available (for CLIP, ${CLIP_FOLDER_VARIABLE} names its folder), or "
            "train anew"
        )


def _teacher(folder: Path) -> str | None:
    return read_manifest(folder).about.get("teacher")
