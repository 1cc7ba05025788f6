"""How good a trained surface is: normals, silhouettes and depth of every view, poses, and the mesh where it is known.

Normals are compared in camera axes, which gives the same angle as in the world when both are turned by the same pose.
Where poses are not the data's, `Eval/mae_world` compares in the data's world instead: there a wrong pose counts.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch import MicroBatches
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import MeshEvaluation, Triangles, evaluate_mesh
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.pictures import strip_of
from fieldwatch.recon.pipelines.normals.pose_accuracy import PoseErrors
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.surface import BLOCK, Surface, find_surface
from fieldwatch.recon.pipelines.normals.view_errors import (
    Split,
    ViewComparison,
    ViewError,
    angle_statistics,
    angles_between,
)
from fieldwatch.recon.pipelines.normals.views import RAYS, render_view
from fieldwatch.recon.render import Chunks

WORST = 180.0
"""Score of a surface of which nothing is seen, degrees: no mean angle is larger."""
SAMPLES = 50_000
"""Points on either surface."""
SAME = 1e-5
"""Poses that differ by less are the same: what rounding does."""
LEAST = 1024
LEAST_BLOCK = 8
"""Rays and points at a time, and cells along a side of a block, below which less would not help."""
TILE = 176
"""Pixels of a view's pictures, each way."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalsEvaluation:
    """What an evaluation found.

    Attributes:
        rows: every view, those that were trained on first.
        metrics: every tag that applies; what cannot be measured is absent.
        poses: errors of the poses; None where they are the data's own.
        surface: the mesh; None where none was asked for.
        against_truth: the mesh, aligned as the poses are, against the true one; None where one of them is missing.
        strips: of every view, in the order of the rows: observed and rendered normals and their angle, for `sheet_of`.
    """

    rows: tuple[ViewError, ...]
    metrics: dict[str, float]
    poses: PoseErrors | None
    surface: Surface | None
    against_truth: MeshEvaluation | None
    strips: tuple[UInt8[np.ndarray, "height width 3"], ...]

    @property
    def score(self) -> float:
        """What checkpoints are ranked by, lower is better: the mean angular error, 180 where nothing is seen."""
        return self.metrics.get("Eval/mae", WORST)


@torch.no_grad()
def evaluate_surface(  # noqa: PLR0913  the three that are compared; three ways to spare time
    model: NormalsModel,
    scene: NormalsScene,
    config: NormalsConfig,
    *,
    resolution: int | None = None,
    step: float | None = None,
    on_view: Callable[[ViewComparison], object] | None = None,
    stop_point: Callable[[], object] = lambda: None,
    micro_batches: MicroBatches | None = None,
) -> NormalsEvaluation:
    """Render and measure every view, and the mesh. Nothing of the training moves, nothing random is drawn.

    Views that were held out are looked at from the data's pose, brought into the frame of the learned ones.

    Args:
        model: what was trained.
        scene: what it was trained on.
        config: settings.
        resolution: nodes of the mesh along a side; None takes the config's, 0 makes no mesh.
        step: distance between samples; None takes the last of the training.
        on_view: given every view as it is measured, so that pictures need no second rendering.
        stop_point: called before each view and each block of the mesh; it may raise, to give up.
        micro_batches: in how many parts rays are looked along, points evaluated and blocks made; None is one.

    Raises:
        MeshError: the field is not finite somewhere.
        ValueError: poses that fix no similarity.
        MemoryError: even few points at a time do not fit.
    """
    began = time.perf_counter()
    micro_batches = micro_batches or MicroBatches()
    chunks = Chunks(micro_batches.chunk(config.rendering.chunk, least=LEAST))
    rays = micro_batches.chunk(RAYS, least=LEAST)
    step = config.rendering.last_step if step is None else step
    poses = pose_errors(model, scene)
    error_pool = _ErrorPool(poses, scene)
    strips: list[np.ndarray] = []
    for number, split, camera in _cameras(model, scene, poses):
        stop_point()
        rendered = render_view(model, camera, config.rendering, step, chunks=chunks, rays=rays)
        comparison = ViewComparison.of(number, scene.maps.views[number], rendered, split)
        error_pool.add(comparison)
        strips.append(strip_of(comparison, TILE))
        if on_view is not None:
            on_view(comparison)
    metrics = error_pool.metrics() | ({} if poses is None else poses.metrics)
    mesh_nodes = config.mesh_resolution if resolution is None else resolution
    block = micro_batches.chunk(BLOCK, least=LEAST_BLOCK)
    surface = find_surface(model, mesh_nodes, chunks=chunks, block=block, stop_point=stop_point) if mesh_nodes else None
    mesh_evaluation = None if surface is None else against_truth(surface, scene, poses)
    metrics |= mesh_metrics(surface, mesh_evaluation)
    metrics |= {"Eval/chunk_shrinks": chunks.shrinks, "Eval/seconds": time.perf_counter() - began}
    return NormalsEvaluation(
        rows=tuple(error_pool.rows),
        metrics=metrics,
        poses=poses,
        surface=surface,
        against_truth=mesh_evaluation,
        strips=tuple(strips),
    )


