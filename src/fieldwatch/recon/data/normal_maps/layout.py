"""Shared parts of all normal map layouts: folder names, construction of views and conversion of axes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float32
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.map_files import NormalFile
from fieldwatch.recon.data.normal_maps.model import NormalView
from fieldwatch.recon.geometry import Camera

MESH = "mesh_Gt.ply"
NORMAL_FOLDERS = (
    "normal_camera_space_GT",
    "normal_camera_space_sdmunips",
    "normal_camera_space",
    "normals",
    "normal",
    "normal_world_space_GT",
    "normal_world_space_sdmunips",
    "normal_world_space",
)
MASK_FOLDERS = ("mask", "masks")

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
            f"name it with --{what}"
        )
        raise NormalMapError(msg)
    if len(existing) > 1:
        notes.append(f"{what} are read from {existing[0].name}; ignored: {', '.join(p.name for p in existing[1:])}")
    return existing[0]


def view_of_maps(
    camera: Camera,
    normals: NormalFile | None,
    mask: Bool[Tensor, "h w"],
    depth: Float32[Tensor, "h w"] | None = None,
) -> NormalView:
    """Build a view from the contents of files, with normals scaled to length 1 and depth masked.

    Args:
        camera: camera of the view.
        normals: contents of the normal map, whose axes are kept; None if there is none.
        mask: silhouette.
        depth: depth along the optical axis.
    """
    # Depth outside the mask belongs to the background or was extrapolated by the integration.
    known_depth = None if depth is None else torch.where(mask, depth, torch.zeros_like(depth))
    if normals is None:
        return NormalView(
            name=camera.name, camera=camera, normals=torch.zeros(*mask.shape, 3), mask=mask, depth=known_depth
        )
    length = normals.values.double().norm(dim=-1)
    known = length > _MIN_NORMAL_LENGTH
    valid = known & mask
    # Measured before normalization, for the check of unit lengths; 8 bits round the length by up to 0.7 %.
    off = float(((length[valid] - 1).abs() > _UNIT_TOLERANCE).double().mean()) if bool(valid.any()) else 0.0
    safe_length = torch.where(known, length, torch.ones_like(length))
    unit_normals = torch.where(known[..., None], normals.values.double() / safe_length[..., None], torch.zeros(()))
    return NormalView(
        name=camera.name,
        camera=camera,
        normals=unit_normals.float(),
        mask=mask,
        depth=known_depth,
        off_unit=off,
        not_finite=float((normals.not_finite & mask).sum() / mask.sum().clamp_min(1)),
        bits=normals.bits,
    )


def known_pixels(normals: NormalFile) -> Bool[Tensor, "h w"]:
    """Return the pixels of a file that have a normal."""
    return normals.values.norm(dim=-1) > _MIN_NORMAL_LENGTH


def mask_holes(mask: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """Return the pixels enclosed by a mask but not part of it."""
    labels, count = cast("tuple[NDArray[np.int32], int]", ndimage.label(~mask.numpy()))
    enclosed = np.ones(count + 1, np.bool_)
    # Label 0 is the mask itself.
    enclosed[0] = False
    for edge in (labels[0], labels[-1], labels[:, 0], labels[:, -1]):
        enclosed[edge] = False
    return torch.from_numpy(enclosed[labels])


def holes_filled(view: NormalView, notes: list[str]) -> NormalView:
    """Add those pixels in holes of the mask that have normals to the mask."""
    holes = mask_holes(view.mask) & view.known
    if not bool(holes.any()):
        return view
    notes.append(f"view {view.name}: {int(holes.sum())} pixels in holes of the mask were filled")
    return replace(view, mask=view.mask | holes)
