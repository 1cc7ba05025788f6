"""Depth from normals: bilateral normal integration (Cao, Santo, Shi, Okura and Matsushita, ECCV 2022)."""

from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy.typing import NDArray
from scipy import ndimage, sparse
from scipy.sparse.linalg import cg
from scipy.special import expit
from torch import Tensor

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.geometry import Camera

Array = NDArray[np.float64]

_MIN_COSINE = 0.1
"""Least cosine between a normal and the ray. A pixel at the rim asks for a step without bound; with this one a sphere
of 200 pixels comes out within 0.06 % (root mean square) instead of 0.28 %."""
_COARSEST_SIZE = 16  # pixels: smaller maps are solved from nothing
_MIN_LENGTH = 0.5
"""A shorter normal is none."""


def integrate_normals(  # noqa: PLR0913 - the settings of the paper
    normals: Float[Tensor, "h w 3"],
    mask: Bool[Tensor, "h w"],
    camera: Camera,
    *,
    sharpness: float = 2.0,
    rounds: int = 150,
    tolerance: float = 1e-4,
    solver_tolerance: float = 1e-3,
    solver_steps: int = 5000,
    median: float = 1.0,
) -> Float64[Tensor, "h w"]:
    """Return the depth along the optical axis of the surface that normals in perspective show; 0 where nobody knows.

    With the depth's logarithm `s` and the ray `d` of a pixel (`d_z = 1`), a surface fulfils, across,
    `fx (n . d) (s_right - s) = -n_x` and the same to the left, and with `fy`, `n_y` up and down (eq. 6 to 9 of the
    paper). On either side of a pixel one of the two may be wrong, where the surface ends; a weight
    `sigmoid(sharpness (left^2 - right^2))`, of the two left-hand sides, decides which (eq. 15). Weighted least squares
    are solved by conjugate gradients, and weights and depth take turns until the energy stands still. Other than in
    the paper, a normal seen nearly edge on counts as one at a cosine of 0.1, and smaller maps are solved first, whose
    weights the larger ones start from: an edge grows by a pixel a round, so that a long one took a hundred rounds.

    Depth has one unknown factor for every connected part of the mask; each part gets the same median.

    Args:
        normals: in the camera's OpenCV axes, of length 1; 0 where there is none.
        mask: where to integrate.
        camera: of the same size.
        sharpness: `k` of the paper: how soon a jump counts as an edge; 0 treats the surface as smooth.
        rounds: of weights and depth, at most.
        tolerance: relative change of the energy at which they end.
        solver_tolerance: relative residual of the conjugate gradients.
        solver_steps: of the conjugate gradients per round, at most.
        median: depth of every part.

    Raises:
        NormalMapError: other sizes, no pixel with a normal in the mask, normals that face away, a setting that makes
            no sense, or equations that are not solved within the steps.
    """
    if min(sharpness, tolerance, solver_tolerance) < 0 or min(rounds, solver_steps) < 1 or median <= 0:
        msg = (
            f"integration with sharpness {sharpness}, tolerances {tolerance} and {solver_tolerance}, {rounds} rounds "
            f"of {solver_steps} steps and a median of {median}: wanted 0 or more, at least 1 round and step, and a "
            "median above 0"
        )
        raise NormalMapError(msg)
    vectors, inside = _checked(normals, mask, camera)
    settings = _Settings(sharpness, rounds, tolerance, solver_tolerance, solver_steps)
    depth = np.where(inside, np.exp(_solve_level(vectors, inside, camera, settings).logs), 0.0)
    return torch.from_numpy(_with_median(depth, inside, median))


class _Settings(NamedTuple):
    sharpness: float
    rounds: int
    tolerance: float
    solver_tolerance: float
    solver_steps: int


class _LevelSolution(NamedTuple):
    """The logarithm of the depth, 0 outside the mask; the weights of the four equations."""

    logs: Array
    weights: Array


