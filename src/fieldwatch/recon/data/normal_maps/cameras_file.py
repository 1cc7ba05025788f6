"""`cameras_sphere.npz`: projection matrices of the views, and the scale matrix that defines the unit sphere."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray

from fieldwatch.files import ArrayFileError, read_npz, read_npz_headers
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.geometry import Camera

_KEY = re.compile(r"(world|scale)_mat_([0-9]{1,9})")
_MAX_SKEW_SHIFT = 0.05  # pixels: largest shift of the image edge by skew, which a pinhole camera cannot represent
_PIXEL_CENTER_OFFSET = 0.5  # from pixel centers at integers, as in the layout, to pixel centers at +0.5


class Projection(NamedTuple):
    """Decomposition of a 3x4 projection matrix into `K [R | t]`, up to a factor."""

    K: Float64[np.ndarray, "3 3"]
    camera_from_world: Float64[np.ndarray, "4 4"]


def decompose(projection: Float64[np.ndarray, "3 4"]) -> Projection:
    """Decompose a projection matrix by RQ into upper triangular `K` with positive diagonal and rotation `R`.

    `K` is normalized to `K[2, 2] = 1`. The sign of a projection matrix is arbitrary; it is chosen so that the
    determinant of `R` is 1 (Hartley and Zisserman, Multiple View Geometry, 6.2.4).

    Raises:
        NormalMapError: if the left 3x3 part is singular or not finite.
    """
    left = projection[:, :3]
    # The determinant scales with the cube of the entries, so the threshold must be relative.
    if not np.isfinite(projection).all() or abs(np.linalg.det(left)) <= 1e-12 * np.abs(left).max() ** 3:
        msg = f"singular or non-finite projection {projection.tolist()}: write K [R | t], with fx, fy > 0 in K"
        raise NormalMapError(msg)
    # A positive determinant of the left part makes R a proper rotation.
    projection = projection * np.sign(np.linalg.det(left))
    # numpy has no RQ decomposition. RQ of A from the QR of (flip A)^T: A = (flip R' flip)(flip Q').
    flip = np.eye(3)[::-1]
    lower, upper = np.linalg.qr((flip @ projection[:, :3]).T)
    intrinsics = flip @ upper.T @ flip
    rotation = flip @ lower.T
    # RQ is unique only up to the signs of the diagonal of K.
    signs = np.diag(np.sign(np.diag(intrinsics)))
    intrinsics = intrinsics @ signs
    rotation = signs @ rotation
    pose = np.eye(4)
    pose[:3, :3] = rotation
    pose[:3, 3] = np.linalg.solve(intrinsics, projection[:, 3])
    return Projection(intrinsics / intrinsics[2, 2], pose)


class CamerasFile:
    """The matrices of a `cameras_sphere.npz`.

    Raises:
        NormalMapError: if the file is missing, unreadable, has no `world_mat_<i>`, or its views have different scale
            matrices.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        matrices = _load(path)
        self.world = {
            int(match[2]): matrix
            for key, matrix in matrices.items()
            if (match := _KEY.fullmatch(key)) and match[1] == "world"
        }
        self.world_from_unit = self._scale(matrices)

    def camera(self, index: int, name: str, size: tuple[int, int]) -> Camera:
        """Return the camera of a view in the unit sphere frame; `size` is (height, width) in pixels."""
        try:
            projection = decompose((self.world[index] @ self.world_from_unit)[:3])
        except NormalMapError as error:
            msg = f"{self.path}, view {index}: {error}"
            raise NormalMapError(msg) from error
        (fx, skew, cx), (_, fy, cy), _ = projection.K.tolist()
        edge_shift = abs(skew) * max(cy, size[0] - cy) / fy
        if edge_shift > _MAX_SKEW_SHIFT:
            msg = (
                f"{self.path}, view {index}: the matrix has a skew of {skew:.4g} (the image edge moves by "
                f"{edge_shift:.3g} pixels), as if R were not a rotation: write K [R | t] with orthonormal R"
            )
            raise NormalMapError(msg)
        pose = torch.from_numpy(np.linalg.inv(projection.camera_from_world))
        # Pixel centers are at integers in the layout, but at +0.5 in `Camera`.
        lens = {"fx": fx, "fy": fy, "cx": cx + _PIXEL_CENTER_OFFSET, "cy": cy + _PIXEL_CENTER_OFFSET}
        return Camera(name=name, height=size[0], width=size[1], **lens, world_from_camera=pose)

    def _scale(self, matrices: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the common scale matrix of all views; without any, the cameras are already in the unit frame."""
        scales = {i: matrices[f"scale_mat_{i}"] for i in self.world if f"scale_mat_{i}" in matrices}
        if not scales:
            return np.eye(4)
        first = scales[min(scales)]
        # The tolerance allows for rounding in the files.
        different = [
            i for i in self.world if i not in scales or not np.allclose(scales[i], first, rtol=1e-6, atol=1e-9)
        ]
        if different:
            msg = (
                f"{self.path}: scale_mat of views {sorted(different)[:8]} is missing or differs from that of view "
                f"{min(scales)}: write the same scale_mat for every view"
            )
            raise NormalMapError(msg)
        return first


def camera_matrices(
    camera: Camera, world_from_unit: Float64[np.ndarray, "4 4"]
) -> tuple[Float64[np.ndarray, "4 4"], Float64[np.ndarray, "4 4"]]:
    """Return `world_mat` and `scale_mat` of a camera given in the unit sphere frame."""
    intrinsics = np.eye(4)
    intrinsics[:3, :3] = [
        [camera.fx, 0, camera.cx - _PIXEL_CENTER_OFFSET],
        [0, camera.fy, camera.cy - _PIXEL_CENTER_OFFSET],
        [0, 0, 1],
    ]
    camera_from_unit = np.linalg.inv(camera.world_from_camera.detach().cpu().double().numpy())
    return intrinsics @ camera_from_unit @ np.linalg.inv(world_from_unit), world_from_unit


def _load(path: Path) -> dict[str, NDArray[np.float64]]:
    if not path.is_file():
        msg = f"{path} does not exist: pass a folder in the layout of DiLiGenT-MV that contains its cameras file"
        raise NormalMapError(msg)
    try:
        headers = read_npz_headers(path)
        arrays = read_npz(
            path, [key for key, header in headers.items() if _KEY.fullmatch(key) and header.shape == (4, 4)]
        )
    except (ArrayFileError, OSError) as error:
        msg = f"{path} cannot be read as npz ({error}): write it with numpy.savez(path, world_mat_0=..., ...)"
        raise NormalMapError(msg) from error
    # Files of NeuS-style datasets also contain inverse matrices, which the pattern of keys ignores.
    matrices = {key: matrix.astype(np.float64) for key, matrix in arrays.items() if matrix.dtype.kind in "fiu"}
    for key, header in headers.items():
        if _KEY.fullmatch(key) and (key not in matrices or not np.isfinite(matrices[key]).all()):
            msg = f"{path}: {key} must be a finite 4x4 matrix, got shape {header.shape} of {header.dtype}"
            raise NormalMapError(msg)
    if not any(key.startswith("world") for key in matrices):
        msg = f"{path} contains {sorted(headers)[:8]}: expected 4x4 world_mat_<i> and scale_mat_<i> for every view"
        raise NormalMapError(msg)
    return matrices
