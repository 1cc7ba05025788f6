"""Training Gaussians from photos to a surface: the objective, and the loop step by step."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch

from fieldwatch import MicroBatches, Run, Shuffled, Terms, read_history
from fieldwatch.files import output_path
from fieldwatch.pipeline import Outcome, RunChoices
from fieldwatch.recon.losses import Lpips, find_lpips, flatness_error, opacity_entropy
from fieldwatch.recon.pipelines import RENAMED_ITEMS
from fieldwatch.recon.pipelines.splats.bands import ViewInBands, band_count, most_bands, split_views
from fieldwatch.recon.pipelines.splats.beginning import first_model
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.densification import Densification
from fieldwatch.recon.pipelines.splats.evaluation import Evaluation, evaluate
from fieldwatch.recon.pipelines.splats.growth import Sampling, mean_opacity, mean_scale
from fieldwatch.recon.pipelines.splats.learning import Learning
from fieldwatch.recon.pipelines.splats.meshing import mesh_metrics
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.neighbourhood import Neighbourhood
from fieldwatch.recon.pipelines.splats.objective import (
    RenderedView,
    Span,
    compare_with_photo,
    density_acts,
    density_terms,
    depth_normal,
    geometry_at,
    step_psnr,
)
from fieldwatch.recon.pipelines.splats.products import write_products, write_stage0
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.show import show_evaluation
from fieldwatch.recon.pipelines.splats.start import as_it_began, start_run
from fieldwatch.recon.pipelines.splats.statistics import Instruments
from fieldwatch.recon.pipelines.splats.step_output import StepSummary, ViewOutput, without_maps

STAGE0 = "3dgs"
"""Folder, in the run folder, of what stage 0 made, as 3D Gaussian splatting would leave it."""
PRODUCTS = "products"


def loss_terms(
    config: SplatsConfig, scene: Scene, one: RenderedView, neighbourhood: Neighbourhood, span: Span
) -> Terms:
    """Return the terms of a view's loss with their weights; each acts in its window of the plan."""
    plan = scene.plan
    step = one.step
    surface = config.surface
    gaussians = one.model.gaussians
    alike = compare_with_photo(config, one)
    terms = Terms(rendering=(1.0, (1 - config.dssim) * alike.l1 + config.dssim * (1 - alike.ssim)))
    if plan.acts("opacity", step):  # MCMC growth
        weights = Sampling()
        terms |= Terms(opacity=(weights.opacity_weight, mean_opacity(gaussians)))
        terms |= Terms(scale=(weights.scale_weight, mean_scale(gaussians)))
    if plan.acts("entropy_regularization", step):
        terms |= Terms(entropy_regularization=(surface.entropy_weight, opacity_entropy(one.opacities())))
    if plan.acts("depth_normal_consistency", step):
        with span("loss_depth_normal"):
            error = depth_normal(config, scene.photos.cameras[one.view.index], one)
        terms |= Terms(depth_normal_consistency=(surface.depth_normal_weight, error))
    if plan.acts("flatness", step):
        terms |= Terms(flatness=(surface.flatness_weight, flatness_error(one.scales()) / scene.size))
    if density_acts(config, scene, step):
        with span("loss_density"):
            terms |= density_terms(config, scene, one, neighbourhood.at(step, gaussians.means))
    return terms


