"""Validated parts of a COLMAP model, built from the raw numbers of binary or text files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwatch.recon.data.colmap.error import ColmapError
from fieldwatch.recon.data.colmap.model import RegisteredImage, SparsePoints
from fieldwatch.recon.geometry import Lens, LensError, inverse_rigid, quaternion_to_matrix, rigid


def lens_of(path: Path, camera_id: int, model: str, size: tuple[int, int], parameters: Sequence[float]) -> Lens:
    """Build a lens; errors name the file and the camera.

    Raises:
        ColmapError: if the camera model is unknown or its parameters are invalid.
    """
    try:
        return Lens.of(model, *size, parameters)
    except LensError as error:
        msg = f"{path}, camera {camera_id}: {error}"
        raise ColmapError(msg) from error


def image_of(path: Path, image_id: int, name: str, camera_id: int, pose: Sequence[float]) -> RegisteredImage:
    """Build a registered photo from the quaternion (w, x, y, z) and translation of `camera_from_world`.

    Raises:
        ColmapError: if the pose is not finite or the quaternion has length 0.
    """
    # COLMAP stores poses in float64, and inverting them in float32 would lose digits.
    values = torch.tensor(list(pose), dtype=torch.float64)
    if not torch.isfinite(values).all() or float(values[:4].norm()) < 1e-6:
        msg = f"{path}, photo {name!r}: expected a finite pose with a nonzero quaternion, got {list(pose)}"
        raise ColmapError(msg)
    camera_from_world = rigid(quaternion_to_matrix(values[:4]), values[4:])
    return RegisteredImage(
        image_id=image_id, name=name, camera_id=camera_id, world_from_camera=inverse_rigid(camera_from_world)
    )


def points_of(  # noqa: PLR0913 - the columns of the file
    path: Path,
    *,
    positions: NDArray[np.float64],
    colors: NDArray[np.uint8],
    errors: NDArray[np.float64],
    track_points: NDArray[np.int64],
    track_images: NDArray[np.int64],
    ids: NDArray[np.int64],
) -> SparsePoints:
    """Build the sparse points. A model may have none.

    Raises:
        ColmapError: if a point is not finite.
    """
    # Non-finite points would otherwise fail later, in the neighbor search of the initialization.
    bad = np.flatnonzero(~np.isfinite(positions).all(1))
    if len(bad):
        msg = (
            f"{path}: {len(bad)} of {len(positions)} points are not finite, the first at index {bad[0]}: "
            f"{positions[bad[0]].tolist()}; export the model again, or remove these points"
        )
        raise ColmapError(msg)
    return SparsePoints(
        positions=torch.from_numpy(np.ascontiguousarray(positions)),
        colors=torch.from_numpy(np.ascontiguousarray(colors)),
        errors=torch.from_numpy(np.ascontiguousarray(errors)),
        track_points=torch.from_numpy(track_points),
        track_images=torch.from_numpy(track_images),
        ids=torch.from_numpy(ids),
    )
