"""Training Gaussians from photos to a surface: the loop, step by step."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch

from fieldwatch import Parts, Run, Shuffled, Step, read_history
from fieldwatch.losses import find_lpips
from fieldwatch.pipelines.splats.bands import most_bands
from fieldwatch.pipelines.splats.beginning import first_model
from fieldwatch.pipelines.splats.changes import Changes
from fieldwatch.pipelines.splats.config import SplatsConfig
from fieldwatch.pipelines.splats.evaluate import Evaluation, evaluate
from fieldwatch.pipelines.splats.gaussians import Gaussians
from fieldwatch.pipelines.splats.learning import Learning
from fieldwatch.pipelines.splats.meshing import mesh_metrics
from fieldwatch.pipelines.splats.model import SplatModel
from fieldwatch.pipelines.splats.neighbourhood import Neighbourhood
from fieldwatch.pipelines.splats.objective import Pass, density_acts, further_terms, geometry_at, rendering_term
from fieldwatch.pipelines.splats.products import write_products, write_stage0
from fieldwatch.pipelines.splats.scene import Batch, Scene, Shot
from fieldwatch.pipelines.splats.show import show_evaluation
from fieldwatch.pipelines.splats.shown import Shown
from fieldwatch.pipelines.splats.start import start_run
from fieldwatch.pipelines.splats.statistics import Instruments
from fieldwatch.render import ScreenTally
from fieldwatch.run import Outcome, RunChoices

Result = TypeVar("Result")

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
    gaussians, views = model.gaussians, config.views_per_step
    learning, changes = Learning(config, scene, model), Changes(config, scene, model)
    order = Shuffled(len(scene.photos.train), 1, config.seed)
    neighbourhood = Neighbourhood(config.surface.neighbours)
    instruments = Instruments(config, scene, model)
    learner = Learner(config, scene, model, learning, changes, neighbourhood)
    parts, looks = (Parts(name, most=most_bands(scene.views)) for name in ("picture", "evaluation"))
    test = Test(model, scene, looks, meshes=config.extract_test_meshes)

    with start_run(config, scene, folder, **how) as run, scene.drawing(order, views, own(run, views)) as next_batch:
        run.watch(**model.groups())
        state = {"changes": changes, "order": order, "neighbours": neighbourhood, "instruments": instruments}
        run.keep(**model.kept(), **learning.kept(), **state, parts=parts, looks=looks)
        run.hold(photos=scene.photos, neighbours=neighbourhood)
        for step in run.steps(plan.total, first=plan.first):
            test.before(run, step)
            with step.span("data"), run.stop_point.waiting():
                batch, share = next_batch(), step.share(views)
            shown = run.attempts.result(parts, partial(learner.gradients, step, batch, parts))
            step.observe(shown.terms, sample=batch.names, sample_loss=shown.losses if views > 1 else None)
            shown = shown.of_all(run.ranks, share.weight, len(gaussians))

            changes.look(shown)
            rate = learning.prepare(step.index, batch.places, shown.ids)
            with step.span("optimizer"):
                step.update(*learning.active(shown.terms))
            changes.shake(step.index, rate)

            step.record({"Model/size": len(gaussians), "Model/work": len(shown.ids), "Train/PSNR": shown.psnr})
            instruments.after_update(run, step, shown, sampled=density_acts(config, scene, step.index))
            del shown  # else it lies beside that of the next step
            if changes.apply(run, step, looks):
                instruments.rearranged()
                neighbourhood.forget()
            elif plan.searches_after(step.index):
                neighbourhood.renew(step.index, gaussians.means)
            if step.index == plan.export_after:
                first = partial(write_stage0, model, scene, folder / STAGE0, plan.exported_as, config=config)
                run.ranks.only_first(first, "the export as 3DGS")
            if step.index + 1 in plan.saves:
                run.save_after_step()
            test.after(run, step)
        products = finished(config, scene, model, learning, run, looks)
    neighbourhood.close()
    return Outcome.of(run, test.evaluation, products)


def own(run: Run, views: int) -> slice:
    """Which of a step's views this process draws."""
    return run.ranks.share(views).drawn


