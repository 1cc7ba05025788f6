"""Evaluation of a trained surface: normals, silhouettes, depth, poses and mesh.

Normals are compared in camera axes. The angle is the same in world axes if both normals are rotated by the same pose.
If poses are not the dataset's, `Eval/mae_world` compares in the dataset's world frame instead, where pose errors count.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch import MicroBatches
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import MeshEvaluation, Triangles, evaluate_mesh
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.evaluation_tags import WINDOW
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
"""Score of a surface that is not visible in any view, in degrees: the maximum of a mean angle."""
SAMPLES = 50_000
"""Number of points sampled on each surface for the comparison."""
SAME = 1e-5
"""Tolerance for equal poses: above rounding errors."""
LEAST = 1024
LEAST_BLOCK = 8
"""Minimum number of rays or points per chunk, and of cells along a side of a block: less would not save memory."""
TILE = 176
"""Width and height of each image of a view, in pixels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalsEvaluation:
    """Results of an evaluation.

    Attributes:
        rows: errors of every view, training views first.
        metrics: all tags that apply; values that cannot be measured are absent.
        poses: pose errors; None if the poses are the dataset's.
        surface: extracted mesh; None if none was requested.
        against_truth: comparison of the mesh, aligned like the poses, with the ground truth; None if either is missing.
        strips: image strip of every view, in the order of the rows: observed normals, rendered normals and their angle,
            for `sheet_of`.
    """

    rows: tuple[ViewError, ...]
    metrics: dict[str, float]
    poses: PoseErrors | None
    surface: Surface | None
    against_truth: MeshEvaluation | None
    strips: tuple[UInt8[np.ndarray, "height width 3"], ...]

    @property
    def score(self) -> float:
        """Score by which checkpoints are ranked, lower is better: mean angular error, 180 if nothing is visible."""
        return self.metrics.get("Eval/mae", WORST)


