"""A mesh against the true surface: distances both ways, F-scores, normals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from fieldwatch.recon.geometry import Camera, Similarity
from fieldwatch.recon.mesh.alignment import Align, align_mesh, moved
from fieldwatch.recon.mesh.closest import SurfaceSearch
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.evaluation_styles import (
    Gaps,
    Style,
    StyleLengths,
    gaps_to_points,
    gaps_to_surface,
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

    style: Style
    align: Align
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
    align: Align = "none",
    thresholds: Sequence[float] | None = None,
    style: Style = "plain",
    cameras: Sequence[Camera] | None = None,
    masks: Masks | None = None,
    samples: int = 100_000,
    lengths: StyleLengths | None = None,
    seed: int = 0,
) -> MeshEvaluation:
    """Compare a mesh with the true surface.

    Points are spread over both surfaces by area; with cameras, they are what these see (first hits), thinned so that
    they are even again. What is measured depends on the style, see :data:`fieldwatch.recon.mesh.Style`.

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
    limits = _limits(thresholds, diameter)
    if style == "diligent" and not cameras:
        raise MeshError("style diligent measures what cameras see, and there are none: give cameras, or another style")
    chosen = style_lengths(style, diameter=diameter, threshold=limits[0], given=lengths or StyleLengths())
    change = align_mesh(mesh, truth, method=align, seed=seed)
    aligned = mesh if align == "none" else moved(mesh, change)
    clouds = [
        thinned_for(_points(each, samples, (style, cameras, masks), seed + number), chosen, whose)
        for number, (each, whose) in enumerate(((aligned, "the mesh"), (truth, "the truth")))
    ]
    search = SurfaceSearch(truth)
    there, back = _gaps(style, clouds, (aligned, truth), search)
    return MeshEvaluation(
        style=style,
        align=align,
        alignment=change,
        aligned=aligned,
        diameter=diameter,
        **_summary(there, back, chosen, diameter),
        scores=tuple(_score(there, back, limit) for limit in limits),
        lengths=chosen,
        to_truth=there.distances,
        to_mesh=back.distances,
        vertex_errors=search.closest(aligned.vertices).distances,
    )


def _gaps(
    style: Style, clouds: list[SurfaceSamples], meshes: tuple[Triangles, Triangles], search: SurfaceSearch
) -> tuple[Gaps, Gaps]:
    """From the mesh's points to the truth, and back."""
    if style != "plain":
        return gaps_to_points(*clouds), gaps_to_points(*reversed(clouds))
    aligned, truth = meshes
    return gaps_to_surface(clouds[0], truth, search), gaps_to_surface(clouds[1], aligned, SurfaceSearch(aligned))


def _summary(there: Gaps, back: Gaps, chosen: StyleLengths, diameter: float) -> dict[str, float]:
    """The figures that are means or extremes over the points of both surfaces."""
    accuracy = _mean(there, chosen)
    completeness = _mean(back, chosen)
    cosines = [np.abs(there.cosines), np.abs(back.cosines)]
    return {
        "accuracy": accuracy,
        "completeness": completeness,
        "chamfer": (accuracy + completeness) / 2,
        "chamfer_percent": 50 * (accuracy + completeness) / diameter,
        "chamfer_squared": float(np.square(there.distances).mean() + np.square(back.distances).mean()),
        "worst_accuracy": float(there.distances.max()),
        "worst_completeness": float(back.distances.max()),
        "normal_consistency": float(sum(each.mean() for each in cosines) / 2),
        "facing_alike": float(((there.cosines > 0).mean() + (back.cosines > 0).mean()) / 2),
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
    mesh: Triangles, samples: int, seeing: tuple[Style, Sequence[Camera] | None, Masks | None], seed: int
) -> SurfaceSamples:
    style, cameras, masks = seeing
    if not cameras:
        return sample_surface(mesh, samples, seed=seed)
    seen = visible_points(mesh, cameras, masks=masks)
    if style == "diligent" or not len(seen):
        return seen
    # even over the surface: cubes of such a side hold about one point each of that many over the whole surface
    return thinned(seen, float(np.sqrt(mesh.areas.sum() / samples)))


def _mean(gaps: Gaps, lengths: StyleLengths) -> float:
    if lengths.cap is None:
        return float(gaps.distances.mean())
    near = gaps.distances[gaps.distances <= lengths.cap]
    if not len(near):
        raise MeshError(
            f"all of {len(gaps.distances)} points are farther than the cap of {lengths.cap:g} from the other surface: "
            "the meshes do not lie in the same place; align them (sim3), or raise the cap"
        )
    return float(near.mean())


def _score(there: Gaps, back: Gaps, limit: float) -> ThresholdScore:
    precision, recall = (float((gaps.distances <= limit).mean()) for gaps in (there, back))
    total = precision + recall
    f_score = 2 * precision * recall / total if total > 0 else 0.0
    return ThresholdScore(threshold=limit, precision=precision, recall=recall, f_score=f_score)
