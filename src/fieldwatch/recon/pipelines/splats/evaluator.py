"""Evaluations during a run: score the model on the held-out photos and record the result."""

from functools import partial
from typing import Any

from fieldwatch import MicroBatches, Run
from fieldwatch.recon.losses import find_lpips
from fieldwatch.recon.pipelines.splats.bands import band_count, max_bands
from fieldwatch.recon.pipelines.splats.evaluation import Evaluation, evaluate
from fieldwatch.recon.pipelines.splats.evaluation_record import record_evaluation
from fieldwatch.recon.pipelines.splats.meshing import mesh_metrics
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene


class Evaluator:
    """Evaluates the model of a run.

    Args:
        scene: scene with its photos.
        model: model to evaluate.
        test_meshes: whether to also extract a mesh at each evaluation and record its quality.

    Attributes:
        micro_batches: micro-batches in which images are rendered, see `band_count`; doubled when memory runs out.
    """

    def __init__(self, scene: Scene, model: SplatModel[Any], *, test_meshes: bool = False) -> None:
        self._scene = scene
        self._model = model
        self._test_meshes = test_meshes
        # None if the network's weights are not on disk; evaluations then have no LPIPS.
        self._lpips, _ = find_lpips()
        self.micro_batches = MicroBatches("evaluation", most=max_bands(scene.views))

    @property
    def bands(self) -> int:
        """Current number of bands in which images are rendered."""
        return band_count(self.micro_batches.count)

    def evaluate(self, run: Run, position: int) -> Evaluation | None:
        """Score the held-out views and record scores and images.

        Args:
            run: current run.
            position: number of finished steps.

        Returns:
            The evaluation; None if it failed, and on all ranks except the first.
        """
        work = partial(self._evaluate, run, position)
        evaluation = run.evaluate("evaluation", work, micro_batches=self.micro_batches)
        # A separate evaluation, so that the scores are kept if the mesh fails.
        if self._test_meshes:
            run.evaluate("test mesh", partial(self._measure_mesh, run, position), micro_batches=self.micro_batches)
        return evaluation

    def _evaluate(self, run: Run, position: int) -> Evaluation:
        between = partial(run.stop_point, "an evaluation")
        with run.span("evaluation"):
            evaluation = evaluate(self._model, self._scene, bands=self.bands, lpips=self._lpips, between=between)
            record_evaluation(run, evaluation, self._scene, position)
        return evaluation

    def _measure_mesh(self, run: Run, position: int) -> None:
        between = partial(run.stop_point, "a test mesh")
        with run.span("test_mesh"):
            metrics, why_none = mesh_metrics(self._model, self._scene, bands=self.bands, between=between)
            run.record(metrics, position=position)
            run.event("test_mesh", metrics=len(metrics), why_none=why_none)
