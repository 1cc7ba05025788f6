"""Training a surface from normal maps: the loop, step by step."""

from pathlib import Path
from typing import Unpack

import torch

from fieldwatch.pipelines.normals.batches import RaySource
from fieldwatch.pipelines.normals.config import NormalsConfig
from fieldwatch.pipelines.normals.evaluate import Evaluation
from fieldwatch.pipelines.normals.instruments import Instruments
from fieldwatch.pipelines.normals.learning import Learning
from fieldwatch.pipelines.normals.model import first_model
from fieldwatch.pipelines.normals.objective import MeanTerms, ray_terms
from fieldwatch.pipelines.normals.products import write_products
from fieldwatch.pipelines.normals.ray_budget import RayBudget
from fieldwatch.pipelines.normals.recovery import Recovery
from fieldwatch.pipelines.normals.rendering import render
from fieldwatch.pipelines.normals.scene import Scene
from fieldwatch.pipelines.normals.start import start_run
from fieldwatch.pipelines.normals.validation import Validation
from fieldwatch.pipelines.normals.view_terms import ViewTerms
from fieldwatch.run import Outcome, RunChoices

PRODUCTS = "products"


def train_normals(config: NormalsConfig, scene: Scene, folder: Path, **how: Unpack[RunChoices]) -> Outcome[Evaluation]:
    """Train a surface on normal maps, in a run folder; a run found there is continued.

    Raises:
        Diverged: the run could not go on; the message says what was found and where to resume.
        Interrupted: a signal came; the step was finished and saved.
    """
    torch.manual_seed(config.seed)
    plan, model = scene.plan, first_model(config, scene)
    learning = Learning(config, model, plan)
    source = RaySource(scene.pixels, config.rays, patch=config.rendering.patch, seed=config.seed)
    budget, view_terms = RayBudget(config.rays), ViewTerms(scene.pixels, config.terms)
    recovery = Recovery(config.recovery, model, learning, plan.step_of(config.recovery.good_every))
    instruments = Instruments(scene, model)
    validation = Validation(config, scene, model)

    with start_run(config, scene, folder, **how) as run:
        run.watch(**model.groups())
        state = {"rays": source, "budget": budget, "view_terms": view_terms}
        state |= {"recovery": recovery, "validation": validation}
        run.keep(model=model, **learning.kept(), **state)
        run.hold(maps=scene.pixels)
        validation.before(run)
        for step in run.steps(plan.total):
            learning.prepare(step.index)
            with step.span("grid"):
                model.grid.update(step.index, model.sdf, model.sharpness)
            weights = plan.weights(step.index)
            batches = source.draw(budget.rays)
            mean = MeanTerms(len(batches))

            learning.zero_grad()
            for batch in batches:  # the graph of these views is the only one alive
                with step.span("render"):
                    rendered = render(model, batch, plan.march_step(step.index), config.rendering, source, budget.most)
                    seen = batch.first(rendered.kept)
                with step.span("loss"):
                    terms = ray_terms(weights, seen, rendered, model.poses(), config.terms)
                    terms |= view_terms.terms(weights, model, seen, rendered)
                with step.span("backward"):
                    mean.backward(terms)
                instruments.look(seen, rendered)
                del rendered, terms

            step.observe(mean.terms(), sample=instruments.views())
            with step.span("optimizer"):
                step.update(*learning.active(step.index), clip=learning.clip(step.index))
            budget.observe(instruments.rays, instruments.samples)
            recovery.after_update(run, step, starved=instruments.starved)
            instruments.after_update(step)
            validation.after(run, step)
        products = write_products(
            config, scene, model, folder / PRODUCTS, evaluation=validation.evaluation, seconds=config.turntable
        )
    return Outcome.of(run, validation.evaluation, products)
