"""Refinement of a mesh for the commands: preparation, headline."""

from pathlib import Path

from fieldwatch import InputError
from fieldwatch.pipeline import Job, Outcome, RunChoices
from fieldwatch.recon.commands.splats.job import SHOWN, lpips_note
from fieldwatch.recon.commands.view.splats_window import OnStepEnd, splats_window
from fieldwatch.recon.losses import find_lpips
from fieldwatch.recon.pipelines.splats import (
    Evaluation,
    RefineConfig,
    Refinement,
    prepare_refinement,
    refine_mesh,
)


def prepare(config: RefineConfig) -> Job:
    """Read run and mesh, and bind Gaussians to the triangles.

    Raises:
        InputError, OSError: the run, its checkpoint, its photos or the mesh cannot be used.
    """
    refinement = prepare_refinement(config)

    def train(folder: Path, how: RunChoices, on_step_end: OnStepEnd | None = None) -> Outcome[Evaluation]:
        return refine_mesh(config, refinement, folder, on_step_end, **how)

    lpips, why = find_lpips()
    return Job(
        headline=headline(config, refinement),
        notes=(*refinement.scene.notes, *([] if lpips else [lpips_note(why)])),
        device=str(refinement.scene.device),
        total=config.iterations,
        # The number of Gaussians is fixed by the mesh.
        progress_tags={tag: text for tag, text in SHOWN.items() if tag != "Model/size"},
        train=train,
        window=lambda port: splats_window(port, refinement.scene, train, title="a refined mesh"),
    )


def headline(config: RefineConfig, refinement: Refinement) -> str:
    """Return a line about the data and the training."""
    photos, mesh = refinement.scene.photos, refinement.mesh
    kind = "a closed" if mesh.closed else "an open"
    return (
        f"{kind} mesh of {len(mesh.faces):,} triangles, {config.gaussians_per_triangle} Gaussian"
        f"{'s' if config.gaussians_per_triangle > 1 else ''} on each; {len(photos.train)} photos train, "
        f"{len(photos.test)} held out; {config.iterations} steps"
    )


def check_resumable(folder: Path, config: RefineConfig) -> None:
    """Refuse to resume a refinement whose run or mesh no longer exists.

    Raises:
        InputError: the run or the mesh is missing.
    """
    for what, path in (("run", config.run), ("mesh", config.mesh)):
        if not path.expanduser().exists():
            raise InputError(
                f"{folder} refines the {what} {path}, which no longer exists: restore it to resume; evaluating "
                "and rendering the stored model work without it"
            )
