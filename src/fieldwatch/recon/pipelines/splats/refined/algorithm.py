"""Training of a mesh and the Gaussians bound to it: the objective and the training loop."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Unpack

from fieldwatch import MicroBatches, Run, Shuffled, Terms, read_history
from fieldwatch.files import output_path
from fieldwatch.pipeline import Outcome, RunChoices, seed_everything
from fieldwatch.recon.pipelines import RENAMED_ITEMS
from fieldwatch.recon.pipelines.splats.algorithm import PRODUCTS
from fieldwatch.recon.pipelines.splats.bands import ViewInBands, max_bands, split_views
from fieldwatch.recon.pipelines.splats.evaluation import Evaluation
from fieldwatch.recon.pipelines.splats.evaluator import Evaluator
from fieldwatch.recon.pipelines.splats.model import SplatModel
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
from fieldwatch.recon.render.splats import count_visible


def refine_mesh(  # noqa: PLR0915  objective and training loop in one place
    config: RefineConfig,
    refinement: Refinement,
    folder: Path,
    on_step_end: Callable[[Run, SplatModel], None] | None = None,
    **how: Unpack[RunChoices],
) -> Outcome[Evaluation]:
    """Train a mesh and the Gaussians bound to it in a run folder, and resume the run if the folder contains one.

    `refinement` comes from `prepare_refinement`. `on_step_end` is called at the end of each step and changes nothing.
    Return the last evaluation and the files that were written.

    Raises:
        ConfigMismatch: The folder contains a run with another config, on other photos, or of another mesh.
        Diverged: Training diverged; the message names the checkpoint to resume from.
        Interrupted: A signal arrived; the step was finished and saved.
    """
    seed_everything(config.seed)
    scene = refinement.scene
    model = refinement.model
    gaussians = refinement.gaussians
    plan = scene.plan
    # Computed once: the vertices move, but the faces do not change.
    pairs = inner_pairs(gaussians.faces)
    optimizers = RefineOptimizers(config, scene.extent, gaussians)
    # One photo per step, as in SuGaR.
    order = Shuffled(len(scene.photos.train), 1, config.seed)
    monitor = PopulationMonitor(config, scene, model)
    # Before `run.resume`, which replaces the initial vertices by those of the checkpoint.
    displacement = MeshDisplacement(gaussians)
    evaluator = Evaluator(scene, model)
    micro_batches = MicroBatches("picture", most=max_bands(scene.views))
    split = partial(split_views, views=1, device=scene.device)
    run = start_refinement(config, refinement, folder, **how)
    evaluation: Evaluation | None = None

    def objective(piece: ViewInBands) -> ViewOutput:
        """Render a view and compute its loss terms (SuGaR, section 4.3)."""
        view = piece.view
        # Means, quaternions and the normal consistency share corners and normals, and the graph through them.
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
            # zero_grad, forward, backward; retried in more bands after an out-of-memory error
            outputs = step.backward(objective, batch, split=split, samples=batch.names)
            summary = StepSummary.of(outputs)
            optimizers.set_rates(step.index, summary.visible)
            with step.span("optimizer"):
                step.update(*optimizers.both)

            visible = summary.visible
            step.record(
                {"Model/size": len(gaussians), "Model/work": count_visible(visible), "Train/PSNR": summary.psnr}
            )
            # The rows never change here, so nothing has to be restarted.
            monitor.after_update(run, step, visible)
            if step.every(config.stats_every):
                step.record(displacement.metrics())
            del outputs, summary, visible  # free their memory before the next step allocates its own
            if step.index + 1 in plan.tests:
                evaluation = evaluator.evaluate(run, step.index + 1)
                run.save_after_step({} if evaluation is None else {"psnr": evaluation.score})
            if on_step_end is not None:
                on_step_end(run, model)
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
    """Write the products of a finished refinement and return their paths; the last checkpoint is already saved."""
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
