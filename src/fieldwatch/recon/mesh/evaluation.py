"""Evaluation of a mesh against the ground truth: distances in both directions, F-scores, normals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from fieldwatch.recon.geometry import Camera, Similarity
from fieldwatch.recon.mesh.alignment import AlignMethod, align_mesh, moved
from fieldwatch.recon.mesh.closest import SurfaceSearch
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.evaluation_styles import (
    EvaluationStyle,
    StyleLengths,
    SurfaceDistances,
    distances_to_points,
    distances_to_surface,
    style_lengths,
    thinned_for,
)
from fieldwatch.recon.mesh.sampling import SurfaceSamples, sample_surface, thinned
from fieldwatch.recon.mesh.triangles import Triangles
from fieldwatch.recon.mesh.visibility import visible_points

THRESHOLDS = (0.005, 0.01, 0.02)
"""Default thresholds of the F-score, as fractions of the diameter of the ground truth."""

Masks = Sequence[Bool[np.ndarray, "height width"] | None]


@dataclass(frozen=True, kw_only=True)
class ThresholdScore:
    """Precision, recall and F-score at one distance threshold.

    Attributes:
        threshold: distance threshold in world units.
        precision: fraction of the points of the mesh within the threshold of the ground truth.
        recall: fraction of the points of the ground truth within the threshold of the mesh.
        f_score: harmonic mean of precision and recall; 0 if both are 0.
    """

    threshold: float
    precision: float
    recall: float
    f_score: float


@dataclass(frozen=True, kw_only=True, eq=False)
class MeshEvaluation:
    """Result of an evaluation. Lengths are in the units of the ground truth.

    Attributes:
        style: evaluation protocol.
        align: method that aligned the mesh with the ground truth.
        alignment: similarity applied to the mesh; the identity for "none".
        aligned: mesh after the alignment.
        diameter: diagonal of the bounding box of the ground truth.
        accuracy: mean distance from the points of the mesh to the ground truth.
        completeness: mean distance from the points of the ground truth to the mesh.
        chamfer: mean of accuracy and completeness.
        chamfer_percent: Chamfer distance in percent of the diameter.
        chamfer_squared: sum of the mean squared distances in both directions (Fan, Su & Guibas, CVPR 2017). It is a
            squared length and weights outliers more.
        worst_accuracy: largest distance from the points of the mesh to the ground truth (one-sided Hausdorff distance
            of the points).
        worst_completeness: largest distance from the points of the ground truth to the mesh.
        normal_consistency: mean |cosine| between the normals of points and of their nearest neighbors, over both
            directions (Mescheder et al., Occupancy networks, CVPR 2019); independent of which side is outside.
        facing_alike: fraction of those pairs whose normals point to the same side; low for an inside-out mesh.
        scores: precision, recall and F-score per threshold.
        lengths: lengths used by the protocol.
        to_truth: distance of each point of the mesh.
        to_mesh: distance of each point of the ground truth.
        vertex_errors: exact distance of each vertex of the mesh from the ground truth.
    """

    style: EvaluationStyle
    align: AlignMethod
    alignment: Similarity
    aligned: Triangles
    diameter: float
    accuracy: float
    completeness: float
    chamfer: float
    chamfer_percent: float
    chamfer_squared: float
    worst_accuracy: float
    worst_completeness: float
    normal_consistency: float
    facing_alike: float
    scores: tuple[ThresholdScore, ...]
    lengths: StyleLengths
    to_truth: Float64[np.ndarray, "n"]
    to_mesh: Float64[np.ndarray, "m"]
    vertex_errors: Float64[np.ndarray, "v"]

    @property
    def figures(self) -> dict[str, Any]:
        """Everything except the arrays, as plain values for a JSON file."""
        names = [
            "style",
            "align",
            "diameter",
            "accuracy",
            "completeness",
            "chamfer",
            "chamfer_percent",
            "chamfer_squared",
            "worst_accuracy",
            "worst_completeness",
            "normal_consistency",
            "facing_alike",
        ]
        change = self.alignment
        return {
            **{name: getattr(self, name) for name in names},
            "scores": [vars(score) for score in self.scores],
            "lengths": vars(self.lengths),
            "points": {"mesh": len(self.to_truth), "truth": len(self.to_mesh)},
            "alignment": {
                "scale": change.scale,
                "rotation": change.rotation.tolist(),
                "translation": change.translation.tolist(),
            },
        }


def evaluate_mesh(  # noqa: PLR0913  a protocol has that many settings; all but the meshes have defaults
    mesh: Triangles,
    truth: Triangles,
    *,
    align: AlignMethod = "none",
    thresholds: Sequence[float] | None = None,
    style: EvaluationStyle = "plain",
    cameras: Sequence[Camera] | None = None,
    masks: Masks | None = None,
    samples: int = 100_000,
    lengths: StyleLengths | None = None,
    seed: int = 0,
) -> MeshEvaluation:
    """Compare a mesh with the ground truth.

    Points are sampled on both surfaces by area. With cameras, the points are instead the first hits of the rays through
    their pixels, thinned to an even density. The style selects what is measured, see
    :data:`fieldwatch.recon.mesh.EvaluationStyle`.

    Args:
        mesh: mesh to evaluate.
        truth: ground truth surface.
        align: alignment of the mesh with the ground truth before the comparison, see
            :func:`fieldwatch.recon.mesh.align_mesh`.
        thresholds: distance thresholds of the F-score; None uses 0.5, 1 and 2 % of the diameter of the ground truth.
        style: evaluation protocol.
        cameras: cameras that limit the comparison to visible surface, in the coordinates of the ground truth.
        masks: mask of counted pixels for each camera.
        samples: number of points per surface; with cameras, an approximate upper limit ("diligent" keeps all hits).
        lengths: overrides for the lengths of the protocol.
        seed: random seed of the points.

    Raises:
        MeshError: a mesh has no area, a threshold is not positive, "diligent" has no cameras, the masks do not match
            the cameras, or the cameras see nothing.
    """
    diameter = _diameter(truth)
    thresholds_used = _limits(thresholds, diameter)
    if style == "diligent" and not cameras:
        raise MeshError(
            "the style diligent measures what cameras see, got no cameras: give cameras, or choose another style"
        )
    used_lengths = style_lengths(
        style, diameter=diameter, threshold=thresholds_used[0], given=lengths or StyleLengths()
    )
    alignment = align_mesh(mesh, truth, method=align, seed=seed)
    aligned = mesh if align == "none" else moved(mesh, alignment)
    clouds = [
        # A different seed for each surface: equal meshes must not get equal points.
        thinned_for(_points(surface, samples, (style, cameras, masks), seed + number), used_lengths, whose)
        for number, (surface, whose) in enumerate(((aligned, "the mesh"), (truth, "the truth")))
    ]
    # Point distances, vertex errors and the next evaluation all use it.
    search = SurfaceSearch.kept_for(truth)
    to_truth, to_mesh = _distances(style, clouds, (aligned, truth), search)
    return MeshEvaluation(
        style=style,
        align=align,
        alignment=alignment,
        aligned=aligned,
        diameter=diameter,
        **_summary(to_truth, to_mesh, used_lengths, diameter),
        scores=tuple(_score(to_truth, to_mesh, limit) for limit in thresholds_used),
        lengths=used_lengths,
        to_truth=to_truth.distances,
        to_mesh=to_mesh.distances,
        vertex_errors=search.closest(aligned.vertices).distances,
    )


def _distances(
    style: EvaluationStyle, clouds: list[SurfaceSamples], meshes: tuple[Triangles, Triangles], search: SurfaceSearch
) -> tuple[SurfaceDistances, SurfaceDistances]:
    """Return the distances from the points of the mesh to the ground truth, and vice versa."""
    if style != "plain":
        return distances_to_points(*clouds), distances_to_points(*reversed(clouds))
    aligned, truth = meshes
    return distances_to_surface(clouds[0], truth, search), distances_to_surface(
        clouds[1], aligned, SurfaceSearch(aligned)
    )


def _summary(
    to_truth: SurfaceDistances, to_mesh: SurfaceDistances, lengths: StyleLengths, diameter: float
) -> dict[str, float]:
    """Return the means and extremes over the points of both surfaces."""
    accuracy = _mean(to_truth, lengths)
    completeness = _mean(to_mesh, lengths)
    cosines = [np.abs(to_truth.cosines), np.abs(to_mesh.cosines)]
    return {
        "accuracy": accuracy,
        "completeness": completeness,
        "chamfer": (accuracy + completeness) / 2,
        # 50 is 100 percent times the half of the mean.
        "chamfer_percent": 50 * (accuracy + completeness) / diameter,
        "chamfer_squared": float(np.square(to_truth.distances).mean() + np.square(to_mesh.distances).mean()),
        "worst_accuracy": float(to_truth.distances.max()),
        "worst_completeness": float(to_mesh.distances.max()),
        "normal_consistency": float(sum(each.mean() for each in cosines) / 2),
        "facing_alike": float(((to_truth.cosines > 0).mean() + (to_mesh.cosines > 0).mean()) / 2),
    }


def _diameter(truth: Triangles) -> float:
    if not len(truth.faces):
        raise MeshError("the ground truth has no faces: give the mesh of a surface")
    # Corners, not vertices: vertices without a face do not belong to the surface.
    return float(np.linalg.norm(np.ptp(truth.corners.reshape(-1, 3), axis=0)))


def _limits(thresholds: Sequence[float] | None, diameter: float) -> tuple[float, ...]:
    limits = tuple(share * diameter for share in THRESHOLDS) if thresholds is None else tuple(thresholds)
    if not limits or not all(0 < limit < np.inf for limit in limits):
        raise MeshError(
            f"thresholds must be one or more lengths greater than 0, in units of the ground truth, got {limits}"
        )
    return limits


def _points(
    mesh: Triangles, samples: int, protocol: tuple[EvaluationStyle, Sequence[Camera] | None, Masks | None], seed: int
) -> SurfaceSamples:
    style, cameras, masks = protocol
    if not cameras:
        return sample_surface(mesh, samples, seed=seed)
    visible = visible_points(mesh, cameras, masks=masks)
    if style == "diligent" or not len(visible):
        return visible
    # With this cell size, `samples` points spread evenly over the whole surface have about one point per cell.
    return thinned(visible, float(np.sqrt(mesh.areas.sum() / samples)))


def _mean(measured: SurfaceDistances, lengths: StyleLengths) -> float:
    if lengths.cap is None:
        return float(measured.distances.mean())
    # The cap removes outliers from the mean, as DTU's evaluation code does.
    near = measured.distances[measured.distances <= lengths.cap]
    if not len(near):
        raise MeshError(
            f"all {len(measured.distances)} points are farther than the cap of {lengths.cap:g} from the other surface: "
            "the meshes do not overlap; align them (sim3), or raise the cap"
        )
    return float(near.mean())


def _score(to_truth: SurfaceDistances, to_mesh: SurfaceDistances, limit: float) -> ThresholdScore:
    precision, recall = (float((measured.distances <= limit).mean()) for measured in (to_truth, to_mesh))
    total = precision + recall
    f_score = 2 * precision * recall / total if total > 0 else 0.0
    return ThresholdScore(threshold=limit, precision=precision, recall=recall, f_score=f_score)
