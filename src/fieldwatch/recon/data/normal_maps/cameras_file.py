"""`cameras_sphere.npz`: projections of the world, and the scale that brings the object into the unit sphere."""

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
_SKEW = 0.05  # pixels by which a skew may move the edge of the picture before no pinhole camera stands for it
_HALF = 0.5  # from pixel centres at whole numbers, as in the layout, to centres at +0.5


class Projection(NamedTuple):
    """A 3x4 projection taken apart: `K [R | t]`, up to a factor."""

    K: Float64[np.ndarray, "3 3"]
    camera_from_world: Float64[np.ndarray, "4 4"]


def decompose(projection: Float64[np.ndarray, "3 4"]) -> Projection:
    """Take a projection apart by RQ: `K` upper triangular with a positive diagonal and `K[2, 2] = 1`, `R` a rotation.

    The sign of a projection means nothing; it is chosen so that the determinant of `R` is 1 (Hartley and Zisserman,
    Multiple View Geometry, 6.2.4).

    Raises:
        NormalMapError: the left 3x3 part is singular or not finite.
    """
    left = projection[:, :3]
    if not np.isfinite(projection).all() or abs(np.linalg.det(left)) <= 1e-12 * np.abs(left).max() ** 3:
        msg = f"a projection {projection.tolist()} that is singular or not finite: write K [R | t], K with fx, fy > 0"
        raise NormalMapError(msg)
    projection = projection * np.sign(np.linalg.det(left))
    # RQ of A from the QR of A turned upside down: A = (flip R' flip)(flip Q')
    flip = np.eye(3)[::-1]
    lower, upper = np.linalg.qr((flip @ projection[:, :3]).T)
    intrinsics = flip @ upper.T @ flip
    rotation = flip @ lower.T
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
        NormalMapError: missing, unreadable, without `world_mat_<i>`, or with different scales for different views.
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
        """Return one camera in the frame of the unit sphere; `size` is (height, width)."""
        try:
            parts = decompose((self.world[index] @ self.world_from_unit)[:3])
        except NormalMapError as error:
            msg = f"{self.path}, view {index}: {error}"
            raise NormalMapError(msg) from error
        (fx, skew, cx), (_, fy, cy), _ = parts.K.tolist()
        moved = abs(skew) * max(cy, size[0] - cy) / fy
        if moved > _SKEW:
            msg = (
                f"{self.path}, view {index}: its matrix has a skew of {skew:.4g} (the edge of the picture moves by "
                f"{moved:.3g} pixels), as from a rotation that is none: write K [R | t] with R orthonormal"
            )
            raise NormalMapError(msg)
        pose = torch.from_numpy(np.linalg.inv(parts.camera_from_world))
        lens = {"fx": fx, "fy": fy, "cx": cx + _HALF, "cy": cy + _HALF}
        return Camera(name=name, height=size[0], width=size[1], **lens, world_from_camera=pose)

    def _scale(self, matrices: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the scale matrix that all views share; without any, the cameras are in the unit frame already."""
        found = {i: matrices[f"scale_mat_{i}"] for i in self.world if f"scale_mat_{i}" in matrices}
        if not found:
            return np.eye(4)
        first = found[min(found)]
        different = [i for i in self.world if i not in found or not np.allclose(found[i], first, rtol=1e-6, atol=1e-9)]
        if different:
            msg = (
                f"{self.path}: scale_mat of views {sorted(different)[:8]} is missing or differs from that of view "
                f"{min(found)}: one object needs one scale_mat; write the same for every view"
            )
            raise NormalMapError(msg)
        return first


def camera_matrices(
    camera: Camera, world_from_unit: Float64[np.ndarray, "4 4"]
) -> tuple[Float64[np.ndarray, "4 4"], Float64[np.ndarray, "4 4"]]:
    """Return `world_mat` and `scale_mat` of a camera that stands in the frame of the unit sphere."""
    intrinsics = np.eye(4)
    intrinsics[:3, :3] = [[camera.fx, 0, camera.cx - _HALF], [0, camera.fy, camera.cy - _HALF], [0, 0, 1]]
    camera_from_unit = np.linalg.inv(camera.world_from_camera.detach().cpu().double().numpy())
    return intrinsics @ camera_from_unit @ np.linalg.inv(world_from_unit), world_from_unit


def _load(path: Path) -> dict[str, NDArray[np.float64]]:
    if not path.is_file():
        msg = f"{path} does not exist: give the folder of a set in the layout of DiLiGenT-MV, with its cameras file"
        raise NormalMapError(msg)
    try:
        headers = read_npz_headers(path)
        found = read_npz(
            path, [key for key, header in headers.items() if _KEY.fullmatch(key) and header.shape == (4, 4)]
        )
    except (ArrayFileError, OSError) as error:
        msg = f"{path} cannot be read as npz ({error}): write it with numpy.savez(path, world_mat_0=..., ...)"
        raise NormalMapError(msg) from error
    matrices = {key: matrix.astype(np.float64) for key, matrix in found.items() if matrix.dtype.kind in "fiu"}
    for key, header in headers.items():
        if _KEY.fullmatch(key) and (key not in matrices or not np.isfinite(matrices[key]).all()):
            msg = f"{path}: {key} has shape {header.shape} of {header.dtype} or is not finite: write 4x4 finite numbers"
            raise NormalMapError(msg)
    if not any(key.startswith("world") for key in matrices):
        msg = f"{path} holds {sorted(headers)[:8]}: it needs world_mat_<i> and scale_mat_<i>, 4x4, for every view"
        raise NormalMapError(msg)
    return matrices