class Learner:
    """Makes the gradients of a step: draws its views, compares them with the photos, and goes backward through each.

    Args:
        config: settings.
        scene: what is trained on, and the plan.
        model: what is trained.
        learning: what steps it.
        changes: what growth wants to know.
        neighbourhood: the neighbours that the density terms use.
    """

    def __init__(  # noqa: PLR0913, PLR0917  all that a step needs
        self,
        config: SplatsConfig,
        scene: Scene,
        model: SplatModel[Gaussians],
        learning: Learning,
        changes: Changes,
        neighbourhood: Neighbourhood,
    ) -> None:
        self._config, self._scene, self._model = config, scene, model
        self._learning, self._changes, self._neighbourhood = learning, changes, neighbourhood

    def gradients(self, step: Step, batch: Batch, parts: Parts) -> Shown:
        """Make the gradients of the mean loss over the views that this process draws."""
        self._learning.zero_grad()
        tally, seeds = self._changes.fresh_tally(step.index), view_seeds(self._config.views_per_step)
        with self._model.in_parts(parts.count):
            views = [
                self._add(step, shot, tally, generator(seeds, number, self._scene.device))
                for number, shot in enumerate(batch.shots, batch.first)
            ]
        self._learning.average(len(views))
        return Shown.joined(views)

    def _add(self, step: Step, shot: Shot, tally: ScreenTally | None, generator: torch.Generator | None) -> Shown:
        """Add the gradients of one view; its graph is the only one alive, and is let go of."""
        config, scene, model = self._config, self._scene, self._model
        wanted = geometry_at(config, scene, step.index)
        with step.span("render"):
            degree = model.gaussians.degree_at(step.index, every=scene.plan.degree_every)
            magnitudes = self._changes.magnitudes(step.index)
            drawn = model.draw(shot.view, degree=degree, magnitudes=magnitudes, **wanted)
        with step.span("loss"):
            one = Pass.of(step.index, model, drawn, shot, generator)
            terms = rendering_term(config, one)
            terms |= further_terms(config, scene, one, self._neighbourhood, step.span)
        with step.span("backward"):
            terms.total.backward()
        return Shown.of(terms, one.psnr(), drawn, shot, tally)


def view_seeds(views: int) -> list[int]:
    """Draw a seed for the samples of each view of a step, so that every process knows all; none for a single view."""
    return torch.randint(1 << 62, (views,)).tolist() if views > 1 else []


def generator(seeds: Sequence[int], view: int, device: torch.device) -> torch.Generator | None:
    """Make what a view's samples are drawn from; None, torch's own, for a single view."""
    return torch.Generator(device).manual_seed(seeds[view]) if seeds else None


class Test:
    """Evaluates at the planned steps, shows what was found, and ranks the checkpoints by it.

    Args:
        model: what is evaluated.
        scene: the photos, and the plan.
        looks: in how many bands pictures are drawn for it.
        meshes: also make a mesh each time, and record how good it is.

    Attributes:
        evaluation: the last one; None before the first, where that failed (the training goes on), and on all
            processes but the first.
    """

    __test__ = False  # nothing for pytest

    def __init__(self, model: SplatModel[Any], scene: Scene, looks: Parts, *, meshes: bool = False) -> None:
        self._model, self._scene, self._looks, self._meshes = model, scene, looks, meshes
        self._lpips, self.why_no_lpips = find_lpips()
        self.evaluation: Evaluation | None = None

    def before(self, run: Run, step: Step) -> None:
        """Evaluate what training starts from, if that was asked for."""
        if step.index == self._scene.plan.first and step.index in self._scene.plan.tests:
            run.ranks.only_first(partial(self._evaluate, run, step, step.index), "an evaluation")

    def after(self, run: Run, step: Step) -> None:
        """Evaluate, if due after this step."""
        if step.index + 1 in self._scene.plan.tests:
            run.ranks.only_first(partial(self._evaluate_and_save, run, step), "an evaluation")

    def _evaluate_and_save(self, run: Run, step: Step) -> None:
        found = self._evaluate(run, step, step.index + 1)
        run.save_after_step({} if found is None else {"psnr": found.score})

    def _evaluate(self, run: Run, step: Step, done: int) -> Evaluation | None:
        self.evaluation = None
        with step.span("evaluation"), run.aside("evaluation"):
            between = partial(run.stop_point, "an evaluation")
            look = partial(evaluate, self._model, self._scene, lpips=self._lpips, between=between)
            self.evaluation = in_parts(run, self._model, self._looks, look)
            show_evaluation(run, self.evaluation, self._scene, done)
        if self._meshes:
            with step.span("test_mesh"), run.aside("test mesh"):
                between = partial(run.stop_point, "a test mesh")
                look = partial(mesh_metrics, self._model, self._scene, between=between)
                metrics, why_none = in_parts(run, self._model, self._looks, look)
                run.record(metrics, position=done)
                run.event("test_mesh", metrics=len(metrics), why_none=why_none)
        return self.evaluation


def in_parts(run: Run, model: SplatModel[Any], parts: Parts, work: Callable[[], Result]) -> Result:
    """Do something that draws; again, in more bands, where memory runs out."""

    def drawn() -> Result:
        with model.in_parts(parts.count):
            return work()

    return run.attempts.result(parts, drawn)


def finished(  # noqa: PLR0913, PLR0917  what was trained, and how it is written
    config: SplatsConfig, scene: Scene, model: SplatModel, learning: Learning, run: Run, looks: Parts
) -> Mapping[str, Path]:
    """Write what the run gives to others, from the first process; its state is saved by now."""

    def write() -> Mapping[str, Path]:
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

    return run.ranks.only_first(partial(in_parts, run, model, looks, write), "the products") or {}
