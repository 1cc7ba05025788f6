"""Poses and lenses from the numbers of an export."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data.exports.error import ExportError
from fieldwatch.recon.geometry import BROWN, Lens, LensError, quaternion_to_matrix, rigid

_LARGEST_DEVIATION = 1e-3  # from a rotation; files round to six digits and more
_OPENGL = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))  # axes right, up, back to OpenCV's
_TURNS = "xyz"


def pose_of(
    rotation: Float[Tensor, "3 3"], position: Sequence[float], where: str, *, opengl: bool
) -> Float[Tensor, "4 4"]:
    """Return `world_from_camera` in OpenCV axes.

    Args:
        rotation: from camera to world coordinates, float64.
        position: position of the camera in the world.
        where: file and photo, for errors.
        opengl: whether the camera's axes point right, up and back instead of right, down and forward.

    Raises:
        ExportError: if a number is not finite, or the matrix is not a rotation.
    """
    place = torch.tensor([float(value) for value in position], dtype=torch.float64)
    finite = bool(torch.isfinite(rotation).all() and torch.isfinite(place).all())
    deviation = float((rotation @ rotation.T - torch.eye(3, dtype=torch.float64)).abs().max()) if finite else 0.0
    if not finite or deviation > _LARGEST_DEVIATION or float(torch.linalg.det(rotation)) < 0:
        raise ExportError(
            f"{where}: expected a finite pose with a rotation, got {rotation.tolist()} at {place.tolist()}: export the "
            "cameras again"
        )
    left, _, right = torch.linalg.svd(rotation)  # the nearest rotation, without the rounding of the file
    turn = left @ right
    return rigid(turn @ _OPENGL if opengl else turn, place)


def turn_about(axis: str, degrees: float) -> Float[Tensor, "3 3"]:
    """Return the right-handed rotation about the x, y or z axis."""
    half = torch.deg2rad(torch.tensor(float(degrees), dtype=torch.float64)) / 2
    quaternion = torch.zeros(4, dtype=torch.float64)
    quaternion[0] = half.cos()
    quaternion[1 + _TURNS.index(axis)] = half.sin()
    return quaternion_to_matrix(quaternion)


def brown_lens(  # noqa: PLR0913 - the parameters of the model
    size: tuple[int, int],
    *,
    focal: tuple[float, float],
    center: tuple[float, float],
    radial: Sequence[float],
    tangential: tuple[float, float],
    skew: float = 0.0,
    where: str,
) -> Lens:
    """Return a lens with Brown's distortion, or a pinhole lens if all of its coefficients are 0.

    Args:
        size: (width, height) in pixels.
        focal: focal lengths in pixels.
        center: principal point in pixels from the corner of the image.
        radial: up to four coefficients, of r^2, r^4, r^6 and r^8.
        tangential: (p1, p2) as in OpenCV.
        skew: share of the distorted y that is added to x, in units of the horizontal focal length.
        where: file and photo, for errors.

    Raises:
        ExportError: if a number is not finite, or a focal length not positive.
    """
    names = {f"k{i + 1}": value for i, value in enumerate(radial)}
    names |= {"p1": tangential[0], "p2": tangential[1], "skew": skew}
    distortion = {name: value for name, value in names.items() if value}
    try:
        pinhole = Lens.of("PINHOLE", *size, [*focal, *center])
        return pinhole.with_distortion(BROWN, distortion) if distortion else pinhole
    except LensError as error:
        raise ExportError(f"{where}: {error}; align and export the cameras again") from error


def number(text: str | float | None, where: str, name: str) -> float:
    """Return a number of a file.

    Raises:
        ExportError: if it is missing or not a number.
    """
    try:
        return float(text if text is not None else "")
    except (TypeError, ValueError) as error:
        raise ExportError(f"{where}: expected a number for {name}, got {text!r}: export the cameras again") from error
