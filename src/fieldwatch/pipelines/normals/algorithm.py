"""Training a surface from normal maps: the loop, step by step."""

from functools import partial
from pathlib import Path
from typing import Unpack

import torch

from fieldwatch import Parts
from fieldwatch.pipelines.normals.batches import RaySource
from fieldwatch.pipelines.normals.config import NormalsConfig
from fieldwatch.pipelines.normals.evaluate import Evaluation
from fieldwatch.pipelines.normals.gradients import Gradients
from fieldwatch.pipelines.normals.instruments import Instruments
from fieldwatch.pipelines.normals.learning import Learning
from fieldwatch.pipelines.normals.model import first_model
from fieldwatch.pipelines.normals.products import write_products
from fieldwatch.pipelines.normals.ray_budget import RayBudget
from fieldwatch.pipelines.normals.recovery import Recovery
from fieldwatch.pipelines.normals.scene import Scene
from fieldwatch.pipelines.normals.shared_gradients import SharedGradients
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
    gradients = Gradients(config, scene, model, learning, source, budget, view_terms, instruments)
    parts, validation = Parts("rays"), Validation(config, scene, model)

    with start_run(config, scene, folder, **how) as run:
        run.watch(**model.groups())
        state = {"rays": source, "budget": budget, "view_terms": view_terms}
        state |= {"recovery": recovery, "validation": validation, "parts": parts, "looks": validation.parts}
        run.keep(model=model, **learning.kept(), **state)
        run.hold(maps=scene.pixels)
        run.ranks.only_first(partial(validation.before, run), "the first poses")
        shared = gradients if run.ranks.alone else SharedGradients(gradients, run.ranks)
        for step in run.steps(plan.total):
            learning.prepare(step.index)
            with step.span("grid"):
                model.grid.update(step.index, model.sdf, model.sharpness)
            look = partial(shared.of, step, source.draw(budget.rays), parts)
            mean = run.attempts.result(parts, look, undo=(source, view_terms))
            step.observe(mean.terms(), sample=instruments.views())
            with step.span("optimizer"):
                step.update(*learning.active(step.index), clip=learning.clip(step.index))
            budget.observe(instruments.rays, instruments.samples)
            recovery.after_update(run, step, starved=instruments.starved)
            instruments.after_update(step)
            if validation.due(step.index + 1):
                run.ranks.only_first(partial(validation.after, run, step), "a validation")
        kept, between = validation.evaluation, partial(run.stop_point, "the products")
        how_made = {"evaluation": kept, "seconds": config.turntable, "between": between}
        make = partial(write_products, config, scene, model, folder / PRODUCTS, **how_made)
        products = run.ranks.only_first(make, "the products")
    return Outcome.of(run, validation.evaluation, products)
