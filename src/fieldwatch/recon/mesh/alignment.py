"""The similarity that brings a mesh onto another: by centres, axes and sizes, then by nearest points."""

import itertools
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64
from scipy.spatial import KDTree
from scipy.spatial.transform import Rotation

from fieldwatch.recon.geometry import Similarity, align_points
from fieldwatch.recon.mesh.closest import SurfaceSearch
from fieldwatch.recon.mesh.sampling import SurfaceSamples, sample_surface
from fieldwatch.recon.mesh.triangles import Triangles

AlignMethod = Literal["none", "sim3", "icp"]
"""How a mesh is brought onto the truth: not at all; from any pose and size; from a pose that is nearly right."""

_SAMPLES = 2000  # of each surface, for the steps of ICP
_FEW_SAMPLES = 500  # of each surface, to compare poses to begin with
_CANDIDATES = 4  # poses to begin with that are followed for some steps
_EQUAL_SPREADS = (
    0.12  # two principal spreads that differ by less than this share leave the turn about the third axis open
)
_AXIS_STEPS = 12  # tried about such an axis
_MAX_STEPS = 80
_MIN_STEP = 1e-11  # a step that moves nothing by more than this share of the truth's size is the last one


def moved(mesh: Triangles, change: Similarity) -> Triangles:
    """Return a mesh in other coordinates."""
    return replace(mesh, vertices=change.apply(torch.from_numpy(mesh.vertices)).numpy())


def align_mesh(
    mesh: Triangles, truth: Triangles, *, method: AlignMethod = "sim3", keep: float = 0.9, seed: int = 0
) -> Similarity:
    """Return the similarity that brings a mesh onto the truth.

    "sim3" begins with the centroids, principal axes and sizes of the surfaces (integrals over the triangles, exact),
    in every proper order and direction of the axes; the best few are followed. "icp" begins where the mesh is. Both go
    on by nearest points in both directions, which keeps the scale from shrinking to nothing, trimmed (Chetverikov et
    al., The trimmed iterative closest point algorithm, ICPR 2002): linearised point-to-plane steps (Chen & Medioni
    1992) with a scale, and where such a step does not help, the closed-form point-to-point step
    (:func:`fieldwatch.recon.geometry.align_points`).

    Args:
        mesh: with faces.
        truth: with faces.
        method: "none" returns the identity.
        keep: share of the pairs, the nearest ones, that count: the others have no partner in the other surface.
        seed: of the points drawn.

    Raises:
        MeshError: a mesh has no area.
    """
    if method == "none":
        return _similarity(1.0, np.eye(3), np.zeros(3))
    if method == "icp":
        return _AlignmentProblem.of(mesh, truth, _SAMPLES, keep, seed).refine(
            _similarity(1.0, np.eye(3), np.zeros(3)), _MAX_STEPS
        )
    # Few samples rank the many initial poses; only the winner is refined with all.
    coarse = _AlignmentProblem.of(mesh, truth, _FEW_SAMPLES, keep, seed)
    candidates = sorted(_initial_poses(mesh, truth), key=coarse.rough_cost)[:_CANDIDATES]
    refined = sorted((coarse.refine(start, 15) for start in candidates), key=coarse.cost)
    return _AlignmentProblem.of(mesh, truth, _SAMPLES, keep, seed).refine(refined[0], _MAX_STEPS)


def _similarity(scale: float, rotation: np.ndarray, translation: np.ndarray) -> Similarity:
    return Similarity(scale=scale, rotation=torch.from_numpy(rotation), translation=torch.from_numpy(translation))


def _moments(mesh: Triangles) -> tuple[np.ndarray, np.ndarray]:
    """Centroid and covariance of the surface, by exact integrals over its triangles."""
    share = mesh.areas / mesh.areas.sum()
    means = mesh.corners.mean(1)
    centre = share @ means
    offsets = mesh.corners - centre
    middles = means - centre
    # the second moment of a triangle: (sum of the corners' products + 9 times the middle's) / 12
    spread = np.einsum("m,mci,mcj->ij", share, offsets, offsets) + 9 * np.einsum("m,mi,mj->ij", share, middles, middles)
    return centre, spread / 12


def _initial_poses(mesh: Triangles, truth: Triangles) -> list[Similarity]:
    """Poses to begin with."""
    centre, spread = _moments(mesh)
    target_centre, target_spread = _moments(truth)
    sizes, axes = np.linalg.eigh(spread)
    target_sizes, target_axes = np.linalg.eigh(target_spread)
    scale = float(np.sqrt(target_sizes.sum() / sizes.sum()))
    rotations = [target_axes @ rotation @ axes.T for rotation in _axis_turns(target_sizes)]
    # Permutations and signs of axes include reflections: keep proper rotations.
    rotations = [rotation for rotation in rotations if np.linalg.det(rotation) > 0]
    return [_similarity(scale, rotation, target_centre - scale * rotation @ centre) for rotation in rotations]