@torch.no_grad()
def evaluate_surface(  # noqa: PLR0913  model, scene and settings, and options to save time
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
    """Render and measure every view, and extract the mesh, without changing training state or drawing random numbers.

    Held-out views are rendered from the dataset's pose, transformed into the frame of the learned poses.

    Args:
        model: trained model.
        scene: training data.
        config: settings of the run.
        resolution: mesh grid nodes along a side; None takes the config's, 0 extracts no mesh.
        step: distance between samples, in units of the scene's sphere; None takes the final one of the training.
        on_view: callback for every measured view, for example to write images without rendering again.
        stop_point: called before each view and each mesh block; may raise to abort.
        micro_batches: number of parts in which rays, points and mesh blocks are processed; None processes all at once.

    Raises:
        MeshError: the field is not finite somewhere.
        ValueError: the poses do not determine a similarity.
        MemoryError: even the smallest chunk does not fit into memory.
    """
    began = time.perf_counter()
    micro_batches = micro_batches or MicroBatches()
    chunks = Chunks(micro_batches.chunk(config.rendering.chunk, least=LEAST))
    rays = micro_batches.chunk(RAYS, least=LEAST)
    step = config.rendering.last_step if step is None else step
    # Before the views: held-out views are rendered from poses aligned with the learned ones.
    poses = pose_errors(model, scene)
    error_pool = _ErrorPool(poses, scene)
    strips: list[np.ndarray] = []
    cameras = _cameras(model, scene, poses)
    for comparison in _compared(model, scene, config, cameras, step, chunks=chunks, rays=rays, stop_point=stop_point):
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
    # Recorded last, when the mesh has also had a chance to shrink the chunks.
    metrics |= {"Eval/chunk_shrinks": chunks.shrinks, "Eval/seconds": time.perf_counter() - began}
    return NormalsEvaluation(
        rows=tuple(error_pool.rows),
        metrics=metrics,
        poses=poses,
        surface=surface,
        against_truth=mesh_evaluation,
        strips=tuple(strips),
    )


def compare_views(  # noqa: PLR0913  model, scene, settings, which views, and how they are rendered
    model: NormalsModel,
    scene: NormalsScene,
    config: NormalsConfig,
    numbers: Collection[int],
    *,
    step: float,
    stop_point: Callable[[], object],
    micro_batches: MicroBatches,
) -> Iterator[ViewComparison]:
    """Render some views and compare each with its maps, as `evaluate_surface` does with all of them.

    Args:
        model: trained model.
        scene: training data.
        config: settings of the run.
        numbers: numbers of the views.
        step: distance between samples, in units of the scene's sphere.
        stop_point: called before each view; may raise to abort.
        micro_batches: number of parts in which rays and points are processed.

    Raises:
        ValueError: the poses do not determine a similarity.
        MemoryError: even the smallest chunk does not fit into memory.
    """
    chunks = Chunks(micro_batches.chunk(config.rendering.chunk, least=LEAST))
    rays = micro_batches.chunk(RAYS, least=LEAST)
    cameras = (each for each in _cameras(model, scene, pose_errors(model, scene)) if each[0] in numbers)
    return _compared(model, scene, config, cameras, step, chunks=chunks, rays=rays, stop_point=stop_point)


def _compared(  # noqa: PLR0913  model, scene, settings and views, and how they are rendered
    model: NormalsModel,
    scene: NormalsScene,
    config: NormalsConfig,
    cameras: Iterable[tuple[int, Split, Camera]],
    step: float,
    *,
    chunks: Chunks,
    rays: int,
    stop_point: Callable[[], object],
) -> Iterator[ViewComparison]:
    for number, split, camera in cameras:
        stop_point()
        rendered = render_view(model, camera, config.rendering, step, chunks=chunks, rays=rays)
        yield ViewComparison.of(number, scene.maps.views[number], rendered, split)


def pose_errors(model: NormalsModel, scene: NormalsScene) -> PoseErrors | None:
    """Return the errors of the training views' poses, or None if the poses are the dataset's."""
    known = torch.stack([scene.maps.views[i].camera.world_from_camera.double().cpu() for i in scene.train])
    # Fixed poses that start at the dataset's differ from it by float32 rounding only.
    unchanged = (
        torch.allclose(model.poses.start.cpu(), known.float(), atol=SAME) and not model.poses.learned_parameters()
    )
    return None if unchanged else PoseErrors.of(model.poses(), known)


def against_truth(surface: Surface, scene: NormalsScene, poses: PoseErrors | None) -> MeshEvaluation | None:
    """Compare a mesh with the ground truth in the frame and units of the scene's sphere.

    Learned poses are determined up to a similarity only, so the mesh is first transformed by the similarity that aligns
    the cameras with the dataset's.

    Returns:
        The comparison, or None if the ground truth is unknown or the surface is empty.
    """
    if scene.truth is None or surface.empty:
        return None
    return evaluate_mesh(align_mesh(surface.mesh, poses), scene.truth, samples=SAMPLES)


def align_mesh(mesh: Triangles, poses: PoseErrors | None) -> Triangles:
    """Transform a mesh into the frame of the dataset's cameras."""
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
    """Yield the index, split and camera of every evaluated view."""
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
    """Collects the errors of all views; means are taken over all pixels of all views, as in SuperNormal.

    Args:
        poses: pose errors of the training views, for the comparison in the dataset's world frame.
        scene: scene whose views are evaluated.
    """

    def __init__(self, poses: PoseErrors | None, scene: NormalsScene) -> None:
        self.rows: list[ViewError] = []
        self._poses = poses
        self._scene = scene
        self._angles: dict[str, list[Tensor]] = {"train": [], "held_out": [], "world": []}
        self._smooth: list[Tensor] = []

    def add(self, comparison: ViewComparison) -> None:
        """Add a view."""
        self.rows.append(comparison.error)
        # Angles are NaN where either normal is missing.
        both = comparison.angles.isfinite()
        self._angles[comparison.error.split].append(comparison.angles[both])
        if comparison.error.split == "train" and self._scene.maps.convention is not None:
            self._smooth.append(smooth_errors(comparison))
        if self._poses is not None:
            # Rendered normals are in the frame of the learned poses; observed ones are rotated by the dataset's pose.
            rotation = self._poses.alignment.rotation.to(comparison.rendered.normals)
            self._angles["world"].append(
                angles_between(comparison.rendered.normals[both] @ rotation.T, comparison.view.world_normals()[both])
            )

    def metrics(self) -> dict[str, float]:
        """Return the tags over all views."""
        metrics = self._of("train", "")
        if self._scene.test:
            metrics |= self._of("held_out", "_held_out")
        world = angle_statistics(_all(self._angles["world"]))
        if world:
            metrics["Eval/mae_world"] = world["mae"]
        smooth = _all(self._smooth)
        if len(smooth):
            metrics["Eval/smooth_error"] = float(smooth.median())
        if self._scene.maps.noise is not None:
            metrics["Eval/map_noise"] = self._scene.maps.noise
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
        # Not every view has known depth, so this mean is over views, not over pixels.
        errors = [row.depth_error for row in self.rows if row.depth_error is not None]
        if not errors:
            return {}
        mean = float(np.mean(errors))
        truth = self._scene.truth
        # The diameter of the bounding box; without a ground truth, that of the scene's unit sphere.
        across = 2.0 if truth is None else float(np.linalg.norm(np.ptp(truth.corners.reshape(-1, 3), axis=0)))
        return {"Eval/depth_error": mean, "Eval/depth_error_permille": 1000 * mean / across}


def smooth_errors(comparison: ViewComparison) -> Float[Tensor, " pixels"]:
    """Return the differences of normals averaged over a window, in degrees, at the pixels that have an angle.

    Noise from pixel to pixel averages out; what is left are errors of the maps, or of the surface, that change slowly
    over the image.
    """
    both = comparison.angles.isfinite()
    difference = comparison.rendered.camera_normals - comparison.view.normals
    planes = torch.where(both[..., None], difference, torch.zeros(())).permute(2, 0, 1)
    counted = both.float()[None]
    sums = torch.nn.functional.avg_pool2d(torch.cat([planes, counted])[None], WINDOW, 1, WINDOW // 2)[0]
    means = sums[:3] / sums[3:].clamp_min(1 / WINDOW**2)
    return torch.rad2deg(means.norm(dim=0)[both])


def _all(angles: list[Float[Tensor, " _"]]) -> Float[Tensor, " n"]:
    return torch.cat(angles) if angles else torch.empty(0)
