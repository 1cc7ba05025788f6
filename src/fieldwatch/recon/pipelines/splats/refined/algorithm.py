"""Refining a mesh and the Gaussians on it: the loop, step by step."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Unpack

import torch

from fieldwatch import MicroBatches, Run, Shuffled, Terms, read_history
from fieldwatch.files import output_path
from fieldwatch.pipeline import Outcome, RunChoices
from fieldwatch.recon.pipelines import RENAMED_ITEMS
from fieldwatch.recon.pipelines.splats.algorithm import PRODUCTS
from fieldwatch.recon.pipelines.splats.bands import ViewInBands, max_bands, split_views
from fieldwatch.recon.pipelines.splats.evaluation import Evaluation
from fieldwatch.recon.pipelines.splats.evaluator import Evaluator
from fieldwatch.recon.pipelines.splats.objective import photo_similarity
from fieldwatch.recon.pipelines.splats.population import PopulationMonitor
from fieldwatch.recon.pipelines.splats.refined.config import RefineConfig
from fieldwatch.recon.pipelines.splats.refined.displacement import MeshDisplacement
from fieldwatch.recon.pipelines.splats.refined.objective import inner_pairs, normal_consistency
from fieldwatch.recon.pipelines.splats.refined.optimizers import RefineOptimizers
from fieldwatch.recon.pipelines.splats.refined.preparation import Refinement
from fieldwatch.recon.pipelines.splats.refined.products import write_refined_products
from fieldwatch.recon.pipelines.splats.refined.start import start_refinement
from fieldwatch.recon.pipelines.splats.step_output import StepSummary, ViewOutput


def refine_mesh(  # noqa: PLR0915  the whole loop and the objective, to be read in one place
    config: RefineConfig, refinement: Refinement, folder: Path, **how: Unpack[RunChoices]
) -> Outcome[Evaluation]:
    """Train a mesh with the Gaussians on it, in a run folder; a run found there is continued.

    Raises:
        ConfigMismatch: the folder holds a run with another config, on other photos, or of another mesh.
        Diverged: the run could not go on; the message says where to resume.
        Interrupted: a signal came; the step was finished and saved.
    """
    torch.manual_seed(config.seed)
    scene = refinement.scene
    model = refinement.model
    gaussians = refinement.gaussians
    plan = scene.plan
    # Once: the vertices move, but the faces stay.
    pairs = inner_pairs(gaussians.faces)
    optimizers = RefineOptimizers(config, scene.extent, gaussians)
    order = Shuffled(len(scene.photos.train), 1, config.seed)
    monitor = PopulationMonitor(config, scene, model)
    # Before `run.resume`, which puts the vertices of a checkpoint in place of those of the first step.
    displacement = MeshDisplacement(gaussians)
    evaluator = Evaluator(scene, model)
    micro_batches = MicroBatches("picture", most=max_bands(scene.views))
    split = partial(split_views, views=1, device=scene.device)
    run = start_refinement(config, refinement, folder, **how)
    evaluation: Evaluation | None = None

    def objective(piece: ViewInBands) -> ViewOutput:
        """Compare a view of the Gaussians on the mesh with its photo, and neighboring faces (SuGaR, section 4.3)."""
        view = piece.view
        # Centers, quaternions and the term below share corners and normals, and the graph through them.
        with gaussians.cached_geometry():
            with run.span("render"):
                degree = gaussians.degree_at(run.step_index, every=plan.degree_every)
                output = model.render(view.camera, degree=degree, bands=piece.bands)
            with run.span("loss"):
                similarity = photo_similarity(model.exposures, output, view)
                rendering = (1 - config.dssim) * similarity.l1 + config.dssim * (1 - similarity.ssim)
                terms = Terms(rendering=(1.0, rendering))
                if config.normal_consistency_weight:
                    error = normal_consistency(gaussians.normals, pairs)
                    terms |= Terms(normal_consistency=(config.normal_consistency_weight, error))
        return ViewOutput.of(terms, output, view)

    with run, scene.batches(order) as next_batch:
        state = {"order": order, "instruments": monitor}
        state |= {"micro_batches": micro_batches, "evaluation_batches": evaluator.micro_batches}
        state |= model.checkpoint_items() | optimizers.checkpoint_items()
        data = {"photos": scene.photos, "pairs": pairs, "first_mesh": displacement.initial_mesh}
        run.track(**state, groups=gaussians.groups(), data=data)
        run.resume(renamed=RENAMED_ITEMS)
        for step in run.steps(plan.total):
            if step.index == plan.first and plan.first in plan.tests:
                evaluation = evaluator.evaluate(run, plan.first)
            with step.span("data"), run.stop_point.waiting():
                batch = next_batch()
            # zero_grad, forward, backward; in more bands after an out-of-memory error
            outputs = step.backward(objective, batch, split=split, samples=batch.names)
            summary = StepSummary.of(outputs)
            optimizers.set_rates(step.index, summary.visible)
            with step.span("optimizer"):
                step.update(*optimizers.both)

            visible = summary.visible
            step.record({"Model/size": len(gaussians), "Model/work": len(visible), "Train/PSNR": summary.psnr})
            monitor.after_update(run, step, visible)
            if step.every(config.stats_every):
                step.record(displacement.metrics())
            del outputs, summary, visible  # otherwise they take memory beside those of the next step
            if step.index + 1 in plan.tests:
                evaluation = evaluator.evaluate(run, step.index + 1)
                run.save_after_step({} if evaluation is None else {"psnr": evaluation.score})
        write = partial(products_of, config, refinement, optimizers, run, evaluator)
        products = run.retry(write, evaluator.micro_batches)
    return Outcome.of(run, evaluation, products)


def products_of(
    config: RefineConfig,
    refinement: Refinement,
    optimizers: RefineOptimizers,
    run: Run,
    evaluator: Evaluator,
) -> Mapping[str, Path]:
    """Write the products of a refinement, whose state is saved by now."""
    losses = read_history(run.folder)["Loss/total"].values[:: config.stats_every]
    return write_refined_products(
        refinement.model,
        refinement.scene,
        output_path(run.folder, PRODUCTS),
        iteration=refinement.scene.plan.total,
        turntable=config.turntable,
        losses=losses.tolist(),
        optimizers=optimizers.both,
        bands=evaluator.bands,
        between=partial(run.stop_point, "the products"),
    )
