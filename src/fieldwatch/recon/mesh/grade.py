"""The grade of a mesh: up to 100 points, with a reason for each deduction."""

from dataclasses import dataclass

from fieldwatch.recon.mesh.quality import MeshQuality

_GRADE_WORDS = ((90, "EXCELLENT"), (75, "GOOD"), (60, "FAIR"), (0, "POOR"))
_CLOSEDNESS = 30  # points for a watertight mesh without boundary edges


@dataclass(frozen=True, kw_only=True)
class MeshGrade:
    """The grade of a mesh.

    Attributes:
        score: points from 0 to 100.
        word: EXCELLENT from 90 points, GOOD from 75, FAIR from 60, else POOR.
        reasons: deductions with figures and remedies, largest first; empty at 100 points.
    """

    score: float
    word: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Criterion:
    points: int
    met: bool
    reason: str


def grade_mesh(quality: MeshQuality, *, should_close: bool = True) -> MeshGrade:
    """Grade a mesh.

    A mesh gets 20 points each for being watertight, a mean aspect ratio above 0.6 and a mean normal consistency above
    0.8, and 10 points each for no boundary edges, no degenerate triangles, correct winding (no flipped normals, and not
    closed with all faces inward) and an edge length uniformity above 0.7.

    Args:
        quality: measured quality.
        should_close: False for a surface that is open by nature (seen from one side, or cut by a box). The 30 points
            for closedness are then excluded and the others scaled to 100.
    """
    # Excluded criteria reduce the total, so the others scale up to 100 points.
    criteria = [*(_closedness(quality) if should_close else ()), *_triangles(quality), *_directions(quality)]
    total = sum(criterion.points for criterion in criteria)
    score = 100 * sum(criterion.points for criterion in criteria if criterion.met) / total
    unmet = sorted((criterion for criterion in criteria if not criterion.met), key=lambda criterion: -criterion.points)
    word = next(word for least_score, word in _GRADE_WORDS if score >= least_score)
    reasons = tuple(f"-{100 * criterion.points / total:.0f}: {criterion.reason}" for criterion in unmet)
    return MeshGrade(score=score, word=word, reasons=reasons)


def _closedness(quality: MeshQuality) -> list[_Criterion]:
    rim = quality.n_boundary_edges
    crowded = quality.n_non_manifold_edges
    holes = f"not watertight: {rim} edges have one face, {crowded} have three or more"
    return [
        _Criterion(20, quality.is_watertight, holes),
        _Criterion(10, rim == 0, f"{rim} of {quality.n_edges} edges are boundary edges: fill the holes, or trim less"),
    ]


def _triangles(quality: MeshQuality) -> list[_Criterion]:
    slivers = quality.n_degenerate_triangles
    ratio = quality.avg_aspect_ratio
    evenness = quality.edge_length_uniformity
    return [
        _Criterion(20, ratio > 0.6, f"triangles are thin: mean aspect ratio {ratio:.3f}, expected above 0.6"),
        _Criterion(10, slivers == 0, f"{slivers} of {quality.n_faces} triangles are degenerate: collapse their edges"),
        _Criterion(10, evenness > 0.7, f"edges differ in length: uniformity {evenness:.3f}, expected above 0.7"),
    ]


def _directions(quality: MeshQuality) -> list[_Criterion]:
    flipped = quality.n_flipped_normals
    agreement = quality.avg_normal_consistency
    turned = f"{flipped} of {quality.n_faces} faces are wound against their neighbors: flip them"
    # Without flipped faces, the criterion can only fail on a closed mesh that faces inward.
    if flipped == 0:
        turned = "it faces inward: flip all faces"
    return [
        _Criterion(
            20, agreement > 0.8, f"the surface is rough: mean normal consistency {agreement:.3f}, expected above 0.8"
        ),
        _Criterion(10, flipped == 0 and quality.faces_outward is not False, turned),
    ]
