"""Record3D's captures: an extracted .r3d archive (metadata, rgbd/), or an export (metadata.json, rgb/).

The metadata have the size (w, h), K column by column, poses as (qx, qy, qz, qw, x, y, z) from camera coordinates
(ARKit's axes: right, up, back) to the world, and in newer versions (fx, fy, cx, cy) of every frame. Photos are numbered
from 0.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fieldwatch.recon.data.exports.axes import number, pose_of
from fieldwatch.recon.data.exports.error import ExportError
from fieldwatch.recon.data.exports.model import CameraExport, ExportedCamera
from fieldwatch.recon.geometry import Lens, LensError, evenly_spaced, quaternion_to_matrix

PROGRAM = "Record3D"
MOST_FRAMES = 300
_METADATA = ("metadata.json", "metadata")
_PHOTOS = ("rgb", "rgbd", "RGB")
_LARGEST = 1 << 28
_REMEDY = "export the capture again"


def metadata_of(folder: Path) -> Path | None:
    """Return the file of the metadata; None if the folder is not a Record3D capture."""
    if not any((folder / name).is_dir() for name in _PHOTOS):
        return None
    for name in _METADATA:
        file = folder / name
        if file.is_file() and file.stat().st_size < _LARGEST and {"poses", "K"} <= set(_content(file)):
            return file
    return None


def read_record3d(folder: Path) -> CameraExport:
    """Read the cameras of a capture; of more than `MOST_FRAMES` frames, as many at equal distances.

    Raises:
        ExportError: if the metadata are damaged.
    """
    file = metadata_of(folder)
    if file is None:
        raise ExportError(f"{folder} has no metadata with poses and K: {_REMEDY}")
    content = _content(file)
    poses = content["poses"]
    if not isinstance(poses, list) or not poses:
        raise ExportError(f"{file} has no poses: record with camera tracking, and export the capture again")
    chosen = evenly_spaced(range(len(poses)), MOST_FRAMES)
    skipped = len(poses) - len(chosen)
    notes = (f"{len(chosen)} of {len(poses)} frames are used, at equal distances",) * bool(skipped)
    return CameraExport(
        program=PROGRAM,
        file=file,
        cameras=tuple(_camera(content, i, file) for i in chosen),
        photos=next(folder / name for name in _PHOTOS if (folder / name).is_dir()),
        notes=notes,
    )


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _camera(content: dict[str, Any], index: int, file: Path) -> ExportedCamera:
    where = f"{file}, frame {index}"
    pose = _numbers(content["poses"][index], 7, where, "pose")
    # (x, y, z, w) in the file.
    quaternion = torch.tensor([pose[3], *pose[:3]], dtype=torch.float64)
    if float(quaternion.norm()) < 1e-6:
        raise ExportError(f"{where}: expected a nonzero quaternion, got {pose[:4]}: {_REMEDY}")
    width, height = (int(number(content.get(side), where, side)) for side in ("w", "h"))
    try:
        lens = Lens.of("PINHOLE", width, height, _intrinsics(content, index, where))
    except LensError as error:
        raise ExportError(f"{where}: {error}; export the capture again") from error
    return ExportedCamera(
        name=str(index),
        lens=lambda _: lens,
        world_from_camera=pose_of(quaternion_to_matrix(quaternion), pose[4:], where, opengl=True),
    )


def _intrinsics(content: dict[str, Any], index: int, where: str) -> list[float]:
    """Return (fx, fy, cx, cy)."""
    each = content.get("perFrameIntrinsicCoeffs")
    if isinstance(each, list) and len(each) == len(content["poses"]):
        return _numbers(each[index], 4, where, "perFrameIntrinsicCoeffs")
    matrix = _numbers(content["K"], 9, where, "K")
    return [matrix[0], matrix[4], matrix[6], matrix[7]]


def _numbers(values: Sequence[Any], count: int, where: str, name: str) -> list[float]:
    if not isinstance(values, list) or len(values) != count:
        raise ExportError(f"{where}: expected {count} numbers in {name}, got {values!r}: {_REMEDY}")
    return [number(value, where, name) for value in values]
