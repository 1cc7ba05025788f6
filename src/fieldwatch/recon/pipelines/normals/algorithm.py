"""The training loop of a normals run: its objective and the steps that minimize it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from fieldwatch import MicroBatches, Run
from fieldwatch.files import output_path
from fieldwatch.pipeline import Outcome, RunChoices, seed_everything
from fieldwatch.recon.pipelines import RENAMED_ITEMS
from fieldwatch.recon.pipelines.normals.batches import RayBatch, RaySource
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.evaluate import NormalsEvaluation
from fieldwatch.recon.pipelines.normals.learning import NormalsOptimizers
from fieldwatch.recon.pipelines.normals.model import NormalsModel, first_model
from fieldwatch.recon.pipelines.normals.normal_cost import terms_for
from fieldwatch.recon.pipelines.normals.objective import eikonal_term, mask_term, normal_term, staged_terms
from fieldwatch.recon.pipelines.normals.planned_evaluations import PlannedEvaluations
from fieldwatch.recon.pipelines.normals.products import write_products
from fieldwatch.recon.pipelines.normals.ray_budget import RayBudget
from fieldwatch.recon.pipelines.normals.rays import Rays
from fieldwatch.recon.pipelines.normals.recovery import Recovery
from fieldwatch.recon.pipelines.normals.rendering import render
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.shared_rays import split_for
from fieldwatch.recon.pipelines.normals.start import start_run
from fieldwatch.recon.pipelines.normals.step_output import NormalsStepOutput, RayStatistics, record_statistics
from fieldwatch.recon.pipelines.normals.suspect_pictures import record_suspects
from fieldwatch.recon.pipelines.normals.view_terms import ViewTerms

PRODUCTS = "products"
"""Subfolder of the run folder for the results of a finished run."""


def train_normals(  # noqa: PLR0915  objective and training loop in one place
    config: NormalsConfig,
    scene: NormalsScene,
    folder: Path,
    on_step_end: Callable[[Run, NormalsModel], None] | None = None,
    **how: Unpack[RunChoices],
) -> Outcome[NormalsEvaluation]:
    """Train a surface on normal maps in a run folder, resuming an existing run.

    `on_step_end` is called at the end of each step with the run and the model; it changes neither.

    Raises:
        Diverged: training diverged; the message gives the diagnosis and the checkpoint to resume from.
        Interrupted: a signal arrived; the current step was finished and saved.
    """
    seed_everything(config.seed)  # before the model, whose initial weights use this seed
    plan = scene.schedule
    options = terms_for(config.terms, scene.maps)  # the scale of a robust cost
    model = first_model(config, scene)
    learning = NormalsOptimizers(config, model, plan)
    source = RaySource(scene.pixels, config.rays, patch=config.rendering.patch, seed=config.seed)
    budget = RayBudget(config.rays)
    view_terms = ViewTerms(scene.pixels, options)
    recovery = Recovery(config.recovery, model, learning, plan.step_of(config.recovery.good_every))
    evaluations = PlannedEvaluations(config, scene, model)
    micro_batches = MicroBatches("rays")
    run = start_run(config, scene, folder, **how)

    def objective(rays: Rays) -> NormalsStepOutput:
        """Compute PMNI's staged loss terms: the field, rendered as in NeuS, against the views' normal maps."""
        weights = plan.weights(run.step_index)  # set by the stages; terms without a weight are not computed
        march = plan.march_step(run.step_index)
        most = budget.max_samples_of(micro_batches.count)
        with run.span("render"):
            rendered = render(model, rays, march, config.rendering, most)
            batch = rays.batch.first(rendered.ray_count)  # rays beyond the sample bound were not rendered
        with run.span("loss"):
            terms = staged_terms(
                weights,
                normal=lambda: normal_term(batch, rendered, model.poses(), options),
                depth=lambda: rays.depth_term(rendered, options),  # after fitting one scale per view
                mask=lambda: mask_term(batch, rendered, options),
                eikonal=lambda: eikonal_term(batch, rendered, options),
            )
            # Terms between views: point_cloud and surface from integrated depth, consistency from observed normals.
            terms |= view_terms.terms(weights, model, rays, rendered)
        losses = rays.losses(weights, rendered, model.poses().detach(), options)
        return rays.output(terms, rendered, options, losses)

    with run:
        state = {"rays": source, "budget": budget, "view_terms": view_terms, "recovery": recovery}
        state |= {"validation": evaluations, "micro_batches": micro_batches}
        state |= {"evaluation_batches": evaluations.micro_batches}
        parameters = model.groups()
        run.track(model=model, **learning.optimizers(), **state, groups=parameters, data={"maps": scene.pixels})
        run.resume(renamed=RENAMED_ITEMS)
        split = split_for(run.ranks, config, scene, source)
        # Only the first rank writes files; the others wait for it.
        run.ranks.only_first(partial(evaluations.write_first_poses, run), "the first poses")
        for step in run.steps(plan.total):
            learning.prepare(step.index)  # learning rates, levels of the encoding, scheduled sharpness
            # After `prepare`, which sets the sharpness: the lower it is, the more cells the blurred surface occupies.
            with step.span("grid"):
                model.grid.update(step.index, model.sdf, model.deviation)

            # One batch per group of `views_per_graph` views; fewer rays in the warm-up.
            batches = source.draw(budget.rays, plan.most_rays_per_view(step.index))
            # zero_grad, forward, backward; retried with more micro-batches after an out-of-memory error
            outputs = step.backward(
                objective,
                batches,
                micro_batches=micro_batches,
                split=split,
                # The objective draws random numbers and updates the views' depth scales: a retry restores both.
                undo=(split, view_terms),
                samples=view_names(scene, batches),
            )
            with step.span("optimizer"):
                step.update(*learning.active(step.index), clip=learning.clip(step.index))

            rays = RayStatistics.of(outputs)
            known = budget.counts.exchange(rays)  # of the step before if a GPU renders: the host does not wait for it
            if known is not None:
                budget.observe(known.rays, known.samples)  # adapts the number of rays to the samples each one needs
            # May rebuild the grid or roll back.
            recovery.after_update(run, step, starved=0.0 if known is None else known.starved)
            record_statistics(step, plan, model, rays)
            # After the recovery, so that the model evaluated and saved is the one after a rollback.
            if evaluations.due(step.index + 1):
                run.ranks.only_first(partial(evaluations.evaluate, run, step), "an evaluation")
            if on_step_end is not None:
                on_step_end(run, model)
        write_results = partial(make_products, run, config, scene, model, evaluations)
        products = run.ranks.only_first(write_results, "the products")
    return Outcome.of(run, evaluations.newest, products)


def view_names(scene: NormalsScene, batches: Sequence[RayBatch]) -> tuple[str, ...]:
    """Return the names of the views whose rays were sampled, in rendering order."""
    # A dict, because it keeps the order of the batches; a set would not.
    views = dict.fromkeys(view for batch in batches for view in batch.drawn_views)
    return tuple(scene.maps.names[scene.train[view]] for view in views)


def make_products(
    run: Run, config: NormalsConfig, scene: NormalsScene, model: NormalsModel, evaluations: PlannedEvaluations
) -> Mapping[str, Path]:
    """Write the results of a finished run, checking for signals between files."""
    record_suspects(run, config, scene, model, evaluations.micro_batches)
    return write_products(
        config,
        scene,
        model,
        output_path(run.folder, PRODUCTS),
        evaluation=evaluations.newest,
        seconds=config.turntable,
        stop_point=partial(run.stop_point, "the products"),
    )
