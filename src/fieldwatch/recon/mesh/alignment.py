"""Alignment of a mesh with the ground truth by a similarity: principal axes first, then ICP."""

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
"""Alignment methods: "none"; "sim3" from any pose and scale; "icp" from a pose that is nearly right."""

_SAMPLES = 2000  # points per surface for ICP
_FEW_SAMPLES = 500  # points per surface to rank initial poses
_CANDIDATES = 4  # initial poses that are refined for some steps
_EQUAL_SPREADS = 0.12
"""Relative difference of two principal variances below which the rotation about the third axis is ambiguous."""
_AXIS_STEPS = 12  # rotations to try about such an axis
_MAX_STEPS = 80
_MIN_STEP = 1e-11  # convergence threshold of a step, as a fraction of the size of the ground truth


def moved(mesh: Triangles, change: Similarity) -> Triangles:
    """Apply a similarity to a mesh."""
    return replace(mesh, vertices=change.apply(torch.from_numpy(mesh.vertices)).numpy())


def align_mesh(
    mesh: Triangles, truth: Triangles, *, method: AlignMethod = "sim3", keep: float = 0.9, seed: int = 0
) -> Similarity:
    """Return the similarity that aligns a mesh with the ground truth.

    "sim3" starts from the centroids, principal axes and sizes of the surfaces (exact integrals over the triangles), in
    every proper order and direction of the axes, and refines the best few. "icp" starts from the current pose. Both
    then run trimmed ICP (Chetverikov et al., The trimmed iterative closest point algorithm, ICPR 2002) with nearest
    points in both directions, which keeps the scale from collapsing. A step is a linearized point-to-plane step (Chen &
    Medioni 1992) with a scale or, if that does not reduce the cost, the closed-form point-to-point step
    (:func:`fieldwatch.recon.geometry.align_points`).

    Args:
        mesh: mesh to align.
        truth: ground truth surface.
        method: alignment method; "none" returns the identity.
        keep: fraction of the pairs to use, nearest first; the others may have no counterpart in the other surface.
        seed: random seed of the sampled points.

    Raises:
        MeshError: a mesh has no area.
    """
    if method == "none":
        return _similarity(1.0, np.eye(3), np.zeros(3))
    if method == "icp":
        return _AlignmentProblem.of(mesh, truth, _SAMPLES, keep, seed).refine(
            _similarity(1.0, np.eye(3), np.zeros(3)), _MAX_STEPS
        )
    # Few samples suffice to rank the initial poses; only the best one is refined with all samples.
    coarse = _AlignmentProblem.of(mesh, truth, _FEW_SAMPLES, keep, seed)
    candidates = sorted(_initial_poses(mesh, truth), key=coarse.rough_cost)[:_CANDIDATES]
    refined = sorted((coarse.refine(start, 15) for start in candidates), key=coarse.cost)
    return _AlignmentProblem.of(mesh, truth, _SAMPLES, keep, seed).refine(refined[0], _MAX_STEPS)


def _similarity(scale: float, rotation: np.ndarray, translation: np.ndarray) -> Similarity:
    return Similarity(scale=scale, rotation=torch.from_numpy(rotation), translation=torch.from_numpy(translation))


def _moments(mesh: Triangles) -> tuple[np.ndarray, np.ndarray]:
    """Return centroid and covariance of the surface, as exact integrals over its triangles."""
    share = mesh.areas / mesh.areas.sum()
    means = mesh.corners.mean(1)
    center = share @ means
    offsets = mesh.corners - center
    middles = means - center
    # Second moment of a triangle: (sum of the outer products of the corners + 9 times that of the centroid) / 12.
    spread = np.einsum("m,mci,mcj->ij", share, offsets, offsets) + 9 * np.einsum("m,mi,mj->ij", share, middles, middles)
    return center, spread / 12


def _initial_poses(mesh: Triangles, truth: Triangles) -> list[Similarity]:
    """Return the similarities that match centroids, sizes and principal axes."""
    center, spread = _moments(mesh)
    target_center, target_spread = _moments(truth)
    sizes, axes = np.linalg.eigh(spread)
    target_sizes, target_axes = np.linalg.eigh(target_spread)
    # Variances scale with the square of the size.
    scale = float(np.sqrt(target_sizes.sum() / sizes.sum()))
    rotations = [target_axes @ rotation @ axes.T for rotation in _axis_turns(target_sizes)]
    # Permutations and signs of the axes include reflections: keep proper rotations only.
    rotations = [rotation for rotation in rotations if np.linalg.det(rotation) > 0]
    return [_similarity(scale, rotation, target_center - scale * rotation @ center) for rotation in rotations]