def pose_errors(model: NormalsModel, scene: NormalsScene) -> PoseErrors | None:
    """Return how far the poses of the training views are from the data's; None where they are the data's own."""
    known = torch.stack([scene.maps.views[i].camera.world_from_camera.double().cpu() for i in scene.train])
    unchanged = (
        torch.allclose(model.poses.start.cpu(), known.float(), atol=SAME) and not model.poses.learned_parameters()
    )
    return None if unchanged else PoseErrors.of(model.poses(), known)


def against_truth(surface: Surface, scene: NormalsScene, poses: PoseErrors | None) -> MeshEvaluation | None:
    """Compare a mesh with the true one, in the frame of the scene's sphere, lengths in its units.

    Learned poses leave a similarity open: the mesh is moved by the one that brings the cameras onto the data's.

    Returns:
        None where the truth is unknown or the surface is empty.
    """
    if scene.truth is None or surface.empty:
        return None
    return evaluate_mesh(align_mesh(surface.mesh, poses), scene.truth, samples=SAMPLES)


def align_mesh(mesh: Triangles, poses: PoseErrors | None) -> Triangles:
    """Return a mesh in the frame of the data's cameras."""
    if poses is None:
        return mesh
    return replace(mesh, vertices=poses.alignment.apply(torch.from_numpy(mesh.vertices)).numpy())


def mesh_metrics(surface: Surface | None, against: MeshEvaluation | None) -> dict[str, float]:
    """Return the tags of a mesh."""
    if surface is None:
        return {}
    mesh = surface.mesh
    metrics: dict[str, float] = {
        "Eval/mesh_vertices": len(mesh.vertices),
        "Eval/mesh_faces": len(mesh.faces),
        "Eval/mesh_pieces_removed": surface.removed,
        "Eval/watertight": float(mesh.closed and mesh.consistently_wound),
    }
    if against is not None:
        metrics |= {
            "Eval/chamfer_percent": against.chamfer_percent,
            "Eval/accuracy_percent": 100 * against.accuracy / against.diameter,
            "Eval/completeness_percent": 100 * against.completeness / against.diameter,
            "Eval/f_score": against.scores[0].f_score,
            "Eval/mesh_normal_consistency": against.normal_consistency,
        }
    return metrics


def _cameras(model: NormalsModel, scene: NormalsScene, poses: PoseErrors | None) -> Iterable[tuple[int, Split, Camera]]:
    """Yield every view that is measured, and where it is looked at from."""
    for number, pose in zip(scene.train, model.poses().double().cpu(), strict=True):
        yield number, "train", scene.camera(number, pose)
    for number in scene.test:
        pose = scene.maps.views[number].camera.world_from_camera.double().cpu()
        yield (
            number,
            "held_out",
            scene.camera(number, pose if poses is None else poses.alignment.inverse().apply_to_pose(pose)),
        )


class _ErrorPool:
    """Gathers what is measured of views; means are over all pixels of all views, as SuperNormal has it.

    Args:
        poses: errors of the poses of the training views, for the comparison in the data's world.
        scene: the views.
    """

    def __init__(self, poses: PoseErrors | None, scene: NormalsScene) -> None:
        self.rows: list[ViewError] = []
        self._poses = poses
        self._scene = scene
        self._angles: dict[str, list[Tensor]] = {"train": [], "held_out": [], "world": []}

    def add(self, comparison: ViewComparison) -> None:
        """Take in a view."""
        self.rows.append(comparison.error)
        both = comparison.angles.isfinite()
        self._angles[comparison.error.split].append(comparison.angles[both])
        if self._poses is not None:
            # Rendered normals are in the frame of the learned poses, observed ones are turned by the data's.
            rotation = self._poses.alignment.rotation.to(comparison.rendered.normals)
            self._angles["world"].append(
                angles_between(comparison.rendered.normals[both] @ rotation.T, comparison.view.world_normals()[both])
            )

    def metrics(self) -> dict[str, float]:
        """Return the tags of all views."""
        metrics = self._of("train", "")
        if self._scene.test:
            metrics |= self._of("held_out", "_held_out")
        world = angle_statistics(_all(self._angles["world"]))
        if world:
            metrics["Eval/mae_world"] = world["mae"]
        return metrics | self._depth()

    def _of(self, split: Split, ending: str) -> dict[str, float]:
        names = {"mae": "mae", "median": "median_error", "below_5": "below_5", "below_11_25": "below_11_25"}
        angles = angle_statistics(_all(self._angles[split]))
        rows = [row for row in self.rows if row.split == split]
        return {f"Eval/{names[key]}{ending}": value for key, value in angles.items()} | {
            f"Eval/missed{ending}": float(np.mean([row.missed for row in rows])),
            f"Eval/iou{ending}": float(np.mean([row.iou for row in rows])),
        }

    def _depth(self) -> dict[str, float]:
        errors = [row.depth_error for row in self.rows if row.depth_error is not None]
        if not errors:
            return {}
        mean = float(np.mean(errors))
        truth = self._scene.truth
        # Without a truth: the diameter of the scene's sphere.
        across = 2.0 if truth is None else float(np.linalg.norm(np.ptp(truth.corners.reshape(-1, 3), axis=0)))
        return {"Eval/depth_error": mean, "Eval/depth_error_permille": 1000 * mean / across}


def _all(angles: list[Float[Tensor, " _"]]) -> Float[Tensor, " n"]:
    return torch.cat(angles) if angles else torch.empty(0)
