"""What all layouts of normal maps have in common: names of folders, views made of what files hold, axes."""

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

_MIN_AGREEMENT = 0.9  # share of pixels that must agree before the axes count as recognised
_MIN_NORMAL_LENGTH = 0.1  # a shorter vector in a file is a missing normal
_UNIT_TOLERANCE = 0.02


def subfolder(folder: Path, names: Sequence[str], what: str, notes: list[str]) -> Path:
    """Return the first of some folders that there is; others are told in `notes`.

    Raises:
        NormalMapError: there is none; the message says what was found.
    """
    existing = [folder / name for name in names if (folder / name).is_dir()]
    if not existing:
        entries = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else "no such folder"
        msg = (
            f"{folder} has no folder of {what} ({' or '.join(names)}; found: {entries}): name it so, or say which it is"
        )
        raise NormalMapError(msg)
    if len(existing) > 1:
        notes.append(f"{what} are read from {existing[0].name}, not from {', '.join(p.name for p in existing[1:])}")
    return existing[0]


def view_of_maps(
    camera: Camera,
    normals: Float32[Tensor, "h w 3"],
    mask: Bool[Tensor, "h w"],
    depth: Float32[Tensor, "h w"] | None = None,
) -> NormalView:
    """Make a view of what files hold: normals of length 1, depth within the mask; axes stay those of the file."""
    length = normals.double().norm(dim=-1)
    known = length > _MIN_NORMAL_LENGTH
    valid = known & mask
    off = float(((length[valid] - 1).abs() > _UNIT_TOLERANCE).double().mean()) if bool(valid.any()) else 0.0
    safe_length = torch.where(known, length, torch.ones_like(length))
    unit_normals = torch.where(known[..., None], normals.double() / safe_length[..., None], torch.zeros(())).float()
    known_depth = None if depth is None else torch.where(mask, depth, torch.zeros_like(depth))
    return NormalView(name=camera.name, camera=camera, normals=unit_normals, mask=mask, depth=known_depth, off_unit=off)


def in_opencv(views: list[NormalView], axes: Axes, source: Path, notes: list[str]) -> list[NormalView]:
    """Turn normals to OpenCV's axes; `auto` recognises those of the files by the sign of z, which faces the viewer.

    Raises:
        NormalMapError: z has both signs, so that the axes cannot be recognised.
    """
    if axes == "auto":
        z = torch.cat([view.normals[view.valid][:, 2] for view in views])
        # Visible surfaces face the camera: the sign of z tells which way the axis points.
        towards = float((z > 0).double().mean()) if len(z) else 0.5
        if _MIN_AGREEMENT > towards > 1 - _MIN_AGREEMENT:
            msg = (
                f"{source}: z is positive in {towards:.0%} of the normals in the masks, so their axes cannot be "
                "recognised: say axes='opengl' (z to the viewer) or 'opencv', and check that they are in camera space"
            )
            raise NormalMapError(msg)
        axes = "opengl" if towards > 0.5 else "opencv"
        notes.append(f"the normals are in {axes} axes: z is positive in {towards:.1%} of them")
    if axes == "opencv":
        return views
    # x right, y up, z back: y and z turn
    turn = torch.tensor([1.0, -1.0, -1.0])
    return [replace(view, normals=torch.where(view.normals == 0, view.normals, view.normals * turn)) for view in views]


def mask_holes(mask: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """Return what a mask encloses without covering it."""
    return torch.from_numpy(ndimage.binary_fill_holes(mask.numpy())) & ~mask


def holes_filled(view: NormalView, notes: list[str]) -> NormalView:
    """Add holes of the mask to it where there are normals in them."""
    holes = mask_holes(view.mask) & view.known
    if not bool(holes.any()):
        return view
    notes.append(f"view {view.name}: {int(holes.sum())} pixels in holes of the mask were added to it")
    return replace(view, mask=view.mask | holes)
