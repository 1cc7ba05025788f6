"""Refining a mesh and the Gaussians on it: the loop, step by step."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch

from fieldwatch import ConfigMismatch, Retention, Run, Shuffled
from fieldwatch.health import SPLATS
from fieldwatch.pipelines.splats.algorithm import PRODUCTS, Test
from fieldwatch.pipelines.splats.evaluate import Evaluation
from fieldwatch.pipelines.splats.objective import step_psnr
from fieldwatch.pipelines.splats.refined.beginning import Refinement
from fieldwatch.pipelines.splats.refined.config import RefineConfig
from fieldwatch.pipelines.splats.refined.learning import RefineLearning
from fieldwatch.pipelines.splats.refined.objective import inner_pairs, refine_terms
from fieldwatch.pipelines.splats.refined.products import write_refined_products
from fieldwatch.pipelines.splats.refined.statistics import REFINED_LAYOUT, REFINED_METRICS, MeshWatch
from fieldwatch.pipelines.splats.statistics import Instruments
from fieldwatch.record import TOOLKIT, holds_run, plain, read_history, read_manifest
from fieldwatch.run import Outcome, RunChoices

REFINED_PIPELINE = "refined"
"""What run.json of a refinement says as `about.pipeline`."""


def refine_mesh(
    config: RefineConfig, refinement: Refinement, folder: Path, **how: Unpack[RunChoices]
) -> Outcome[Evaluation]:
    """Train a mesh with the Gaussians on it, in a run folder; a run found there is continued.

    Raises:
        ConfigMismatch: the folder holds a run with another config, on other photos, or of another mesh.
        Diverged: the run could not go on; the message says where to resume.
        Interrupted: a signal came; the step was finished and saved.
    """
    torch.manual_seed(config.seed)
    scene, model, gaussians = refinement.scene, refinement.model, refinement.gaussians
    plan, pairs = scene.plan, inner_pairs(gaussians.faces)
    learning = RefineLearning(config, scene.extent, gaussians)
    order = Shuffled(len(scene.photos.train), 1, config.seed)
    instruments, mesh = Instruments(config, scene, model), MeshWatch(gaussians)
    test = Test(model, scene)

    with start_refinement(config, refinement, folder, **how) as run, scene.drawing(order) as next_shot:
        run.watch(**gaussians.groups())
        run.keep(**model.kept(), **learning.kept(), order=order, instruments=instruments)
        run.hold(photos=scene.photos, pairs=pairs, first_mesh=mesh.held())
        for step in run.steps(plan.total):
            test.before(run, step)
            with step.span("data"), run.stop_point.waiting():
                shot = next_shot()
            with gaussians.placed_once():
                with step.span("render"):
                    degree = gaussians.degree_at(step.index, every=plan.degree_every)
                    drawn = model.draw(shot.view, degree=degree)
                with step.span("loss"):
                    terms = refine_terms(config, model, drawn, shot, normals=gaussians.normals, pairs=pairs)

            learning.zero_grad()
            with step.span("backward"):
                terms.total.backward()
            step.observe(terms, sample=shot.name)
            learning.prepare(step.index, drawn.ids)
            with step.span("optimizer"):
                step.update(*learning.both())

            psnr = step_psnr(drawn, shot)
            step.record({"Model/size": len(gaussians), "Model/work": len(drawn.ids), "Train/PSNR": psnr})
            instruments.after_update(run, step, drawn)
            if step.every(config.stats_every):
                step.record(mesh.metrics())
            del drawn, terms  # else they lie beside those of the next step
            test.after(run, step)
        losses = read_history(folder)["Loss/total"].values[:: config.stats_every]
        products = write_refined_products(
            model,
            scene,
            folder / PRODUCTS,
            iteration=plan.total,
            turntable=config.turntable,
            losses=losses.tolist(),
            optimizers=learning.both(),
            between=partial(run.stop_point, "the products"),
        )
    return Outcome.of(run, test.evaluation, products)


def start_refinement(config: RefineConfig, refinement: Refinement, folder: Path, **how: Unpack[RunChoices]) -> Run:
    """Open the run with its metrics, rules, windows and checkpoint policy.

    Raises:
        ConfigMismatch: the folder holds a run with another config, on other photos, or of another mesh.
    """
    facts = about_refinement(config, refinement)
    refuse_other_input(folder, facts)
    plan = refinement.scene.plan
    return Run(
        folder,
        config=config,
        rules=SPLATS,
        checkpoint_every=plan.checkpoint_every,
        keep=Retention(last=config.keep_last, best=config.keep_best, metric="psnr"),
        windows=plan.windows,
        phases=plan.phases,
        metrics=TOOLKIT + REFINED_METRICS,
        layout=REFINED_LAYOUT,
        about=facts,
        **how,
    )


def about_refinement(config: RefineConfig, refinement: Refinement) -> Mapping[str, Any]:
    """What `run.json` says of the refinement; with the config of the coarse run, so that it can be opened alone."""
    scene, photos = refinement.scene, refinement.scene.photos
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
