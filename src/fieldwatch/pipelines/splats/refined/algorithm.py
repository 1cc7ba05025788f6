"""Refining a mesh and the Gaussians on it: the loop, step by step."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from jaxtyping import Int64
from torch import Tensor

from fieldwatch import ConfigMismatch, Parts, Retention, Run, Shuffled, Step
from fieldwatch.health import SPLATS
from fieldwatch.pipelines.splats.algorithm import PRODUCTS, Test, in_parts
from fieldwatch.pipelines.splats.bands import most_bands
from fieldwatch.pipelines.splats.evaluate import Evaluation
from fieldwatch.pipelines.splats.objective import step_psnr
from fieldwatch.pipelines.splats.refined.beginning import Refinement
from fieldwatch.pipelines.splats.refined.config import RefineConfig
from fieldwatch.pipelines.splats.refined.learning import RefineLearning
from fieldwatch.pipelines.splats.refined.objective import inner_pairs, refine_terms
from fieldwatch.pipelines.splats.refined.products import write_refined_products
from fieldwatch.pipelines.splats.refined.statistics import REFINED_LAYOUT, REFINED_METRICS, MeshWatch
from fieldwatch.pipelines.splats.scene import Shot
from fieldwatch.pipelines.splats.shown import Shown
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
    learner = RefineLearner(config, refinement, learning, pairs)
    parts, looks = (Parts(name, most=most_bands(scene.views)) for name in ("picture", "evaluation"))
    test = Test(model, scene, looks)

    with start_refinement(config, refinement, folder, **how) as run, scene.drawing(order) as next_batch:
        run.watch(**gaussians.groups())
        state = {"order": order, "instruments": instruments, "parts": parts, "looks": looks}
        run.keep(**model.kept(), **learning.kept(), **state)
        run.hold(photos=scene.photos, pairs=pairs, first_mesh=mesh.held())
        for step in run.steps(plan.total):
            test.before(run, step)
            with step.span("data"), run.stop_point.waiting():
                (shot,) = next_batch().shots
            shown = run.attempts.result(parts, partial(learner.gradients, step, shot, parts))
            step.observe(shown.terms, sample=shot.name)
            learning.prepare(step.index, shown.ids)
            with step.span("optimizer"):
                step.update(*learning.both())

            step.record({"Model/size": len(gaussians), "Model/work": len(shown.ids), "Train/PSNR": shown.psnr})
            instruments.after_update(run, step, shown)
            if step.every(config.stats_every):
                step.record(mesh.metrics())
            del shown  # else it lies beside that of the next step
            test.after(run, step)
        losses = read_history(folder)["Loss/total"].values[:: config.stats_every]
        write = partial(
            write_refined_products,
            model,
            scene,
            folder / PRODUCTS,
            iteration=plan.total,
            turntable=config.turntable,
            losses=losses.tolist(),
            optimizers=learning.both(),
            between=partial(run.stop_point, "the products"),
        )
        products = in_parts(run, model, looks, write)
    return Outcome.of(run, test.evaluation, products)


class RefineLearner:
    """Makes the gradients of a step: draws a view, compares it with its photo, and goes backward.

    Args:
        config: settings.
        refinement: the mesh, its Gaussians, and the photos.
        learning: what steps them.
        pairs: faces that share an edge.
    """

    def __init__(
        self, config: RefineConfig, refinement: Refinement, learning: RefineLearning, pairs: Int64[Tensor, "e 2"]
    ) -> None:
        self._config, self._refinement, self._learning, self._pairs = config, refinement, learning, pairs

    def gradients(self, step: Step, shot: Shot, parts: Parts) -> Shown:
        """Make them, in as many bands of the picture as memory wants."""
        model, gaussians = self._refinement.model, self._refinement.gaussians
        self._learning.zero_grad()
        with gaussians.placed_once(), model.in_parts(parts.count):
            with step.span("render"):
                degree = gaussians.degree_at(step.index, every=self._refinement.scene.plan.degree_every)
                drawn = model.draw(shot.view, degree=degree)
            with step.span("loss"):
                terms = refine_terms(self._config, model, drawn, shot, normals=gaussians.normals, pairs=self._pairs)
        with step.span("backward"):
            terms.total.backward()
        return Shown.of(terms, step_psnr(drawn, shot), drawn, shot, None)


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