def _solve_level(vectors: Array, inside: NDArray[np.bool_], camera: Camera, settings: _Settings) -> _LevelSolution:
    """Solve at one size, from the solution at half of it: an edge, which grows by a pixel a round, is there at once."""
    system = _System(vectors, inside, camera, settings.sharpness)
    logs = np.zeros(system.size)
    weights = system.weights(logs)
    if max(inside.shape) > _COARSEST_SIZE:
        coarse = _solve_level(*_halved(vectors, inside, camera), settings)
        logs = _doubled(coarse.logs)[: inside.shape[0], : inside.shape[1]][inside]
        # Both depth and edge weights are carried over; weights alone take a round per pixel to spread.
        weights = [_doubled(weight)[: inside.shape[0], : inside.shape[1]][inside] for weight in coarse.weights]
    energy = np.inf
    for _ in range(settings.rounds):
        logs = system.solve(logs, weights, settings.solver_tolerance, settings.solver_steps)
        previous_energy = energy
        energy = system.energy(logs, weights)
        # Stop when the weighted energy changes by less than the tolerance.
        if np.isfinite(previous_energy) and abs(energy - previous_energy) <= settings.tolerance * previous_energy:
            break
        weights = system.weights(logs)
    maps = np.zeros((5, *inside.shape))
    # Neutral weights outside the mask, for pixels that only the finer level has.
    maps[1:] = 0.5
    maps[:, inside] = np.stack([logs, *weights])
    return _LevelSolution(maps[0], maps[1:])


