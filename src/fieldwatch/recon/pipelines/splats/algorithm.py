"""Training of Gaussians on photos with surface regularization: the objective and the training loop."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Unpack

from fieldwatch import MicroBatches, Run, Shuffled, Terms, read_history
from fieldwatch.files import output_path
from fieldwatch.pipeline import Outcome, RunChoices, seed_everything
from fieldwatch.recon.losses import opacity_entropy
from fieldwatch.recon.pipelines import RENAMED_ITEMS
from fieldwatch.recon.pipelines.splats.bands import ViewInBands, max_bands, split_views
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.densification import McmcOptions, mean_opacity, mean_scale
from fieldwatch.recon.pipelines.splats.densifier import Densifier
from fieldwatch.recon.pipelines.splats.evaluation import Evaluation
from fieldwatch.recon.pipelines.splats.evaluator import Evaluator
from fieldwatch.recon.pipelines.splats.initialization import initial_model
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.multi_view import MULTI_VIEW_TERMS, multi_view_terms
from fieldwatch.recon.pipelines.splats.neighborhood import Neighborhood
from fieldwatch.recon.pipelines.splats.objective import (
    RenderedView,
    Span,
    compare_with_photo,
    density_acts,
    density_terms,
    depth_normal,
    geometry_outputs,
)
from fieldwatch.recon.pipelines.splats.optimizers import SplatOptimizers
from fieldwatch.recon.pipelines.splats.population import PopulationMonitor
from fieldwatch.recon.pipelines.splats.products import write_products, write_stage0
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.start import scene_of_run, start_run
from fieldwatch.recon.pipelines.splats.step_output import StepSummary, ViewOutput
from fieldwatch.recon.pipelines.splats.suspect_pictures import record_suspects
from fieldwatch.recon.render.splats import PhotoLoss, count_visible

STAGE0 = "3dgs"
"""Subfolder of the run folder with the model after stage 0, in the format of 3D Gaussian splatting."""
PRODUCTS = "products"
"""Subfolder of the run folder with the final meshes, point clouds, images and videos."""


def loss_terms(  # noqa: PLR0913, PLR0917  what a step knows
    config: SplatsConfig,
    scene: Scene,
    rendered: RenderedView,
    neighborhood: Neighborhood,
    span: Span,
    compared: PhotoLoss | None = None,
) -> Terms:
    """Return the weighted loss terms of a view that are active at this step.

    Args:
        config: settings of the run.
        scene: photos, cameras and schedule.
        rendered: the view.
        neighborhood: neighbors of the Gaussians.
        span: spans of the step.
        compared: result of `compare_with_photo`, if it is known already.
    """
    plan = scene.plan
    step = rendered.step
    surface = config.surface
    gaussians = rendered.model.gaussians
    # 3DGS (Kerbl 2023), eq. 7: (1 - lambda) L1 + lambda D-SSIM
    terms = Terms(rendering=(1.0, (compared or compare_with_photo(config, rendered)).loss))
    if plan.acts("opacity", step):  # the two regularizers of MCMC densification
        weights = McmcOptions()
        terms |= Terms(opacity=(weights.opacity_weight, mean_opacity(gaussians)))
        terms |= Terms(scale=(weights.scale_weight, mean_scale(gaussians)))
    if plan.acts("entropy_regularization", step):
        terms |= Terms(
            entropy_regularization=(
                surface.entropy_weight,
                opacity_entropy(rendered.opacities(), rendered.output.visible),
            )
        )
    if plan.acts("depth_normal_consistency", step):
        with span("loss_depth_normal"):
            error = depth_normal(config, scene.cameras[rendered.view.index], rendered)
        terms |= Terms(depth_normal_consistency=(surface.depth_normal_weight, error))
    if any(plan.acts(name, step) for name in MULTI_VIEW_TERMS):
        with span("loss_multi_view"):
            terms |= multi_view_terms(config, scene, rendered)
    if plan.acts("flatness", step):
        # Relative to the scene's size: the unit of length is arbitrary, and the weight must not depend on it.
        terms |= Terms(flatness=(surface.flatness_weight, rendered.flatness(scene.size)))
    if density_acts(config, scene, step):
        with span("neighbors"):  # long only if the table must be searched now, as after each change of the rows
            neighbors = neighborhood.at(step, gaussians.means)
        with span("loss_density"):
            terms |= density_terms(config, scene, rendered, neighbors)
    return terms


def train_splats(  # noqa: PLR0915  objective and training loop in one place
    config: SplatsConfig,
    scene: Scene,
    folder: Path,
    on_step_end: Callable[[Run, SplatModel], None] | None = None,
    **how: Unpack[RunChoices],
) -> Outcome[Evaluation]:
    """Train Gaussians on photos in a run folder, and resume the run if the folder contains one.

    Args:
        config: settings of the run.
        scene: photos, cameras, initial Gaussians and schedule, from `prepare_scene`.
        folder: run folder, created if necessary.
        on_step_end: function that is called at the end of each step with the run and the model; it changes neither.
        **how: options of the run, see `RunChoices`.

    Returns:
        The last evaluation and the files that were written.

    Raises:
        Diverged: Training diverged; the message names the checkpoint to resume from.
        Interrupted: A signal arrived; the step was finished and saved.
    """
    # Before the initialization, which samples points and colors.
    seed_everything(config.seed)
    # A resumed run keeps the photos it started with, even if others have become readable.
    scene = scene_of_run(config, scene, folder)
    plan = scene.plan
    model = initial_model(config, scene)
    gaussians = model.gaussians
    views = config.views_per_step
    optimizers = SplatOptimizers(config, scene, model)
    densifier = Densifier(config, scene, model)
    # Without a density term, no neighbors are ever searched.
    neighborhood = Neighborhood(config.surface.neighbors, scene.device)
    order = Shuffled(len(scene.photos.train), 1, config.seed)
    monitor = PopulationMonitor(config, scene, model)
    evaluator = Evaluator(scene, model, test_meshes=config.extract_test_meshes)
    micro_batches = MicroBatches("picture", most=max_bands(scene.views))
    split = partial(split_views, views=views, device=scene.device)
    run = start_run(config, scene, folder, **how)
    evaluation: Evaluation | None = None

    def objective(piece: ViewInBands) -> ViewOutput:
        """Render a view and compute its loss terms."""
        step = run.step_index
        view = piece.view
        # Once for rendering and terms; on a CPU, gradients of both ways are added after the activations.
        shapes = model.shapes() if scene.device.type == "cuda" else None
        with run.span("render"):
            output = model.render(
                view.camera,
                degree=gaussians.degree_at(step, every=plan.degree_every),
                absgrad=densifier.needs_absgrad(step),
                bands=piece.bands,
                shapes=shapes,
                **geometry_outputs(config, scene, step),
            )
        with run.span("loss"):
            how = {"bands": piece.bands, "generator": piece.generator, "shapes": shapes}
            rendered = RenderedView(step=step, model=model, output=output, view=view, **how)
            compared = compare_with_photo(config, rendered)
            terms = loss_terms(config, scene, rendered, neighborhood, run.span, compared)
        return ViewOutput.of(terms, output, view, psnr=compared.psnr, of_several=views > 1)

    with neighborhood, run, scene.batches(order, views, run.ranks.shard_of(views).padded) as next_batch:
        state = {"changes": densifier, "order": order, "neighbors": neighborhood, "instruments": monitor}
        state |= {"micro_batches": micro_batches, "evaluation_batches": evaluator.micro_batches}
        state |= model.checkpoint_items() | optimizers.checkpoint_items()
        run.track(**state, groups=model.groups(), data={"photos": scene.photos, "neighbors": neighborhood})
        run.resume(renamed=RENAMED_ITEMS)
        for step in run.steps(plan.total, first=plan.first):
            # Tests count finished steps: this one evaluates the loaded or initialized model before any update.
            if step.index == plan.first and plan.first in plan.tests:
                evaluation = evaluator.evaluate(run, plan.first)
            with step.span("data"), run.stop_point.waiting():
                batch = next_batch()
                shard = step.shard_of(views)
            # zero_grad, forward, backward; retried in more bands after an out-of-memory error
            outputs = step.backward(objective, batch, split=split, samples=batch.names)

            # Densification statistics: view-space gradients of the visible Gaussians, over all views and ranks.
            alone = run.ranks.alone and len(outputs) == 1
            summary = StepSummary.of(outputs, densifier.statistics_at(step.index, alone=alone))
            summary = summary.over_ranks(run.ranks, shard.weight, len(gaussians))
            densifier.add(summary.statistics)
            # Before the update: only the visible rows are updated.
            rate = optimizers.set_rates(step.index, batch.train_indices, summary.visible)
            with step.span("optimizer"):
                step.update(*optimizers.active(step.terms))
            densifier.add_sgld_noise(step.index, rate)  # with MCMC only

            visible = summary.visible
            step.record(
                {"Model/size": len(gaussians), "Model/work": count_visible(visible), "Train/PSNR": summary.psnr}
            )
            # Before densification, which renumbers the rows and invalidates `visible`.
            monitor.after_update(run, step, visible, sampled=density_acts(config, scene, step.index))
            del outputs, summary, visible  # free their memory before the next step allocates its own
            # Clone and split, or relocate; reset opacities; prune.
            if densifier.densify_and_prune(run, step, evaluator.micro_batches):
                monitor.rows_changed()
                # The search is deferred to the next `at`: if no density term acts any more, none is needed.
                neighborhood.clear()
            elif plan.searches_after(step.index):
                neighborhood.start_search(step.index, gaussians.means)
            # The model is exactly as trained: `due_after` defers densification, resets and prunes past this step.
            if step.index == plan.export_after:
                export = partial(write_stage0, model, scene, folder / STAGE0, plan.exported_as, config=config)
                run.ranks.only_first(export, "the export as 3DGS")
            if step.index + 1 in plan.saves:
                run.save_after_step()
            if step.index + 1 in plan.tests:
                evaluation = evaluator.evaluate(run, step.index + 1)
                run.save_after_step({} if evaluation is None else {"psnr": evaluation.score})
            if on_step_end is not None:
                on_step_end(run, model)
        # Rendering the products may run out of memory as well: retried in more bands.
        write = partial(products_of, config, scene, model, optimizers, run, evaluator)
        products = run.ranks.only_first(partial(run.retry, write, evaluator.micro_batches), "the products")
    return Outcome.of(run, evaluation, products or {})


def products_of(  # noqa: PLR0913, PLR0917  the trained objects and their settings
    config: SplatsConfig,
    scene: Scene,
    model: SplatModel,
    optimizers: SplatOptimizers,
    run: Run,
    evaluator: Evaluator,
) -> Mapping[str, Path]:
    """Write the products of a finished run and return their paths; the last checkpoint is already saved."""
    run.flush()
    history = read_history(run.folder)
    record_suspects(run, history, model, scene, bands=evaluator.bands)
    # SuGaR's file holds a list of losses; every step would be needlessly long.
    losses = history["Loss/total"].values[:: config.stats_every]
    return write_products(
        model,
        scene,
        output_path(run.folder, PRODUCTS),
        iteration=scene.plan.total,
        turntable=config.turntable,
        losses=losses.tolist(),
        optimizer=optimizers.gaussians,
        bands=evaluator.bands,
        between=partial(run.stop_point, "the products"),
    )
