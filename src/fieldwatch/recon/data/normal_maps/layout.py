"""Shared parts of all normal map layouts: folder names, construction of views and conversion of axes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float32
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.model import NormalView
from fieldwatch.recon.geometry import Camera

Axes = Literal["opengl", "opencv", "auto"]

MESH = "mesh_Gt.ply"
NORMAL_FOLDERS = (
    "normal_camera_space_GT",
    "normal_camera_space_sdmunips",
    "normal_camera_space",
    "normals",
    "normal",
)
MASK_FOLDERS = ("mask", "masks")

_MIN_AGREEMENT = 0.9  # fraction of pixels that must agree for the axes to be detected
_MIN_NORMAL_LENGTH = 0.1  # shorter vectors in a file are missing normals
_UNIT_TOLERANCE = 0.02


def subfolder(folder: Path, names: Sequence[str], what: str, notes: list[str]) -> Path:
    """Return the first existing folder of `names`; other existing ones are mentioned in `notes`.

    Raises:
        NormalMapError: if none exists. The message lists the existing folders.
    """
    existing = [folder / name for name in names if (folder / name).is_dir()]
    if not existing:
        entries = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else "no such folder"
        msg = (
            f"{folder} has no folder of {what}: expected {' or '.join(names)}, found: {entries}; rename the folder, or "
            "specify its name"
        )
        raise NormalMapError(msg)
    if len(existing) > 1:
        notes.append(f"{what} are read from {existing[0].name}; ignored: {', '.join(p.name for p in existing[1:])}")
    return existing[0]


def view_of_maps(
    camera: Camera,
    normals: Float32[Tensor, "h w 3"],
    mask: Bool[Tensor, "h w"],
    depth: Float32[Tensor, "h w"] | None = None,
) -> NormalView:
    """Build a view from the contents of files, with normals scaled to length 1 and depth masked; axes are kept."""
    length = normals.double().norm(dim=-1)
    known = length > _MIN_NORMAL_LENGTH
    valid = known & mask
    # Measured before normalization, for the check of unit lengths.
    off = float(((length[valid] - 1).abs() > _UNIT_TOLERANCE).double().mean()) if bool(valid.any()) else 0.0
    safe_length = torch.where(known, length, torch.ones_like(length))
    unit_normals = torch.where(known[..., None], normals.double() / safe_length[..., None], torch.zeros(())).float()
    # Depth outside the mask belongs to the background or was extrapolated by the integration.
    known_depth = None if depth is None else torch.where(mask, depth, torch.zeros_like(depth))
    return NormalView(name=camera.name, camera=camera, normals=unit_normals, mask=mask, depth=known_depth, off_unit=off)


def in_opencv(views: list[NormalView], axes: Axes, source: Path, notes: list[str]) -> list[NormalView]:
    """Convert normals to OpenCV axes; `auto` detects the axes of the files by the sign of z.

    Raises:
        NormalMapError: if z has both signs, so the axes cannot be detected.
    """
    if axes == "auto":
        z = torch.cat([view.normals[view.valid][:, 2] for view in views])
        # Visible surfaces face the camera, so the sign of z reveals the direction of the axis.
        toward = float((z > 0).double().mean()) if len(z) else 0.5
        if _MIN_AGREEMENT > toward > 1 - _MIN_AGREEMENT:
            msg = (
                f"{source}: cannot detect the axes of the normals: z is positive in {toward:.0%} of them; set "
                "axes='opengl' (z toward the viewer) or axes='opencv', and check that they are in camera space"
            )
            raise NormalMapError(msg)
        axes = "opengl" if toward > 0.5 else "opencv"
        notes.append(f"detected {axes} axes: z is positive in {toward:.1%} of the normals")
    if axes == "opencv":
        return views
    # OpenGL (x right, y up, z backward) to OpenCV (x right, y down, z forward). Zeros are kept to avoid -0.0.
    turn = torch.tensor([1.0, -1.0, -1.0])
    return [replace(view, normals=torch.where(view.normals == 0, view.normals, view.normals * turn)) for view in views]


def mask_holes(mask: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """Return the pixels enclosed by a mask but not part of it."""
    return torch.from_numpy(ndimage.binary_fill_holes(mask.numpy())) & ~mask


def holes_filled(view: NormalView, notes: list[str]) -> NormalView:
    """Add those pixels in holes of the mask that have normals to the mask."""
    holes = mask_holes(view.mask) & view.known
    if not bool(holes.any()):
        return view
    notes.append(f"view {view.name}: {int(holes.sum())} pixels in holes of the mask were filled")
    return replace(view, mask=view.mask | holes)
