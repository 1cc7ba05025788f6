"""A mesh against the true surface: distances both ways, F-scores, normals."""

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
"""Shares of the truth's diameter at which the F-score is taken, unless lengths are given."""

Masks = Sequence[Bool[np.ndarray, "height width"] | None]


@dataclass(frozen=True, kw_only=True)
class ThresholdScore:
    """How much of two surfaces lies within a distance of the other.

    Attributes:
        threshold: the distance, in units of the scene.
        precision: share of the mesh's points that are that near to the truth.
        recall: share of the truth's points that are that near to the mesh.
        f_score: their harmonic mean; 0 where both are 0.
    """

    threshold: float
    precision: float
    recall: float
    f_score: float


@dataclass(frozen=True, kw_only=True, eq=False)
class MeshEvaluation:
    """What an evaluation found. Lengths are in units of the truth.

    Attributes:
        style: the protocol.
        align: how the mesh was brought onto the truth.
        alignment: the similarity that did it; the identity for "none".
        aligned: the mesh after it.
        diameter: diagonal of the truth's bounding box.
        accuracy: mean distance from the mesh's points to the truth.
        completeness: mean distance from the truth's points to the mesh.
        chamfer: mean of the two.
        chamfer_percent: that, in percent of the diameter.
        chamfer_squared: mean squared distance one way plus that the other way (Fan, Su & Guibas, CVPR 2017); a length
            squared, so it weighs outliers more.
        worst_accuracy: largest distance from the mesh's points to the truth (one side of Hausdorff's, of the points).
        worst_completeness: the other side.
        normal_consistency: mean of |cosine| between the normals of points and of what is nearest, over both ways
            (Mescheder et al., Occupancy networks, CVPR 2019); blind to which side is out.
        facing_alike: share of those pairs whose normals point to the same side: low for a mesh inside out.
        scores: precision, recall and F-score by threshold.
        lengths: that the protocol used.
        to_truth: distances of the mesh's points.
        to_mesh: distances of the truth's points.
        vertex_errors: exact distances of all vertices of the mesh from the truth.
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
        """All but the arrays, as plain values for a file."""
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


def evaluate_mesh(  # noqa: PLR0913  a protocol has that many knobs; all but the meshes have defaults
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
    """Compare a mesh with the true surface.

    Points are spread over both surfaces by area; with cameras, they are what these see (first hits), thinned so that
    they are even again. What is measured depends on the style, see :data:`fieldwatch.recon.mesh.EvaluationStyle`.

    Args:
        mesh: to be judged.
        truth: the true surface.
        align: bring the mesh onto the truth first, see :func:`fieldwatch.recon.mesh.align_mesh`.
        thresholds: of the F-score, lengths; None: 0.5, 1 and 2 % of the truth's diameter.
        style: the protocol.
        cameras: that both surfaces are seen from, in the truth's world.
        masks: for each camera, which pixels count.
        samples: points per surface; from cameras at most about that many ("diligent": all).
        lengths: of the protocol, where they are to differ from its own.
        seed: of the points.

    Raises:
        MeshError: a mesh has no area, a threshold is not above 0, "diligent" has no cameras, masks do not fit, or the
            cameras see nothing.
    """
    diameter = _diameter(truth)
    thresholds_used = _limits(thresholds, diameter)
    if style == "diligent" and not cameras:
        raise MeshError("style diligent measures what cameras see, and there are none: give cameras, or another style")
    used_lengths = style_lengths(
        style, diameter=diameter, threshold=thresholds_used[0], given=lengths or StyleLengths()
    )
    alignment = align_mesh(mesh, truth, method=align, seed=seed)
    aligned = mesh if align == "none" else moved(mesh, alignment)
    clouds = [
        thinned_for(_points(surface, samples, (style, cameras, masks), seed + number), used_lengths, whose)
        for number, (surface, whose) in enumerate(((aligned, "the mesh"), (truth, "the truth")))
    ]
    # Built once: point distances and vertex errors both need it.
    search = SurfaceSearch(truth)
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
    """From the mesh's points to the truth, and back."""
    if style != "plain":
        return distances_to_points(*clouds), distances_to_points(*reversed(clouds))
    aligned, truth = meshes
    return distances_to_surface(clouds[0], truth, search), distances_to_surface(
        clouds[1], aligned, SurfaceSearch(aligned)
    )


def _summary(
    to_truth: SurfaceDistances, to_mesh: SurfaceDistances, lengths: StyleLengths, diameter: float
) -> dict[str, float]:
    """The figures that are means or extremes over the points of both surfaces."""
    accuracy = _mean(to_truth, lengths)
    completeness = _mean(to_mesh, lengths)
    cosines = [np.abs(to_truth.cosines), np.abs(to_mesh.cosines)]
    return {
        "accuracy": accuracy,
        "completeness": completeness,
        "chamfer": (accuracy + completeness) / 2,
        "chamfer_percent": 50 * (accuracy + completeness) / diameter,
        "chamfer_squared": float(np.square(to_truth.distances).mean() + np.square(to_mesh.distances).mean()),
        "worst_accuracy": float(to_truth.distances.max()),
        "worst_completeness": float(to_mesh.distances.max()),
        "normal_consistency": float(sum(each.mean() for each in cosines) / 2),
        "facing_alike": float(((to_truth.cosines > 0).mean() + (to_mesh.cosines > 0).mean()) / 2),
    }


def _diameter(truth: Triangles) -> float:
    if not len(truth.faces):
        raise MeshError("the truth has no faces, so nothing can be compared with it: give the mesh of a surface")
    return float(np.linalg.norm(np.ptp(truth.corners.reshape(-1, 3), axis=0)))


def _limits(thresholds: Sequence[float] | None, diameter: float) -> tuple[float, ...]:
    limits = tuple(share * diameter for share in THRESHOLDS) if thresholds is None else tuple(thresholds)
    if not limits or not all(0 < limit < np.inf for limit in limits):
        raise MeshError(f"thresholds are {limits}: wanted is at least one length above 0, in units of the truth")
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
    # even over the surface: cubes of such a side hold about one point each of that many over the whole surface
    return thinned(visible, float(np.sqrt(mesh.areas.sum() / samples)))


def _mean(measured: SurfaceDistances, lengths: StyleLengths) -> float:
    if lengths.cap is None:
        return float(measured.distances.mean())
    near = measured.distances[measured.distances <= lengths.cap]
    if not len(near):
        raise MeshError(
            f"all of {len(measured.distances)} points are farther than the cap of {lengths.cap:g} from the other "
            "surface: "
            "the meshes do not lie in the same place; align them (sim3), or raise the cap"
        )
    return float(near.mean())


def _score(to_truth: SurfaceDistances, to_mesh: SurfaceDistances, limit: float) -> ThresholdScore:
    precision, recall = (float((measured.distances <= limit).mean()) for measured in (to_truth, to_mesh))
    total = precision + recall
    f_score = 2 * precision * recall / total if total > 0 else 0.0
    return ThresholdScore(threshold=limit, precision=precision, recall=recall, f_score=f_score)