def _halved(vectors: Array, inside: NDArray[np.bool_], camera: Camera) -> tuple[Array, NDArray[np.bool_], Camera]:
    """Return the mean normal of every square of four pixels, and the camera of half the size, rounded up."""
    height, width = (-(-side // 2) for side in inside.shape)
    padding = ((0, 2 * height - inside.shape[0]), (0, 2 * width - inside.shape[1]), (0, 0))
    padded = np.pad(vectors * inside[..., None], padding)
    sums = padded.reshape(height, 2, width, 2, 3).sum((1, 3))
    length = np.sqrt(np.square(sums).sum(-1, keepdims=True))
    known = length[..., 0] > _MIN_LENGTH
    lens = {"fx": camera.fx / 2, "fy": camera.fy / 2, "cx": camera.cx / 2, "cy": camera.cy / 2}
    half = replace(camera, height=height, width=width, **lens)
    return np.where(known[..., None], sums / np.maximum(length, _MIN_LENGTH), 0.0), known, half


def _doubled(values: Array) -> Array:
    return values.repeat(2, 0).repeat(2, 1)


def _checked(
    normals: Float[Tensor, "h w 3"], mask: Bool[Tensor, "h w"], camera: Camera
) -> tuple[Array, NDArray[np.bool_]]:
    """Return normals and the pixels to integrate."""
    if not normals.shape[:2] == mask.shape == (camera.height, camera.width):
        msg = (
            f"normals of {tuple(normals.shape[:2])}, a mask of {tuple(mask.shape)} and a camera of "
            f"{(camera.height, camera.width)} pixels (height, width): they must have one size"
        )
        raise NormalMapError(msg)
    vectors = normals.detach().cpu().double().numpy()
    inside = mask.cpu().numpy() & (np.square(vectors).sum(-1) > _MIN_LENGTH**2)
    if not inside.any():
        msg = f"camera {camera.name!r}: no pixel of the mask has a normal: nothing can be integrated; check the files"
        raise NormalMapError(msg)
    rays = camera.to("cpu", torch.float64).directions().numpy()
    # Mostly positive cosines mean OpenGL axes, not a wrong surface.
    away = float((np.einsum("ijk,ijk->ij", vectors, rays)[inside] > 0).mean())
    if away > 0.5:
        msg = (
            f"camera {camera.name!r}: {away:.0%} of the normals face away from it: give them in OpenCV axes (x right, "
            "y down, z forward), in which z < 0 faces the camera; OpenGL's turn y and z"
        )
        raise NormalMapError(msg)
    return vectors, inside


class _System:
    """The equations of all pixels: four each, one per neighbour."""

    def __init__(self, vectors: Array, inside: NDArray[np.bool_], camera: Camera, sharpness: float) -> None:
        self.size = int(inside.sum())
        self.sharpness = sharpness
        # Unknowns are numbered; a border of -1 spares bounds checks at the edges.
        numbers = np.full(np.add(inside.shape, 2), -1)
        numbers[1:-1, 1:-1][inside] = np.arange(self.size)
        rays = camera.to("cpu", torch.float64).directions().numpy()
        # Bounded away from 0: at grazing normals the equations would ask for infinite steps.
        cosine = np.minimum(np.einsum("ijk,ijk->ij", vectors, rays)[inside], -_MIN_COSINE)
        pixels = np.arange(self.size)
        self.rows: list[tuple[sparse.csr_array, Array]] = []
        for down, across in ((0, 1), (0, -1), (1, 0), (-1, 0)):
            shifted = numbers[1 + down : 1 + down + inside.shape[0], 1 + across : 1 + across + inside.shape[1]]
            neighbours = shifted[inside]
            has_neighbour = neighbours >= 0
            focal, component = (camera.fx, 0) if across else (camera.fy, 1)
            factor = (across + down) * focal * cosine[has_neighbour]
            entries = np.concatenate([factor, -factor])
            coordinates = (
                np.concatenate([pixels[has_neighbour]] * 2),
                np.concatenate([neighbours[has_neighbour], pixels[has_neighbour]]),
            )
            matrix = sparse.csr_array((entries, coordinates), shape=(self.size, self.size))
            self.rows.append((matrix, np.where(has_neighbour, -vectors[inside][:, component], 0.0)))

    def weights(self, logs: Array) -> list[Array]:
        """Return how far each of the four equations of a pixel is trusted; two that face each other share 1."""
        right, left, below, above = (np.square(matrix @ logs) for matrix, _ in self.rows)
        # Eq. 15: the side with the smaller residual is on the same surface.
        across = expit(self.sharpness * (left - right))
        down = expit(self.sharpness * (above - below))
        return [across, 1 - across, down, 1 - down]

    def solve(self, logs: Array, weights: list[Array], tolerance: float, steps: int) -> Array:
        """Solve the normal equations from where the last round ended, preconditioned by their diagonal."""
        matrix = sparse.csr_array((self.size, self.size))
        right_side = np.zeros(self.size)
        for (rows, values), weight in zip(self.rows, weights, strict=True):
            # Normal equations A^T W A of the weighted least squares.
            matrix = matrix + rows.T @ sparse.diags_array(weight) @ rows
            right_side += rows.T @ (weight * values)
        diagonal = matrix.diagonal()
        # a pixel without neighbours has no equation; it keeps its value
        # Jacobi preconditioner: the inverse diagonal.
        inverse = sparse.diags_array(1 / np.where(diagonal > 0, diagonal, 1.0))
        solution, status = cg(matrix, right_side, x0=logs, rtol=tolerance, maxiter=steps, M=inverse)
        if status:
            msg = (
                f"{self.size} depths were not found in {steps} steps of conjugate gradients to a relative residual of "
                f"{tolerance}: allow more solver_steps, a larger solver_tolerance, or integrate smaller maps"
            )
            raise NormalMapError(msg)
        return solution

    def energy(self, logs: Array, weights: list[Array]) -> float:
        """Return the weighted sum of squared errors."""
        errors = [rows @ logs - values for rows, values in self.rows]
        return float(sum(np.dot(weight, np.square(error)) for weight, error in zip(weights, errors, strict=True)))


def _with_median(depth: Array, inside: NDArray[np.bool_], median: float) -> Array:
    """Scale every connected part to one median."""
    # Depth is known up to a factor per connected part: the equations never cross a gap.
    labels, count = cast("tuple[NDArray[np.int32], int]", ndimage.label(inside))
    medians = np.asarray(ndimage.median(depth, labels, np.arange(count + 1)))
    medians[0] = 1.0
    return depth / medians[labels] * median
