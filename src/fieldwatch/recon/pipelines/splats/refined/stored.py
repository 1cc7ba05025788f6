"""Reopening a refinement: its config, its scene, and the mesh and Gaussians of one of its checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldwatch import Checkpoints, Retention
from fieldwatch.pipeline import (
    CheckpointSelector,
    Device,
    StoredStateError,
    config_from_plain,
    config_of_run,
    load_item,
    read_manifest,
    stored_item,
)
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.refined.binding import BoundGaussians, BoundRows
from fieldwatch.recon.pipelines.splats.refined.config import RefineConfig
from fieldwatch.recon.pipelines.splats.refined.schedule import make_refine_plan
from fieldwatch.recon.pipelines.splats.refined.start import REFINED_PIPELINE
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.start import prepare_scene
from fieldwatch.recon.pipelines.splats.stored import StoredRun, open_run


@dataclass(frozen=True, kw_only=True, eq=False)
class RefinedRun(StoredRun):
    """A stored refinement, ready to render. `config` is that of the coarse run, which provides the photos.

    Attributes:
        refine: settings of the refinement.
        bound: mesh and bound Gaussians that the model renders.
    """

    refine: RefineConfig
    bound: BoundGaussians


def stored_refine_config(folder: Path) -> RefineConfig:
    """Return the config that a refinement was started with.

    Raises:
        NotARun: The folder contains no run or a run of another pipeline, or its run.json is damaged.
    """
    return config_of_run(folder, REFINED_PIPELINE, RefineConfig)


def open_drawn_run(folder: Path, checkpoint: CheckpointSelector = "last", *, device: Device | None = None) -> StoredRun:
    """Open a splats run or a refinement at one of its checkpoints, without modifying the folder.

    Raises:
        NotARun, CheckpointError, ValueError, OSError: As in `open_run`.
    """
    refined = _pipeline(folder) == REFINED_PIPELINE
    return (open_refined_run if refined else open_run)(folder, checkpoint, device=device)


def open_refined_run(
    folder: Path, checkpoint: CheckpointSelector = "last", *, device: Device | None = None
) -> RefinedRun:
    """Open a refinement at one of its checkpoints; the coarse run and the original mesh are not needed.

    Args:
        folder: run folder.
        checkpoint: "last", "best" (by held-out PSNR), or a step.
        device: device to render on; None uses the run's.

    Raises:
        NotARun: The folder contains no refinement.
        StoredStateError: The checkpoint does not exist or is damaged.
        ValueError, OSError: The photos cannot be read, as in `prepare_scene`.
    """
    config = stored_refine_config(folder)
    checkpoints = Checkpoints(folder / "checkpoints", keep=Retention(metric="psnr"))
    saved = checkpoints.find(checkpoint)
    items = checkpoints.read(saved.step)
    about = read_manifest(folder).about
    coarse = config_from_plain(SplatsConfig, about["coarse"])
    scene = prepare_scene(replace(coarse, device=device or config.device))
    scene = replace(scene, plan=make_refine_plan(config), cloud=None, loaded=None)
    try:
        model = _model(items, scene, config, antialiased=coarse.antialiased, thickness=float(about["thickness"]))
    except StoredStateError as error:
        raise StoredStateError(
            f"{saved.path} does not contain the mesh of {folder / 'run.json'} ({error}): restore one of the two"
        ) from error
    return RefinedRun(
        folder=folder,
        config=coarse,
        scene=scene,
        model=model,
        step=saved.step,
        refine=config,
        bound=model.gaussians,
    )


def _model(
    items: Mapping[str, Any], scene: Scene, config: RefineConfig, *, antialiased: bool, thickness: float
) -> SplatModel[BoundGaussians]:
    stored = stored_item(items, "gaussians")
    rows = BoundRows(**{name: stored_item(stored, name) for name in BoundRows._fields})
    gaussians = BoundGaussians(
        stored_item(stored, "vertices"),
        stored_item(stored, "faces"),
        rows,
        per_triangle=config.gaussians_per_triangle,
        thickness=thickness,
    ).to(scene.device)
    exposures = None
    if "exposures" in items:
        exposures = Exposures([scene.photos.names[i] for i in scene.photos.train])
        load_item(exposures, items, "exposures")
        exposures.to(scene.device)
    return SplatModel(gaussians, scene.background, exposures=exposures, antialiased=antialiased)


def _pipeline(folder: Path) -> str | None:
    about = read_manifest(folder).about
    return about.get("pipeline") if isinstance(about, Mapping) else None
