"""Evaluations during training: errors, meshes, images and poses. A failed evaluation does not end the training."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldwatch import MicroBatches, Run, Step
from fieldwatch.files import output_names, output_path
from fieldwatch.recon.geometry import evenly_spaced
from fieldwatch.recon.mesh import write_mesh
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.evaluate import (
    LEAST,
    LEAST_BLOCK,
    NormalsEvaluation,
    compare_views,
    evaluate_surface,
    pose_errors,
)
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.pictures import (
    depth_colors,
    normal_colors,
    save_array,
    save_cut_out,
    sheet_of,
)
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.surface import BLOCK, Surface, find_surface
from fieldwatch.recon.pipelines.normals.timeline import add_poses, pose_file
from fieldwatch.recon.pipelines.normals.view_errors import ViewComparison
from fieldwatch.recon.render import Chunks

MESHES = "meshes_validation"
NORMALS = "normals"
DEPTHS = "depths"
"""Subfolders of the run folder."""
PICTURED_VIEWS = 4
"""Number of training views with images, evenly spaced; one held-out view is added."""

MOST_MICRO_BATCHES = 64
"""Maximum number of micro-batches for rendering and meshing: 1,024 rays or points at a time."""


class PlannedEvaluations:
    """Evaluates a run at the planned iterations.

    Each part is an evaluation of the run (`Run.evaluation`), so training is bit-identical to a run without it. After an
    out-of-memory error, rays, points and blocks are processed in smaller parts. An evaluation that fails nevertheless
    is written to `validation_failures/`, counted in `Eval/failures` and reported as the event `validation_failed`;
    training continues.

    Args:
        config: settings of the run.
        scene: training data.
        model: model to evaluate.

    Attributes:
        newest: newest evaluation; None before the first one and if the newest one failed.
        failures: number of failed evaluations so far, over all segments of a resumed run.
        micro_batches: number of parts in which views and meshes are processed; pass it to `Run.track`.
    """

    def __init__(self, config: NormalsConfig, scene: NormalsScene, model: NormalsModel) -> None:
        self._config = config
        self._scene = scene
        self._model = model
        self.newest: NormalsEvaluation | None = None
        self.failures = 0
        self.micro_batches = MicroBatches("evaluation", most=MOST_MICRO_BATCHES)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of failures."""
        return {"failures": self.failures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number of failures."""
        self.failures = int(state["failures"])

    def write_first_poses(self, run: Run) -> None:
        """Write the initial poses as the entry of iteration 0, unless it exists."""
        if not pose_file(run.folder, 0).exists():
            with self._evaluation(run, "poses"):
                # Not the current poses: those of a resumed run have moved.
                self._poses(run, 0, self._model.poses.start)

    def due(self, done: int) -> bool:
        """Return whether any evaluation is due after this number of steps."""
        plan = self._scene.schedule
        config = self._config
        intervals = (config.evaluate_at, config.mesh_at, config.poses_at, config.pictures_at)
        return done == plan.total or any(plan.due(every, done) for every in intervals)

    def evaluate(self, run: Run, step: Step) -> None:
        """Run the evaluations that are due after a step; all of them after the last step."""
        plan = self._scene.schedule
        config = self._config
        done = step.index + 1
        last = done == plan.total
        # Compared afterward, so that a failure is also recorded if no evaluation is due.
        before = self.failures
        evaluates = last or plan.due(config.evaluate_at, done)
        meshes = last or plan.due(config.mesh_at, done)
        # Poses first: they are cheap, and are written even if a later evaluation fails.
        if last or plan.due(config.poses_at, done):
            with self._evaluation(run, "poses"):
                self._poses(run, done, self._model.poses())
        if evaluates:
            with step.span("evaluation"), self._evaluation(run, "evaluation"):
                self._evaluate(run, done, meshes=meshes)
        elif meshes:
            with step.span("mesh"), self._evaluation(run, "mesh"):
                self._mesh(run, done, run.retry(partial(self._surface, run), self.micro_batches))
        # An evaluation writes the images itself.
        if not evaluates and plan.due(config.pictures_at, done):
            with step.span("pictures"), self._evaluation(run, "pictures"):
                run.retry(partial(self._pictures, run, done), self.micro_batches)
        if evaluates or self.failures > before:
            run.record({"Eval/failures": self.failures}, position=done)

    def _iteration(self, done: int) -> int:
        return round(self._scene.schedule.iteration(done))

    def _evaluate(self, run: Run, done: int, *, meshes: bool) -> None:
        iteration = self._iteration(done)
        pictured = self._pictured_views()
        # View names may contain characters that file names must not.
        names = output_names(self._scene.maps.names)
        # If this evaluation fails, results of an older model must not count as the newest.
        self.newest = None
        evaluation_call = partial(
            evaluate_surface,
            self._model,
            self._scene,
            self._config,
            resolution=None if meshes else 0,
            step=self._scene.schedule.march_step(done),
            stop_point=partial(run.stop_point, "an evaluation"),
            on_view=lambda comparison: (
                write_pictures(run.folder, iteration, comparison, names[comparison.number])
                if comparison.number in pictured
                else None
            ),
            micro_batches=self.micro_batches,
        )
        self.newest = evaluation = run.retry(evaluation_call, self.micro_batches)
        run.record(evaluation.metrics, position=done)
        for metric, better in (("mae", "lower"), ("iou", "higher")):
            values = {row.name: getattr(row, metric) for row in evaluation.rows}
            run.event("sample_scores", metric=f"Eval/{metric}", better=better, values=values)
        run.image("Eval/normals", sheet_of(evaluation.strips), done)
        # Checkpoints are ranked by this score, so only one saved at an evaluated step can be the best.
        run.save_after_step({"mae": evaluation.score})
        if evaluation.surface is not None:
            self._mesh(run, done, evaluation.surface)

    def _pictures(self, run: Run, done: int) -> None:
        names = output_names(self._scene.maps.names)
        compared = compare_views(
            self._model,
            self._scene,
            self._config,
            self._pictured_views(),
            step=self._scene.schedule.march_step(done),
            stop_point=partial(run.stop_point, "images of the views"),
            micro_batches=self.micro_batches,
        )
        for comparison in compared:
            write_pictures(run.folder, self._iteration(done), comparison, names[comparison.number])

    def _pictured_views(self) -> set[int]:
        # Evenly spaced, so that the images show the object from different sides.
        return {*evenly_spaced(self._scene.train, PICTURED_VIEWS), *self._scene.test[:1]}

    def _surface(self, run: Run) -> Surface:
        block = self.micro_batches.chunk(BLOCK, least=LEAST_BLOCK)
        stop_point = partial(run.stop_point, "a validation mesh")
        chunks = Chunks(self.micro_batches.chunk(self._model.grid.config.chunk, least=LEAST))
        nodes = self._config.mesh_resolution
        return find_surface(self._model, nodes, chunks=chunks, block=block, stop_point=stop_point)

    def _mesh(self, run: Run, done: int, surface: Surface) -> None:
        if surface.empty:
            # An event instead of a file without faces.
            run.event("empty_mesh", iteration=self._iteration(done))
            return
        write_mesh(
            output_path(run.folder, MESHES, f"iter_{self._iteration(done):08d}.ply"), surface.in_world(self._scene)
        )

    def _poses(self, run: Run, done: int, poses: torch.Tensor) -> None:
        scene = self._scene
        model = self._model
        add_poses(
            run.folder,
            self._iteration(done),
            poses,
            start=model.poses.start,
            names=tuple(scene.maps.names[i] for i in scene.train),
            errors=pose_errors(model, scene),
        )

    @contextmanager
    def _evaluation(self, run: Run, name: str) -> Generator[None]:
        with run.evaluation(name) as evaluation:
            yield
        self.failures += evaluation.failed


def write_pictures(folder: Path, iteration: int, comparison: ViewComparison, name: str) -> dict[str, Path]:
    """Write the rendered normals and depth of a view, transparent or NaN outside its silhouette.

    `normals/%08d_0_NAME.png` encodes normals as 128 n + 128 in OpenGL axes, `depths/%08d_0_NAME.png` colors depth,
    light for near and dark for far; both are transparent outside. `depths/%08d_0_NAME.npy` holds the depth along the
    optical axis in units of the scene's sphere, float32, NaN outside. The file names are PMNI's.

    Args:
        folder: run folder.
        iteration: nominal iteration.
        comparison: measured view.
        name: name of its files, see `output_names`.

    Raises:
        OSError: a file cannot be written.
    """
    rendered = comparison.rendered
    stem = f"{iteration:08d}_0_{name}"
    depth = np.where(rendered.mask.numpy(), rendered.depth.numpy(), np.float32(np.nan))
    normals = normal_colors(rendered.camera_normals)
    return {
        "normals": save_cut_out(output_path(folder, NORMALS, f"{stem}.png"), normals, rendered.mask),
        "depth": save_cut_out(
            output_path(folder, DEPTHS, f"{stem}.png"), depth_colors(rendered.depth, rendered.mask), rendered.mask
        ),
        "depth_values": save_array(output_path(folder, DEPTHS, f"{stem}.npy"), depth),
    }