def _axis_turns(sizes: Float64[np.ndarray, "3"]) -> list[np.ndarray]:
    """Return the orders and directions of the principal axes.

    If two variances are nearly equal, rotations about the third axis are added.
    """
    signed = [
        np.diag(signs) @ np.eye(3)[list(order)]
        for order in itertools.permutations(range(3))
        for signs in itertools.product((1.0, -1.0), repeat=3)
    ]
    rotations = list(signed)
    # eigh sorts ascending: axes 0 and 1, or 1 and 2, may have nearly equal variances.
    for axis, (low, high) in ((2, (0, 1)), (0, (1, 2))):
        if sizes[high] - sizes[low] < _EQUAL_SPREADS * sizes[high]:
            for step in range(1, _AXIS_STEPS):
                about = Rotation.from_rotvec(2 * np.pi * step / _AXIS_STEPS * np.eye(3)[axis]).as_matrix()
                rotations += [about @ rotation for rotation in signed]
    return rotations


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pairs:
    """Pairs of points on the transformed mesh and the ground truth, with the normals of the searched surface."""

    points: np.ndarray
    targets: np.ndarray
    normals: np.ndarray

    @property
    def cost(self) -> float:
        return float(np.square(self.points - self.targets).sum(1).mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class _AlignmentProblem:
    """Two surfaces with sampled points, and the distance between them under a similarity."""

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
            truth_search=SurfaceSearch.kept_for(truth),
            mesh_points=sample_surface(mesh, count, seed=seed),
            truth_points=sample_surface(truth, count, seed=seed + 1),
            keep=keep,
        )

    def rough_cost(self, change: Similarity) -> float:
        """Return the trimmed mean distance between the samples in both directions: cheap, to rank poses."""
        points = change.apply(torch.from_numpy(self.mesh_points.points)).numpy()
        to_truth = KDTree(self.truth_points.points).query(points)[0]
        to_mesh = KDTree(points).query(self.truth_points.points)[0]
        return float(
            sum(np.sort(distances)[: int(self.keep * len(distances))].mean() for distances in (to_truth, to_mesh))
        )

    def cost(self, change: Similarity) -> float:
        """Return the trimmed mean squared distance to the surfaces in both directions."""
        return self.pairs(change).cost

    def pairs(self, change: Similarity) -> _Pairs:
        """Return the nearest points in both directions, trimmed, in the coordinates of the ground truth."""
        inverse = change.inverse()
        points = change.apply(torch.from_numpy(self.mesh_points.points)).numpy()
        on_truth = self.truth_search.closest(points)
        # Search in the coordinates of the mesh, where its search structure was built.
        on_mesh = self.mesh_search.closest(inverse.apply(torch.from_numpy(self.truth_points.points)).numpy())
        mesh_points = change.apply(torch.from_numpy(on_mesh.points)).numpy()
        # Trimming: keep only the closest pairs, separately for each direction.
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
        """Refine a similarity until it converges."""
        size = float(np.ptp(self.truth.vertices, axis=0).max())
        pairs = self.pairs(change)
        for _ in range(steps):
            better = None
            # Point-to-plane converges faster; point-to-point is the fallback if it does not reduce the cost.
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
    """Return the small rotation, translation and scale that minimize the distances of the points to tangent planes."""
    center = pairs.targets.mean(0)
    points = pairs.points - center
    rows = np.concatenate(
        [np.cross(points, pairs.normals), pairs.normals, np.einsum("ij,ij->i", points, pairs.normals)[:, None]], axis=1
    )
    offsets = np.einsum("ij,ij->i", pairs.targets - pairs.points, pairs.normals)
    size = np.sqrt(np.square(points).sum(1).mean())
    units = np.array([1 / size] * 3 + [1.0] * 3 + [1 / size])  # scales all unknowns to lengths
    # Truncate small singular values: symmetric shapes leave some motions undetermined.
    solution = np.linalg.lstsq(rows * units, offsets, rcond=1e-6)[0] * units
    rotation = Rotation.from_rotvec(solution[:3]).as_matrix()
    # The unknown is log(scale), clipped because the linearization is valid near 0 only.
    scale = float(np.exp(np.clip(solution[6], -0.5, 0.5)))
    return _similarity(scale, rotation, center + solution[3:6] - scale * rotation @ center)


def _point_step(pairs: _Pairs) -> Similarity:
    """Return the similarity that minimizes the distances between paired points."""
    return align_points(torch.from_numpy(pairs.points), torch.from_numpy(pairs.targets))


def _after(second: Similarity, first: Similarity) -> Similarity:
    """Compose two similarities."""
    # Projected to the nearest rotation: products of many matrices drift.
    left, _, right = torch.linalg.svd(second.rotation @ first.rotation)
    return Similarity(
        scale=second.scale * first.scale, rotation=left @ right, translation=second.apply(first.translation)
    )
