"""Training Gaussians from photos to a surface: the loop, step by step."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Unpack

import torch

from fieldwatch import Run, Shuffled, Step, read_history
from fieldwatch.losses import find_lpips
from fieldwatch.pipelines.splats.beginning import first_model
from fieldwatch.pipelines.splats.changes import Changes
from fieldwatch.pipelines.splats.config import SplatsConfig
from fieldwatch.pipelines.splats.evaluate import Evaluation, evaluate
from fieldwatch.pipelines.splats.learning import Learning
from fieldwatch.pipelines.splats.meshing import mesh_metrics
from fieldwatch.pipelines.splats.model import SplatModel
from fieldwatch.pipelines.splats.neighbourhood import Neighbourhood
from fieldwatch.pipelines.splats.objective import Pass, density_acts, further_terms, geometry_at, rendering_term
from fieldwatch.pipelines.splats.products import write_products, write_stage0
from fieldwatch.pipelines.splats.scene import Scene
from fieldwatch.pipelines.splats.show import show_evaluation
from fieldwatch.pipelines.splats.start import start_run
from fieldwatch.pipelines.splats.statistics import Instruments
from fieldwatch.run import Outcome, RunChoices

STAGE0 = "3dgs"
"""Folder, in the run folder, of what stage 0 made, as 3D Gaussian splatting would leave it."""
PRODUCTS = "products"


def train_splats(config: SplatsConfig, scene: Scene, folder: Path, **how: Unpack[RunChoices]) -> Outcome[Evaluation]:
    """Train Gaussians on photos, in a run folder; a run found there is continued.

    Raises:
        Diverged: the run could not go on; the message says where to resume.
        Interrupted: a signal came; the step was finished and saved.
    """
    torch.manual_seed(config.seed)
    plan, model = scene.plan, first_model(config, scene)
    gaussians = model.gaussians
    learning, changes = Learning(config, scene, model), Changes(config, scene, model)
    order = Shuffled(len(scene.photos.train), 1, config.seed)
    neighbourhood = Neighbourhood(config.surface.neighbours)
    instruments = Instruments(config, scene, model)
    test = Test(model, scene, meshes=config.extract_test_meshes)

    with start_run(config, scene, folder, **how) as run, scene.drawing(order) as next_shot:
        run.watch(**model.groups())
        state = {"changes": changes, "order": order, "neighbours": neighbourhood, "instruments": instruments}
        run.keep(**model.kept(), **learning.kept(), **state)
        run.hold(photos=scene.photos, neighbours=neighbourhood)
        for step in run.steps(plan.total, first=plan.first):
            test.before(run, step)
            with step.span("data"), run.stop_point.waiting():
                shot = next_shot()
            wanted = geometry_at(config, scene, step.index)
            with step.span("render"):
                degree = gaussians.degree_at(step.index, every=plan.degree_every)
                drawn = model.draw(shot.view, degree=degree, magnitudes=changes.magnitudes(step.index), **wanted)
            with step.span("loss"):
                one = Pass.of(step.index, model, drawn, shot)
                terms = rendering_term(config, one)
                terms |= further_terms(config, scene, one, neighbourhood, step.span)

            learning.zero_grad()
            with step.span("backward"):
                terms.total.backward()
            step.observe(terms, sample=shot.name)
            changes.look(step.index, drawn, shot.view)
            rate = learning.prepare(step.index, shot, drawn.ids)
            with step.span("optimizer"):
                step.update(*learning.active(terms))
            changes.shake(step.index, rate)

            step.record({"Model/size": len(gaussians), "Model/work": len(drawn.ids), "Train/PSNR": one.psnr()})
            instruments.after_update(run, step, drawn, sampled=density_acts(config, scene, step.index))
            del one, drawn, terms  # else they lie beside those of the next step
            if changes.apply(run, step):
                instruments.rearranged()
                neighbourhood.forget()
            elif plan.searches_after(step.index):
                neighbourhood.renew(step.index, gaussians.means)
            if step.index == plan.export_after:
                write_stage0(model, scene, folder / STAGE0, plan.exported_as, config=config)
            if step.index + 1 in plan.saves:
                run.save_after_step()
            test.after(run, step)
        products = finished(config, scene, model, learning, run)
    neighbourhood.close()
    return Outcome.of(run, test.evaluation, products)


class Test:
    """Evaluates at the planned steps, shows what was found, and ranks the checkpoints by it.

    Args:
        model: what is evaluated.
        scene: the photos, and the plan.
        meshes: also make a mesh each time, and record how good it is.

    Attributes:
        evaluation: the last one; None before the first, and where that failed (the training goes on).
    """

    __test__ = False  # nothing for pytest

    def __init__(self, model: SplatModel, scene: Scene, *, meshes: bool = False) -> None:
        self._model, self._scene, self._meshes = model, scene, meshes
        self._lpips, self.why_no_lpips = find_lpips()
        self.evaluation: Evaluation | None = None

    def before(self, run: Run, step: Step) -> None:
        """Evaluate what training starts from, if that was asked for."""
        if step.index == self._scene.plan.first and step.index in self._scene.plan.tests:
            self._evaluate(run, step, step.index)

    def after(self, run: Run, step: Step) -> None:
        """Evaluate, if due after this step."""
        if step.index + 1 in self._scene.plan.tests:
            found = self._evaluate(run, step, step.index + 1)
            run.save_after_step({} if found is None else {"psnr": found.score})

    def _evaluate(self, run: Run, step: Step, done: int) -> Evaluation | None:
        self.evaluation = None
        with step.span("evaluation"), run.aside("evaluation"):
            between = partial(run.stop_point, "an evaluation")
            self.evaluation = evaluate(self._model, self._scene, lpips=self._lpips, between=between)
            show_evaluation(run, self.evaluation, self._scene, done)
        if self._meshes:
            with step.span("test_mesh"), run.aside("test mesh"):
                between = partial(run.stop_point, "a test mesh")
                metrics, why_none = mesh_metrics(self._model, self._scene, between=between)
                run.record(metrics, position=done)
                run.event("test_mesh", metrics=len(metrics), why_none=why_none)
        return self.evaluation


def finished(config: SplatsConfig, scene: Scene, model: SplatModel, learning: Learning, run: Run) -> Mapping[str, Path]:
    """Write what the run gives to others; its state is saved by now."""
    losses = read_history(run.folder)["Loss/total"].values[:: config.stats_every]
    return write_products(
        model,
        scene,
        run.folder / PRODUCTS,
        iteration=scene.plan.total,
        turntable=config.turntable,
        losses=losses.tolist(),
        optimizer=learning.gaussians,
        between=partial(run.stop_point, "the products"),
    )
