"""Polycam's raw export: keyframes/images and keyframes/cameras, one JSON per photo.

Each JSON has width, height, fx, fy, cx, cy in pixels, and the rows t_00 to t_23 of the matrix from camera coordinates
(ARKit's axes: right, up, back) to the world. The optimized poses of `corrected_cameras`, with the undistorted photos of
`corrected_images`, are used where they exist.
"""

import json
from pathlib import Path
from typing import Any

import torch

from fieldwatch.recon.data.exports.axes import number, pose_of
from fieldwatch.recon.data.exports.error import ExportError
from fieldwatch.recon.data.exports.model import CameraExport, ExportedCamera
from fieldwatch.recon.geometry import Lens, LensError

PROGRAM = "Polycam"
_PARTS = (("corrected_cameras", "corrected_images"), ("cameras", "images"))
_REMEDY = "export it again from Polycam as raw data"


def keyframes_of(folder: Path) -> Path | None:
    """Return the folder of the key frames; None if there is none."""
    for place in (folder / "keyframes", folder):
        if any(any((place / cameras).glob("*.json")) and (place / images).is_dir() for cameras, images in _PARTS):
            return place
    return None


def read_polycam(folder: Path) -> CameraExport:
    """Read the cameras of a raw export.

    Raises:
        ExportError: if a file of a camera is damaged.
    """
    place = keyframes_of(folder)
    if place is None:
        raise ExportError(f"{folder} has no keyframes/cameras with JSON files: {_REMEDY}")
    parts = [pair for pair in _PARTS if any((place / pair[0]).glob("*.json")) and (place / pair[1]).is_dir()]
    cameras, images = parts[0]
    files = sorted((place / cameras).glob("*.json"))
    uncorrected = cameras == _PARTS[1][0]
    notes = ("the poses are those of the phone (no corrected_cameras): they drift in long captures",) * uncorrected
    return CameraExport(
        program=PROGRAM,
        file=place / cameras,
        cameras=tuple(_camera(file) for file in files),
        photos=place / images,
        notes=notes,
    )


def _camera(file: Path) -> ExportedCamera:
    try:
        values: Any = json.loads(file.read_bytes())
    except ValueError as error:
        raise ExportError(f"{file} is not JSON ({error}): {_REMEDY}") from error
    if not isinstance(values, dict):
        raise ExportError(f"{file}: expected the parameters of a camera, got {type(values).__name__}: {_REMEDY}")
    rows = [[number(values.get(f"t_{i}{j}"), str(file), f"t_{i}{j}") for j in range(4)] for i in range(3)]
    matrix = torch.tensor(rows, dtype=torch.float64)
    names = ("width", "height", "fx", "fy", "cx", "cy")
    width, height, *intrinsics = (number(values.get(name), str(file), name) for name in names)
    try:
        lens = Lens.of("PINHOLE", int(width), int(height), intrinsics)
    except LensError as error:
        raise ExportError(f"{file}: {error}; export the raw data again") from error
    return ExportedCamera(
        name=file.stem,
        lens=lambda _: lens,
        world_from_camera=pose_of(matrix[:, :3], matrix[:, 3].tolist(), str(file), opengl=True),
    )
