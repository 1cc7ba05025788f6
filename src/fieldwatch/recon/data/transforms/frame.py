"""Lens and pose of one frame of a transforms*.json."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data.transforms.error import TransformsError
from fieldwatch.recon.geometry import BROWN, LENS_MODELS, Lens, LensError, rigid

Values = Mapping[str, Any]

_ROUND = 1e-2  # largest deviation from orthogonality; some files round to a few digits
_AXES = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))  # OpenGL axes (y up, z backward) to OpenCV


def pose_of(values: Values, where: str) -> Float[Tensor, "4 4"]:
    """Convert a frame's `transform_matrix` from OpenGL axes to `world_from_camera` in OpenCV axes.

    A uniform scale is removed from the rotation; the position keeps it.

    Raises:
        TransformsError: if the matrix is missing, not finite, or not a rotation up to scale.
    """
    try:
        matrix = torch.tensor(values["transform_matrix"], dtype=torch.float64)
    except (KeyError, TypeError, ValueError) as error:
        msg = (
            f"{where}: transform_matrix is missing or not a matrix of numbers ({error!r}): write the 4 x 4 pose of "
            "every frame"
        )
        raise TransformsError(msg) from error
    if matrix.shape not in {(4, 4), (3, 4)} or not bool(torch.isfinite(matrix).all()):
        msg = (
            f"{where}: transform_matrix must be 4 x 4 (or 3 x 4) and finite, got shape {tuple(matrix.shape)}: write "
            "the camera-to-world pose of every frame"
        )
        raise TransformsError(msg)
    linear_part = matrix[:3, :3]
    # For s * R the squared entries sum to 3 s^2, since each of the three columns of R has length 1.
    scale = float(linear_part.square().sum() / 3) ** 0.5
    rotation = linear_part / max(scale, 1e-12)
    off = float((rotation @ rotation.T - torch.eye(3, dtype=torch.float64)).abs().max())
    if off > _ROUND or float(torch.linalg.det(rotation)) < 0:
        msg = (
            f"{where}: the left 3 x 3 part of transform_matrix is not a rotation (deviation {off:.3g}, determinant "
            f"{float(torch.linalg.det(rotation)):.3g}): write camera-to-world matrices without mirroring or shear"
        )
        raise TransformsError(msg)
    left, _, right = torch.linalg.svd(rotation)  # projects onto the nearest rotation, which removes rounding errors
    return rigid(left @ right @ _AXES, matrix[:3, 3])


def lens_of(values: Values, size: tuple[int, int], where: str) -> Lens:
    """Build the lens described by the fields of a frame and of its file.

    Known fields: w, h, fl_x, fl_y, cx, cy, camera_angle_x, camera_angle_y, k1 .. k6, p1, p2, camera_model, is_fisheye.

    Args:
        values: fields of the file, overridden by those of the frame.
        size: (width, height) of the photo in pixels, the default for files without `w` and `h`.
        where: file and frame, for error messages.

    Raises:
        TransformsError: if there is no focal length, or the camera model cannot be undistorted to a pinhole camera.
    """
    # Values may be strings or null in hand-written files.
    try:
        width = int(values.get("w", size[0]))
        height = int(values.get("h", size[1]))
        fx = _focal(values, "x", width)
        # Many files state only one axis; pixels are square then.
        fy = _focal(values, "y", height) or fx
        fx = fx or fy
        principal_point = float(values.get("cx", width / 2)), float(values.get("cy", height / 2))
        distortion = {
            name: float(values.get(name, 0) or 0) for name in ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2")
        }
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{where}: intrinsics are not numeric ({error}): write w, h, fl_x, fl_y, cx, cy as numbers"
        raise TransformsError(msg) from error
    if not fx:
        msg = f"{where} has no focal length: add fl_x (pixels) or camera_angle_x (radians, greater than 0)"
        raise TransformsError(msg)
    model = _model(values, distortion)
    if model == BROWN:
        lens = lens_of({**values, **dict.fromkeys(distortion, 0.0)}, size, where)
        return lens.with_distortion(BROWN, {name: value for name, value in distortion.items() if value})
    if model not in LENS_MODELS:
        msg = (
            f"{where}: unsupported camera_model {model!r}: use PINHOLE, OPENCV or OPENCV_FISHEYE, or undistort the "
            "photos"
        )
        raise TransformsError(msg)
    parameters = {"fx": fx, "fy": fy, "f": fx, "cx": principal_point[0], "cy": principal_point[1], **distortion}
    try:
        return Lens.of(model, width, height, [parameters.get(name, 0.0) for name in LENS_MODELS[model][1]])
    except LensError as error:
        msg = f"{where}: {error}"
        raise TransformsError(msg) from error


def _focal(values: Values, axis: str, pixels: int) -> float:
    """Return the focal length in pixels; 0 if the file states none."""
    if values.get(f"fl_{axis}"):
        return float(values[f"fl_{axis}"])
    angle = float(values.get(f"camera_angle_{axis}") or 0)
    # Fields of view of 180 degrees or more have no pinhole focal length.
    return 0.5 * pixels / math.tan(0.5 * angle) if 0 < angle < math.pi else 0.0


def _model(values: Values, distortion: Mapping[str, float]) -> str:
    """Return the stated camera model; instead of PINHOLE and OPENCV, the simplest model with the nonzero parameters."""
    stated = str(values.get("camera_model") or ("OPENCV_FISHEYE" if values.get("is_fisheye") else "OPENCV"))
    if stated in {"OPENCV", "PINHOLE"}:
        if not any(distortion.values()):
            return "PINHOLE"
        if any(distortion[name] for name in ("k5", "k6")):
            return "FULL_OPENCV"
        # Nerfstudio's OPENCV has k3 and k4 as coefficients of r^6 and r^8; in OpenCV k4 is part of a denominator.
        return BROWN if distortion["k4"] else "FULL_OPENCV" if distortion["k3"] else "OPENCV"
    return stated
