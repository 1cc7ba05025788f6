"""Read the normal map of a single view, as photometric stereo gives it."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fieldwatch.recon.data.normal_maps.assembly import ViewFiles, read_maps
from fieldwatch.recon.data.normal_maps.axes import Choices
from fieldwatch.recon.data.normal_maps.diligent_mv import lens_file, read_lens
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.layout import view_of_maps
from fieldwatch.recon.data.normal_maps.model import NormalView
from fieldwatch.recon.data.normal_maps.settle import OPENGL, encoding_note, settled
from fieldwatch.recon.geometry import Camera

SINGLE_NORMALS = ("normal_map.png", "normal_map.exr", "normal_map.npy")
"""Names of the normal map of a single view, beside mask.png and K.txt."""
_MASK = "mask.png"
_CENTER = 0.5  # pixel centers of K.txt are at whole numbers


class SingleView(NamedTuple):
    """A view at the origin of its own camera axes, and notes about its reading."""

    view: NormalView
    notes: tuple[str, ...]


def is_single_view(folder: Path) -> bool:
    """Return whether a folder holds the normal map of a single view."""
    return folder.is_dir() and any((folder / name).is_file() for name in SINGLE_NORMALS)


def read_single_view(
    folder: Path, choices: Choices, lens: tuple[float, float, float, float] | None = None
) -> SingleView:
    """Read `normal_map.png` (or .exr, .npy), `mask.png` if there is one, and `K.txt` (layout of Cao et al., ECCV 2022).

    Args:
        folder: folder of the view.
        choices: conventions that the user states; others are found from the data. Pixel centers are assumed at whole
            numbers, because one view does not tell.
        lens: fx, fy, cx, cy in pixels; None reads `K.txt`.

    Raises:
        NormalMapError: if there is no normal map or no lens, or sizes differ.
    """
    path = next((folder / name for name in SINGLE_NORMALS if (folder / name).is_file()), None)
    if path is None:
        msg = f"{folder} has no normal map of a single view: expected {' or '.join(SINGLE_NORMALS)}"
        raise NormalMapError(msg)
    lens_path = lens_file(folder)
    if lens is None and lens_path is None:
        msg = (
            f"{folder} has no K.txt, and depth from normals needs the lens: write fx 0 cx / 0 fy cy / 0 0 1 in three "
            "lines into K.txt, or give --lens FX FY CX CY"
        )
        raise NormalMapError(msg)
    mask_path = folder / _MASK
    content, mask = read_maps(ViewFiles(normals=path, mask=mask_path if mask_path.is_file() else None))
    assert content is not None  # noqa: S101  a normal map was given
    if mask.shape != content.not_finite.shape:
        msg = f"{mask_path} and {path} differ in size: write one of them again"
        raise NormalMapError(msg)
    if lens is None:
        assert lens_path is not None  # noqa: S101  refused above
        matrix = read_lens(lens_path)
    else:
        matrix = np.array([[lens[0], 0, lens[2]], [0, lens[1], lens[3]], [0, 0, 1]])
    camera = Camera(
        name=path.stem,
        height=int(mask.shape[0]),
        width=int(mask.shape[1]),
        fx=float(matrix[0, 0]),
        fy=float(matrix[1, 1]),
        cx=float(matrix[0, 2]) + _CENTER,
        cy=float(matrix[1, 2]) + _CENTER,
        world_from_camera=torch.eye(4, dtype=torch.float64),
    )
    notes = [encoding_note([content])]
    result = settled([view_of_maps(camera, content, mask)], choices, OPENGL, notes, posed=False)
    return SingleView(result.views[0], tuple(notes))