def train_splats(  # noqa: C901, PLR0915  the whole loop and the objective, to be read in one place
    config: SplatsConfig, scene: Scene, folder: Path, **how: Unpack[RunChoices]
) -> Outcome[Evaluation]:
    """Train Gaussians on photos, in a run folder; a run found there is continued.

    Raises:
        Diverged: the run could not go on; the message says where to resume.
        Interrupted: a signal came; the step was finished and saved.
    """
    torch.manual_seed(config.seed)
    scene = as_it_began(config, scene, folder)
    plan = scene.plan
    model = first_model(config, scene)
    gaussians = model.gaussians
    views = config.views_per_step
    learning = Learning(config, scene, model)
    densification = Densification(config, scene, model)
    order = Shuffled(len(scene.photos.train), 1, config.seed)
    neighbourhood = Neighbourhood(config.surface.neighbours, scene.device)
    instruments = Instruments(config, scene, model)
    split = partial(split_views, views=views, device=scene.device)
    micro_batches = MicroBatches("picture", most=most_bands(scene.views))
    evaluation_batches = MicroBatches("evaluation", most=most_bands(scene.views))
    lpips, _ = find_lpips()
    run = start_run(config, scene, folder, **how)
    evaluation: Evaluation | None = None

    def evaluate_at(position: int) -> Evaluation | None:
        show = partial(evaluate_and_show, run, model, scene, evaluation_batches, lpips, position)
        found = run.evaluate("evaluation", show, micro_batches=evaluation_batches)
        if config.extract_test_meshes:
            measure = partial(evaluate_mesh, run, model, scene, evaluation_batches, position)
            run.evaluate("test mesh", measure, micro_batches=evaluation_batches)
        return found

    def objective(piece: ViewInBands) -> ViewOutput:
        """Render a view, and compare it with its photo."""
        step = run.step_index
        view = piece.view
        with run.span("render"):
            rendered = model.render(
                view.camera,
                degree=gaussians.degree_at(step, every=plan.degree_every),
                magnitudes=densification.magnitudes(step),
                bands=piece.bands,
                **geometry_at(config, scene, step),
            )
        with run.span("loss"):
            one = RenderedView.of(step, model, rendered, view, bands=piece.bands, generator=piece.generator)
            terms = loss_terms(config, scene, one, neighbourhood, run.span)
        losses = terms.total.detach()[None] if views > 1 else None
        on_screen = without_maps(rendered)
        psnr = step_psnr(rendered, view)
        return ViewOutput(terms=terms, sample_loss=losses, camera=view.camera, psnr=psnr, on_screen=on_screen)

    with neighbourhood, run, scene.drawing(order, views, run.ranks.shard_of(views).padded) as next_batch:
        state = {"changes": densification, "order": order, "neighbours": neighbourhood, "instruments": instruments}
        state |= {"micro_batches": micro_batches, "evaluation_batches": evaluation_batches}
        data = {"photos": scene.photos, "neighbours": neighbourhood}
        run.track(**model.kept(), **learning.kept(), **state, groups=model.groups(), data=data)
        run.resume(renamed=RENAMED_ITEMS)
        for step in run.steps(plan.total, first=plan.first):
            if step.index == plan.first and plan.first in plan.tests:
                evaluation = evaluate_at(plan.first)
            with step.span("data"), run.stop_point.waiting():
                batch = next_batch()
                shard = step.shard_of(views)
            # zero_grad, forward, backward; in more bands after an out-of-memory error
            outputs = step.backward(objective, batch, split=split, samples=batch.names)

            # densification statistics: view-space gradients of the visible Gaussians, over all views and ranks
            summary = StepSummary.of(outputs, densification.new_statistics(step.index))
            summary = summary.over_ranks(run.ranks, shard.weight, len(gaussians))
            densification.add(summary.statistics)
            rate = learning.set_rates(step.index, batch.places, summary.visible)
            with step.span("optimizer"):
                step.update(*learning.optimizers(step.terms))
            densification.add_sgld_noise(step.index, rate)  # with MCMC growth only

            visible = summary.visible
            step.record({"Model/size": len(gaussians), "Model/work": len(visible), "Train/PSNR": summary.psnr})
            instruments.after_update(run, step, visible, sampled=density_acts(config, scene, step.index))
            del outputs, summary, visible  # otherwise they take memory beside those of the next step
            # clone and split, or relocate; reset opacities; prune
            if densification.densify_and_prune(run, step, evaluation_batches):
                instruments.rearranged()
                neighbourhood.forget()
            elif plan.searches_after(step.index):
                neighbourhood.renew(step.index, gaussians.means)
            if step.index == plan.export_after:
                export = partial(write_stage0, model, scene, folder / STAGE0, plan.exported_as, config=config)
                run.ranks.only_first(export, "the export as 3DGS")
            if step.index + 1 in plan.saves:
                run.save_after_step()
            if step.index + 1 in plan.tests:
                evaluation = evaluate_at(step.index + 1)
                run.save_after_step({} if evaluation is None else {"psnr": evaluation.score})
        write = partial(products_of, config, scene, model, learning, run, evaluation_batches)
        products = run.ranks.only_first(partial(run.retry, write, evaluation_batches), "the products")
    return Outcome.of(run, evaluation, products or {})


def evaluate_and_show(  # noqa: PLR0913, PLR0917  what is evaluated, how, and where it is shown
    run: Run,
    model: SplatModel[Any],
    scene: Scene,
    evaluation_batches: MicroBatches,
    lpips: Lpips | None,
    position: int,
) -> Evaluation:
    """Score the held-out views, and record the scores and pictures of the worst, at a number of finished steps."""
    bands = band_count(evaluation_batches.count)
    between = partial(run.stop_point, "an evaluation")
    with run.span("evaluation"):
        found = evaluate(model, scene, bands=bands, lpips=lpips, between=between)
        show_evaluation(run, found, scene, position)
    return found


def evaluate_mesh(
    run: Run, model: SplatModel[Any], scene: Scene, evaluation_batches: MicroBatches, position: int
) -> None:
    """Record how good a mesh the Gaussians would give, at a number of finished steps."""
    bands = band_count(evaluation_batches.count)
    between = partial(run.stop_point, "a test mesh")
    with run.span("test_mesh"):
        metrics, why_none = mesh_metrics(model, scene, bands=bands, between=between)
        run.record(metrics, position=position)
        run.event("test_mesh", metrics=len(metrics), why_none=why_none)


def products_of(  # noqa: PLR0913, PLR0917  what was trained, and how it is written
    config: SplatsConfig,
    scene: Scene,
    model: SplatModel,
    learning: Learning,
    run: Run,
    evaluation_batches: MicroBatches,
) -> Mapping[str, Path]:
    """Write what the run gives to others; its state is saved by now."""
    losses = read_history(run.folder)["Loss/total"].values[:: config.stats_every]
    return write_products(
        model,
        scene,
        output_path(run.folder, PRODUCTS),
        iteration=scene.plan.total,
        turntable=config.turntable,
        losses=losses.tolist(),
        optimizer=learning.gaussians,
        bands=band_count(evaluation_batches.count),
        between=partial(run.stop_point, "the products"),
    )
