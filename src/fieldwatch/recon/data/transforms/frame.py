"""One frame of a transforms*.json: its lens and its pose."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data.transforms.error import TransformsError
from fieldwatch.recon.geometry import LENS_MODELS, Lens, LensError, rigid

Values = Mapping[str, Any]

_ROUND = 1e-2  # how far a pose may be from a rotation; files round to six digits
_AXES = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))  # OpenGL's y up and z backward to OpenCV's


def pose_of(values: Values, where: str) -> Float[Tensor, "4 4"]:
    """Return `world_from_camera` in OpenCV axes of a frame's `transform_matrix`, whose axes are OpenGL's.

    A scale in the matrix is taken out of the rotation (the position keeps it).

    Raises:
        TransformsError: no matrix, or one that is not finite or does not turn.
    """
    try:
        matrix = torch.tensor(values["transform_matrix"], dtype=torch.float64)
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{where} has no transform_matrix of 4 x 4 numbers ({error!r}): write the pose of every frame there"
        raise TransformsError(msg) from error
    if matrix.shape not in {(4, 4), (3, 4)} or not bool(torch.isfinite(matrix).all()):
        msg = f"{where} has a transform_matrix of {tuple(matrix.shape)} that must be 4 x 4 (or 3 x 4) finite numbers"
        raise TransformsError(msg)
    linear_part = matrix[:3, :3]
    # Columns of a scaled rotation have squared lengths that add up to 3 s^2.
    scale = float(linear_part.square().sum() / 3) ** 0.5
    rotation = linear_part / max(scale, 1e-12)
    off = float((rotation @ rotation.T - torch.eye(3, dtype=torch.float64)).abs().max())
    if off > _ROUND or float(torch.linalg.det(rotation)) < 0:
        msg = (
            f"{where} has a transform_matrix whose left part is no rotation (off by {off:.3g}, determinant "
            f"{float(torch.linalg.det(rotation)):.3g}): write camera-to-world matrices, without mirroring or shear"
        )
        raise TransformsError(msg)
    left, _, right = torch.linalg.svd(rotation)  # the nearest rotation: rounding in the file is taken out
    return rigid(left @ right @ _AXES, matrix[:3, 3])


def lens_of(values: Values, size: tuple[int, int], where: str) -> Lens:
    """Return the lens that the fields of a frame and of its file describe; the frame's come first.

    Known fields: w, h, fl_x, fl_y, cx, cy, camera_angle_x, camera_angle_y, k1 .. k6, p1, p2, camera_model, is_fisheye.

    Args:
        values: the fields of the file, overlaid with the frame's.
        size: (width, height) of the photo, for files that do not state it.
        where: the frame, for errors.

    Raises:
        TransformsError: no focal length, or a model that a pinhole camera can not stand in for.
    """
    try:
        width = int(values.get("w", size[0]))
        height = int(values.get("h", size[1]))
        fx = _focal(values, "x", width)
        # Many files state one axis only: pixels are square then.
        fy = _focal(values, "y", height) or fx
        fx = fx or fy
        principal_point = float(values.get("cx", width / 2)), float(values.get("cy", height / 2))
        distortion = {
            name: float(values.get(name, 0) or 0) for name in ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2")
        }
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{where} has intrinsics that are no numbers ({error}): write w, h, fl_x, fl_y, cx, cy as numbers"
        raise TransformsError(msg) from error
    if not fx:
        msg = f"{where} states no focal length: it needs fl_x (pixels) or camera_angle_x (radians, above 0)"
        raise TransformsError(msg)
    model = _model(values, distortion)
    if model not in LENS_MODELS:
        msg = f"{where} states camera_model {model!r}: use PINHOLE, OPENCV or OPENCV_FISHEYE, or undistort the photos"
        raise TransformsError(msg)
    parameters = {"fx": fx, "fy": fy, "f": fx, "cx": principal_point[0], "cy": principal_point[1], **distortion}
    try:
        return Lens.of(model, width, height, [parameters.get(name, 0.0) for name in LENS_MODELS[model][1]])
    except LensError as error:
        msg = f"{where}: {error}"
        raise TransformsError(msg) from error


def _focal(values: Values, axis: str, pixels: int) -> float:
    """Focal length in pixels; 0 where none is stated."""
    if values.get(f"fl_{axis}"):
        return float(values[f"fl_{axis}"])
    angle = float(values.get(f"camera_angle_{axis}") or 0)
    return 0.5 * pixels / math.tan(0.5 * angle) if 0 < angle < math.pi else 0.0


def _model(values: Values, distortion: Mapping[str, float]) -> str:
    """Name of the model: the stated one, with more parameters where the file has more."""
    stated = str(values.get("camera_model") or ("OPENCV_FISHEYE" if values.get("is_fisheye") else "OPENCV"))
    if stated in {"OPENCV", "PINHOLE"}:
        if not any(distortion.values()):
            return "PINHOLE"
        return "FULL_OPENCV" if any(distortion[name] for name in ("k3", "k4", "k5", "k6")) else "OPENCV"
    return stated
