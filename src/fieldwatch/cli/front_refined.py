"""Refined meshes, as the commands see them."""

from pathlib import Path

from fieldwatch.checkpoint import CheckpointError
from fieldwatch.cli.ending import BadInput
from fieldwatch.cli.front import Front, Job
from fieldwatch.cli.front_splats import SHOWN, quality_table
from fieldwatch.losses import find_lpips
from fieldwatch.pipelines.splats import (
    REFINED_PIPELINE,
    RefineConfig,
    Refinement,
    prepare_refinement,
    refine_mesh,
)


def prepare(config: RefineConfig) -> Job:
    """Read run and mesh, and put Gaussians on it.

    Raises:
        ValueError, OSError: what came, what was wanted, what to do.
        BadInput: the run has no such checkpoint.
    """
    try:
        refinement = prepare_refinement(config)
    except CheckpointError as error:
        raise BadInput(str(error)) from error
    lpips, why = find_lpips()
    return Job(
        headline=headline(config, refinement),
        notes=(*refinement.scene.notes, *([] if lpips else [f"LPIPS is not measured: {why}"])),
        device=refinement.scene.device,
        total=config.iterations,
        shown={tag: text for tag, text in SHOWN.items() if tag != "Model/size"},
        train=lambda folder, how: refine_mesh(config, refinement, folder, **how),
    )


def headline(config: RefineConfig, refinement: Refinement) -> str:
    """What will be trained on what."""
    photos, mesh = refinement.scene.photos, refinement.mesh
    kind = "a closed" if mesh.closed else "an open"
    return (
        f"{kind} mesh of {len(mesh.faces):,} triangles, {config.gaussians_per_triangle} Gaussian"
        f"{'s' if config.gaussians_per_triangle > 1 else ''} on each; {len(photos.train)} photos train, "
        f"{len(photos.test)} held out; {config.iterations} steps"
    )


def _run_and_mesh_are_there(folder: Path, config: RefineConfig) -> None:
    """A refinement goes on where its run and its mesh still are.

    Raises:
        FileNotFoundError: one of them is gone.
    """
    for what, place in (("run", config.run), ("mesh", config.mesh)):
        if not place.expanduser().exists():
            raise FileNotFoundError(
                f"{folder} refines the {what} {place}, which is not there any more: bring it back to go on; evaluating "
                "and drawing what is stored work without it"
            )


REFINED_FRONT = Front(
    name=REFINED_PIPELINE,
    config=RefineConfig,
    prepare=prepare,
    quality=quality_table,
    measured=("Test/", "Surface/"),
    longer="--iterations",
    check_resumable=_run_and_mesh_are_there,
)
