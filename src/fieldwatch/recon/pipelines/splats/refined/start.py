"""The start of a refinement: the run opened with what is declared about it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from fieldwatch import TOOLKIT, ConfigMismatch, Declared, Outputs, Retention, Run, Saving
from fieldwatch.pipeline import RunChoices, holds_run, plain, read_manifest, run_options
from fieldwatch.recon.pipelines.splats.refined.config import RefineConfig
from fieldwatch.recon.pipelines.splats.refined.displacement import REFINED_LAYOUT, REFINED_METRICS
from fieldwatch.recon.pipelines.splats.refined.preparation import Refinement
from fieldwatch.recon.pipelines.splats.rules import SPLATS_RULES

REFINED_PIPELINE = "refined"
"""What run.json of a refinement says as `about.pipeline`."""


def start_refinement(config: RefineConfig, refinement: Refinement, folder: Path, **how: Unpack[RunChoices]) -> Run:
    """Open the run with its metrics, rules, windows and checkpoint policy.

    Raises:
        ConfigMismatch: the folder holds a run with another config, on other photos, or of another mesh.
    """
    facts = about_refinement(config, refinement)
    refuse_other_input(folder, facts)
    plan = refinement.scene.plan
    options = run_options(
        how,
        saving=Saving(
            every=plan.checkpoint_every, keep=Retention(last=config.keep_last, best=config.keep_best, metric="psnr")
        ),
        declared=Declared(
            windows=plan.windows,
            phases=plan.phases,
            metrics=TOOLKIT + REFINED_METRICS,
            layout=REFINED_LAYOUT,
            about=facts,
        ),
        outputs=Outputs(rules=SPLATS_RULES),
    )
    return Run(folder, config=config, **options)


def about_refinement(config: RefineConfig, refinement: Refinement) -> Mapping[str, Any]:
    """What `run.json` says of the refinement; with the config of the coarse run, so that it can be opened alone."""
    scene = refinement.scene
    photos = refinement.scene.photos
    return {
        "pipeline": REFINED_PIPELINE,
        "scene": config.name,
        "coarse": plain(refinement.coarse),
        "mesh": {
            "digest": refinement.mesh_digest,
            "triangles": len(refinement.mesh.faces),
            "vertices": len(refinement.mesh.vertices),
            "closed": refinement.mesh.closed,
        },
        "gaussians": len(refinement.gaussians),
        "photos": len(photos),
        "train": [photos.names[i] for i in photos.train],
        "test": [photos.names[i] for i in photos.test],
        "digest": photos.digest,
        "thickness": refinement.gaussians.thickness,
        "notes": list(scene.notes),
    }


def refuse_other_input(folder: Path, facts: Mapping[str, Any]) -> None:
    """A refinement goes on with the very photos and the very mesh that it began with."""
    began = read_manifest(folder).about if holds_run(folder) else {}
    digests = {"photos": began.get("digest"), "mesh": (began.get("mesh") or {}).get("digest")}
    now = {"photos": facts["digest"], "mesh": facts["mesh"]["digest"]}
    for what, digest in digests.items():
        if digest is not None and digest != now[what]:
            raise ConfigMismatch(
                f"{folder} was refined on another state of the {what} than there is now: bring back what it began "
                "with, or refine into another folder with --out"
            )
