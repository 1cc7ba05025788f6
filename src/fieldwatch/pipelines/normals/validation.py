"""What is looked at while a run trains: errors, meshes, pictures, poses. None of it can disturb or end the training."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldwatch import Parts, Run, Step
from fieldwatch.mesh import write_mesh
from fieldwatch.pipelines.normals.config import NormalsConfig
from fieldwatch.pipelines.normals.evaluate import LEAST, LEAST_BLOCK, Evaluation, evaluate, pose_errors
from fieldwatch.pipelines.normals.model import NormalsModel
from fieldwatch.pipelines.normals.pictures import (
    depth_colours,
    normal_colours,
    save_array,
    save_cut_out,
    sheet_of,
)
from fieldwatch.pipelines.normals.scene import Scene
from fieldwatch.pipelines.normals.surface import BLOCK, Surface, find_surface
from fieldwatch.pipelines.normals.timeline import add_poses, pose_file
from fieldwatch.pipelines.normals.view_errors import Sight
from fieldwatch.render import Chunks

MESHES, NORMALS, DEPTHS = "meshes_validation", "normals", "depths"
"""Folders in the run folder."""
SHOWN = 4
"""Training views whose pictures are written, evenly spaced; one held-out view joins them."""

MOST = 64
"""Parts in which views are rendered and meshes made, at most: 1,024 rays and points at a time."""


class Validation:
    """Looks at a run at the planned iterations.

    It runs aside (`Run.aside`): the training is that of a run without it, bit for bit. When memory runs out, rays,
    points and blocks are divided; what fails all the same is written to `validation_failures/`, counted in
    `Eval/failures` and reported as the event `validation_failed`; the training goes on.

    Args:
        config: settings.
        scene: what is trained on.
        model: what is trained.

    Attributes:
        evaluation: the newest one; None before, and where that failed.
        failures: how many there were so far, over all segments of a run whose checkpoints hold this.
        parts: in how many views are rendered and meshes made; a checkpoint holds them, too.
    """

    def __init__(self, config: NormalsConfig, scene: Scene, model: NormalsModel) -> None:
        self._config, self._scene, self._model = config, scene, model
        self.evaluation: Evaluation | None = None
        self.failures = 0
        self.parts = Parts("evaluation", most=MOST)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds: the count of failures."""
        return {"failures": self.failures}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint held."""
        self.failures = int(state["failures"])

    def before(self, run: Run) -> None:
        """Write where the poses start: the entry of iteration 0, unless it is there."""
        if not pose_file(run.folder, 0).exists():
            with self._aside(run, "poses"):
                self._poses(run, 0, self._model.poses.start)

    def due(self, done: int) -> bool:
        """Whether there is anything to be done after so many steps."""
        plan, config = self._scene.plan, self._config
        wanted = (config.evaluate_at, config.mesh_at, config.poses_at)
        return done == plan.total or any(plan.due(every, done) for every in wanted)

    def after(self, run: Run, step: Step) -> None:
        """Do what is due after a step; everything is after the last one."""
        plan, config, done = self._scene.plan, self._config, step.index + 1
        last, before = done == plan.total, self.failures
        evaluates = last or plan.due(config.evaluate_at, done)
        meshes = last or plan.due(config.mesh_at, done)
        if last or plan.due(config.poses_at, done):
            with self._aside(run, "poses"):
                self._poses(run, done, self._model.poses())
        if evaluates:
            with step.span("evaluation"), self._aside(run, "evaluation"):
                self._evaluate(run, done, meshes=meshes)
        elif meshes:
            with step.span("mesh"), self._aside(run, "mesh"):
                self._mesh(run, done, run.attempts.result(self.parts, partial(self._surface, run)))
        if evaluates or self.failures > before:
            run.record({"Eval/failures": self.failures}, position=done)

    def _iteration(self, done: int) -> int:
        return round(self._scene.plan.iteration(done))

    def _evaluate(self, run: Run, done: int, *, meshes: bool) -> None:
        iteration, shown = self._iteration(done), self._shown()
        self.evaluation = None
        work = partial(
            evaluate,
            self._model,
            self._scene,
            self._config,
            resolution=None if meshes else 0,
            step=self._scene.plan.march_step(done),
            between=partial(run.stop_point, "an evaluation"),
            shown=lambda sight: write_pictures(run.folder, iteration, sight) if sight.number in shown else None,
            parts=self.parts,
        )
        self.evaluation = found = run.attempts.result(self.parts, work)
        run.record(found.metrics, position=done)
        run.recording.image("Eval/normals", sheet_of(found.strips), done)
        run.save_after_step({"mae": found.score})
        if found.surface is not None:
            self._mesh(run, done, found.surface)

    def _shown(self) -> set[int]:
        train, count = self._scene.train, min(SHOWN, len(self._scene.train))
        return {train[i * len(train) // count] for i in range(count)} | set(self._scene.test[:1])

    def _surface(self, run: Run) -> Surface:
        block, between = self.parts.chunk(BLOCK, least=LEAST_BLOCK), partial(run.stop_point, "a validation mesh")
        chunks = Chunks(self.parts.chunk(self._model.grid.config.chunk, least=LEAST))
        nodes = self._config.mesh_resolution
        return find_surface(self._model, nodes, chunks=chunks, block=block, between=between)

    def _mesh(self, run: Run, done: int, surface: Surface) -> None:
        if surface.empty:
            run.event("empty_mesh", iteration=self._iteration(done))
            return
        write_mesh(run.folder / MESHES / f"iter_{self._iteration(done):08d}.ply", surface.in_world(self._scene))

    def _poses(self, run: Run, done: int, poses: torch.Tensor) -> None:
        scene, model = self._scene, self._model
        add_poses(
            run.folder,
            self._iteration(done),
            poses,
            start=model.poses.start,
            names=tuple(scene.maps.names[i] for i in scene.train),
            errors=pose_errors(model, scene),
        )

    @contextmanager
    def _aside(self, run: Run, what: str) -> Generator[None]:
        with run.aside(what) as aside:
            yield
        self.failures += aside.failed


def write_pictures(folder: Path, iteration: int, sight: Sight) -> dict[str, Path]:
    """Write what a view shows, clean outside of its silhouette.

    `normals/%08d_0_NAME.png` has normals as 128 n + 128 in OpenGL axes, `depths/%08d_0_NAME.png` colours, light near
    and dark far; both are transparent outside. `depths/%08d_0_NAME.npy` has the depth along the axis in units of the
    scene's sphere, float32, NaN outside. The names are PMNI's.

    Args:
        folder: of the run.
        iteration: nominal.
        sight: the view.

    Raises:
        OSError: a file cannot be written.
    """
    seen, name = sight.seen, f"{iteration:08d}_0_{sight.view.name}"
    depth = np.where(seen.mask.numpy(), seen.depth.numpy(), np.float32(np.nan))
    normals = normal_colours(seen.camera_normals)
    return {
        "normals": save_cut_out(folder / NORMALS / f"{name}.png", normals, seen.mask),
        "depth": save_cut_out(folder / DEPTHS / f"{name}.png", depth_colours(seen.depth, seen.mask), seen.mask),
        "depth_values": save_array(folder / DEPTHS / f"{name}.npy", depth),
    }
