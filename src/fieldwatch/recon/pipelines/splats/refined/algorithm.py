"""Refining a mesh and the Gaussians on it: the loop, step by step."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Unpack

import torch

from fieldwatch import MicroBatches, Run, Shuffled, Terms, read_history
from fieldwatch.files import output_path
from fieldwatch.pipeline import Outcome, RunChoices
from fieldwatch.recon.losses import find_lpips
from fieldwatch.recon.pipelines import RENAMED_ITEMS
from fieldwatch.recon.pipelines.splats.algorithm import PRODUCTS, evaluate_and_show
from fieldwatch.recon.pipelines.splats.bands import ViewInBands, band_count, most_bands, split_views
from fieldwatch.recon.pipelines.splats.evaluation import Evaluation
from fieldwatch.recon.pipelines.splats.objective import photo_similarity, step_psnr
from fieldwatch.recon.pipelines.splats.refined.beginning import Refinement
from fieldwatch.recon.pipelines.splats.refined.config import RefineConfig
from fieldwatch.recon.pipelines.splats.refined.learning import RefineLearning
from fieldwatch.recon.pipelines.splats.refined.objective import inner_pairs, normal_consistency
from fieldwatch.recon.pipelines.splats.refined.products import write_refined_products
from fieldwatch.recon.pipelines.splats.refined.start import start_refinement
from fieldwatch.recon.pipelines.splats.refined.statistics import MeshWatch
from fieldwatch.recon.pipelines.splats.statistics import Instruments
from fieldwatch.recon.pipelines.splats.step_output import StepSummary, ViewOutput, without_maps


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
    pairs = inner_pairs(gaussians.faces)
    learning = RefineLearning(config, scene.extent, gaussians)
    order = Shuffled(len(scene.photos.train), 1, config.seed)
    instruments = Instruments(config, scene, model)
    mesh = MeshWatch(gaussians)
    split = partial(split_views, views=1, device=scene.device)
    micro_batches = MicroBatches("picture", most=most_bands(scene.views))
    evaluation_batches = MicroBatches("evaluation", most=most_bands(scene.views))
    lpips, _ = find_lpips()
    run = start_refinement(config, refinement, folder, **how)
    evaluation: Evaluation | None = None

    def evaluate_at(position: int) -> Evaluation | None:
        show = partial(evaluate_and_show, run, model, scene, evaluation_batches, lpips, position)
        return run.evaluate("evaluation", show, micro_batches=evaluation_batches)

    def objective(piece: ViewInBands) -> ViewOutput:
        """Compare a view of the Gaussians on the mesh with its photo, and neighboring faces (SuGaR, section 4.3)."""
        view = piece.view
        with gaussians.placed_once():
            with run.span("render"):
                degree = gaussians.degree_at(run.step_index, every=plan.degree_every)
                rendered = model.render(view.camera, degree=degree, bands=piece.bands)
            with run.span("loss"):
                alike = photo_similarity(model.exposures, rendered, view)
                terms = Terms(rendering=(1.0, (1 - config.dssim) * alike.l1 + config.dssim * (1 - alike.ssim)))
                if config.normal_consistency_weight:
                    error = normal_consistency(gaussians.normals, pairs)
                    terms |= Terms(normal_consistency=(config.normal_consistency_weight, error))
        psnr = step_psnr(rendered, view)
        return ViewOutput(terms=terms, camera=view.camera, psnr=psnr, on_screen=without_maps(rendered))

    with run, scene.drawing(order) as next_batch:
        state = {"order": order, "instruments": instruments}
        state |= {"micro_batches": micro_batches, "evaluation_batches": evaluation_batches}
        data = {"photos": scene.photos, "pairs": pairs, "first_mesh": mesh.held()}
        run.track(**model.kept(), **learning.kept(), **state, groups=gaussians.groups(), data=data)
        run.resume(renamed=RENAMED_ITEMS)
        for step in run.steps(plan.total):
            if step.index == plan.first and plan.first in plan.tests:
                evaluation = evaluate_at(plan.first)
            with step.span("data"), run.stop_point.waiting():
                batch = next_batch()
            # zero_grad, forward, backward; in more bands after an out-of-memory error
            outputs = step.backward(objective, batch, split=split, samples=batch.names)
            summary = StepSummary.of(outputs)
            learning.set_rates(step.index, summary.visible)
            with step.span("optimizer"):
                step.update(*learning.both())

            visible = summary.visible
            step.record({"Model/size": len(gaussians), "Model/work": len(visible), "Train/PSNR": summary.psnr})
            instruments.after_update(run, step, visible)
            if step.every(config.stats_every):
                step.record(mesh.metrics())
            del outputs, summary, visible  # otherwise they take memory beside those of the next step
            if step.index + 1 in plan.tests:
                evaluation = evaluate_at(step.index + 1)
                run.save_after_step({} if evaluation is None else {"psnr": evaluation.score})
        write = partial(products_of, config, refinement, learning, run, evaluation_batches)
        products = run.retry(write, evaluation_batches)
    return Outcome.of(run, evaluation, products)


def products_of(
    config: RefineConfig,
    refinement: Refinement,
    learning: RefineLearning,
    run: Run,
    evaluation_batches: MicroBatches,
) -> Mapping[str, Path]:
    """Write what the refinement gives to others; its state is saved by now."""
    losses = read_history(run.folder)["Loss/total"].values[:: config.stats_every]
    return write_refined_products(
        refinement.model,
        refinement.scene,
        output_path(run.folder, PRODUCTS),
        iteration=refinement.scene.plan.total,
        turntable=config.turntable,
        losses=losses.tolist(),
        optimizers=learning.both(),
        bands=band_count(evaluation_batches.count),
        between=partial(run.stop_point, "the products"),
    )