def _axis_turns(sizes: Float64[np.ndarray, "3"]) -> list[np.ndarray]:
    """Orders and directions of the principal axes; where two spreads are alike, turns about the third as well."""
    signed = [
        np.diag(signs) @ np.eye(3)[list(order)]
        for order in itertools.permutations(range(3))
        for signs in itertools.product((1.0, -1.0), repeat=3)
    ]
    rotations = list(signed)
    for axis, (low, high) in ((2, (0, 1)), (0, (1, 2))):
        if sizes[high] - sizes[low] < _EQUAL_SPREADS * sizes[high]:
            for step in range(1, _AXIS_STEPS):
                about = Rotation.from_rotvec(2 * np.pi * step / _AXIS_STEPS * np.eye(3)[axis]).as_matrix()
                rotations += [about @ rotation for rotation in signed]
    return rotations


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pairs:
    """Points of the moved mesh and of the truth, and the normals of the surface that was searched."""

    points: np.ndarray
    targets: np.ndarray
    normals: np.ndarray

    @property
    def cost(self) -> float:
        return float(np.square(self.points - self.targets).sum(1).mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class _AlignmentProblem:
    """Two surfaces, points of each, and how far the one is from the other under a similarity."""

    mesh: Triangles
    truth: Triangles
    mesh_search: SurfaceSearch
    truth_search: SurfaceSearch
    mesh_points: SurfaceSamples
    truth_points: SurfaceSamples
    keep: float

    @classmethod
    def of(cls, mesh: Triangles, truth: Triangles, count: int, keep: float, seed: int) -> "_AlignmentProblem":
        return cls(
            mesh=mesh,
            truth=truth,
            mesh_search=SurfaceSearch(mesh),
            truth_search=SurfaceSearch(truth),
            mesh_points=sample_surface(mesh, count, seed=seed),
            truth_points=sample_surface(truth, count, seed=seed + 1),
            keep=keep,
        )

    def rough_cost(self, change: Similarity) -> float:
        """Trimmed mean distance of the points, in both directions: cheap, to sort poses."""
        points = change.apply(torch.from_numpy(self.mesh_points.points)).numpy()
        to_truth = KDTree(self.truth_points.points).query(points)[0]
        to_mesh = KDTree(points).query(self.truth_points.points)[0]
        return float(
            sum(np.sort(distances)[: int(self.keep * len(distances))].mean() for distances in (to_truth, to_mesh))
        )

    def cost(self, change: Similarity) -> float:
        """Trimmed mean squared distance of the nearest points, in both directions."""
        return self.pairs(change).cost

    def pairs(self, change: Similarity) -> _Pairs:
        """Nearest points in both directions, in the truth's coordinates, without those farthest apart."""
        inverse = change.inverse()
        points = change.apply(torch.from_numpy(self.mesh_points.points)).numpy()
        on_truth = self.truth_search.closest(points)
        on_mesh = self.mesh_search.closest(inverse.apply(torch.from_numpy(self.truth_points.points)).numpy())
        mesh_points = change.apply(torch.from_numpy(on_mesh.points)).numpy()
        # Trimming: only the closest share of the pairs counts, in each direction.
        nearest = [
            np.argsort(distances, kind="stable")[: max(int(self.keep * len(distances)), 3)]
            for distances in (on_truth.distances, on_mesh.distances)
        ]
        mesh_normals = self.mesh.normals[on_mesh.faces] @ change.rotation.numpy().T
        return _Pairs(
            points=np.concatenate([points[nearest[0]], mesh_points[nearest[1]]]),
            targets=np.concatenate([on_truth.points[nearest[0]], self.truth_points.points[nearest[1]]]),
            normals=np.concatenate([self.truth.normals[on_truth.faces[nearest[0]]], mesh_normals[nearest[1]]]),
        )

    def refine(self, change: Similarity, steps: int) -> Similarity:
        """Improve a similarity until it stands still."""
        size = float(np.ptp(self.truth.vertices, axis=0).max())
        pairs = self.pairs(change)
        for _ in range(steps):
            better = None
            # Point-to-plane converges faster; point-to-point is the safe fallback.
            for step in (_plane_step, _point_step):
                candidate = _after(step(pairs), change)
                result = self.pairs(candidate) if candidate.scale > 0 else None
                if result is not None and result.cost < pairs.cost:
                    better = candidate, result
                    break
            if better is None:
                break
            shift = np.abs(better[1].points.mean(0) - pairs.points.mean(0)).max() + np.sqrt(pairs.cost)
            converged = shift <= _MIN_STEP * size or better[1].cost > (1 - 1e-6) * pairs.cost
            change, pairs = better
            if converged:
                break
        return change


def _plane_step(pairs: _Pairs) -> Similarity:
    """The small turn, shift and growth after which the points lie nearest to the planes of their partners."""
    centre = pairs.targets.mean(0)
    points = pairs.points - centre
    rows = np.concatenate(
        [np.cross(points, pairs.normals), pairs.normals, np.einsum("ij,ij->i", points, pairs.normals)[:, None]], axis=1
    )
    offsets = np.einsum("ij,ij->i", pairs.targets - pairs.points, pairs.normals)
    size = np.sqrt(np.square(points).sum(1).mean())
    units = np.array([1 / size] * 3 + [1.0] * 3 + [1 / size])  # all unknowns as lengths
    # Truncated singular values: symmetric shapes leave some motions undetermined.
    solution = np.linalg.lstsq(rows * units, offsets, rcond=1e-6)[0] * units
    rotation = Rotation.from_rotvec(solution[:3]).as_matrix()
    # The unknown is log(scale); clipped, as the linearization holds near 0 only.
    scale = float(np.exp(np.clip(solution[6], -0.5, 0.5)))
    return _similarity(scale, rotation, centre + solution[3:6] - scale * rotation @ centre)


def _point_step(pairs: _Pairs) -> Similarity:
    """The similarity that brings the points nearest to their partners."""
    return align_points(torch.from_numpy(pairs.points), torch.from_numpy(pairs.targets))


def _after(second: Similarity, first: Similarity) -> Similarity:
    """One similarity after another."""
    left, _, right = torch.linalg.svd(second.rotation @ first.rotation)  # products of many drift from rotations
    return Similarity(
        scale=second.scale * first.scale, rotation=left @ right, translation=second.apply(first.translation)
    )
