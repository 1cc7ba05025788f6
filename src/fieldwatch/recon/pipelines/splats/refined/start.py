"""Start of a refinement: open the run with its metrics, rules and schedule."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from fieldwatch import TOOLKIT, ConfigMismatch, Declared, Outputs, Retention, Run, Saving
from fieldwatch.pipeline import RunChoices, holds_run, plain_values, read_manifest, run_options
from fieldwatch.recon.pipelines.splats.refined.config import RefineConfig
from fieldwatch.recon.pipelines.splats.refined.displacement import REFINED_LAYOUT, REFINED_METRICS
from fieldwatch.recon.pipelines.splats.refined.preparation import Refinement
from fieldwatch.recon.pipelines.splats.rules import SPLATS_RULES

REFINED_PIPELINE = "refined"
"""Value of `about.pipeline` in the run.json of a refinement."""


def start_refinement(config: RefineConfig, refinement: Refinement, folder: Path, **how: Unpack[RunChoices]) -> Run:
    """Open the run with its metrics, rules, windows and checkpoint policy.

    Raises:
        ConfigMismatch: The folder contains a run with another config, on other photos, or of another mesh.
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
    """Return the entries of `run.json`, including the coarse run's config, so that the refinement is self-contained."""
    scene = refinement.scene
    photos = refinement.scene.photos
    return {
        "pipeline": REFINED_PIPELINE,
        "scene": config.name,
        "coarse": plain_values(refinement.coarse),
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
    """Reject photos or a mesh that differ from those the refinement in the folder started with."""
    stored = read_manifest(folder).about if holds_run(folder) else {}
    digests = {"photos": stored.get("digest"), "mesh": (stored.get("mesh") or {}).get("digest")}
    current = {"photos": facts["digest"], "mesh": facts["mesh"]["digest"]}
    for name, digest in digests.items():
        if digest is not None and digest != current[name]:
            raise ConfigMismatch(
                f"{folder} was refined with another version of the {name}: restore the original {name}, or refine "
                "into another folder with --out"
            )
