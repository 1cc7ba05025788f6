"""Read DiLiGenT-MV's own layout, and normal maps without poses."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from fieldwatch.recon.data.normal_maps.assembly import (
    REACH,
    ReadOptions,
    ViewFiles,
    assembled,
    read_maps,
    silhouettes_of,
)
from fieldwatch.recon.data.normal_maps.axes import AXES, Channels, Choices, Convention, PixelCenter, Space
from fieldwatch.recon.data.normal_maps.captures import excluded_names, files_by_name
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.folder import shortened_numbers, stated_axes
from fieldwatch.recon.data.normal_maps.layout import NORMAL_FOLDERS, known_pixels, subfolder, view_of_maps
from fieldwatch.recon.data.normal_maps.map_files import (
    MASK_SUFFIXES,
    NORMAL_SUFFIXES,
    NormalFile,
    load_normal_file,
    read_mask_file,
)
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.data.normal_maps.settle import OPENGL, encoding_note, settled
from fieldwatch.recon.geometry import Camera

CALIBRATION = "Calib_Results.mat"
LENS_FILES = ("K.txt", "intrinsics.txt")
"""Files of a 3x3 matrix of intrinsics, for maps without poses and for a single view."""
_VIEW = re.compile(r"view_?(\d+)", re.IGNORECASE)
_NORMAL_NAMES = ("Normal_gt.mat", "normal_gt.mat", "Normal_gt.png", "normal_gt.png", "normal.png", "normal.exr")
_HDF5 = b"MATLAB 7.3"
_UNPOSED_DISTANCE = 4.0  # radii of the sphere, if no mask tells more


def view_folders(folder: Path) -> dict[int, Path]:
    """Return the folders view_01, view_02, ... by number."""
    if not folder.is_dir():
        return {}
    matches = [(_VIEW.fullmatch(path.name), path) for path in sorted(folder.iterdir()) if path.is_dir()]
    return {int(match[1]): path for match, path in matches if match}


def lens_file(folder: Path) -> Path | None:
    """Return the file of intrinsics in a folder; None if there is none."""
    return next((folder / name for name in LENS_FILES if (folder / name).is_file()), None)


def read_diligent_mv(  # noqa: PLR0913 - independent options of the folder layout
    folder: Path | str,
    *,
    normals: str | None = None,
    masks: str | None = None,
    axes: str | None = None,
    space: Space | None = None,
    channels: Channels | None = None,
    pixel_center: PixelCenter | None = None,
    ratio: float = REACH,
    exclude: Sequence[str | int] = (),
    fill_holes: bool = False,
) -> NormalSet:
    """Read an object of DiLiGenT-MV as it is published: `Calib_Results.mat` and `view_01/`, `view_02/`, ...

    The calibration holds `KK` and, for each view, `Rc_<i>` and `Tc_<i>` (Bouguet's toolbox: OpenCV axes, pixel centers
    at whole numbers). A view holds `mask.png` and `Normal_gt.mat` or another normal map, named by `normals`. The unit
    sphere is found from the masks, as by `read_normal_captures`, which also describes the other arguments.

    Raises:
        NormalMapError: if the calibration or a view cannot be read.
    """
    folder = Path(folder).expanduser()
    notes = list[str]()
    choices = Choices(axes=stated_axes(axes), space=space, channels=channels, pixel_center=pixel_center)
    reading = ReadOptions(choices=choices, masks=masks, fill_holes=fill_holes, ratio=ratio)
    folders = view_folders(folder)
    calibration = _mat(folder / CALIBRATION)
    excluded = {int(view) for view in exclude}
    if unknown := excluded - set(folders):
        msg = f"{folder}: cannot leave out views {sorted(unknown)}: the only views are {shortened_numbers([*folders])}"
        raise NormalMapError(msg)
    views: list[NormalView] = []
    files: list[NormalFile] = []
    for number in sorted(set(folders) - excluded):
        content = _diligent_normals(folders[number], normals)
        mask_path = folders[number] / (masks or "mask.png")
        has_mask = reading.masks not in {"none", "normals"}
        mask = read_mask_file(mask_path) if has_mask else known_pixels(content)
        if mask.shape != content.not_finite.shape:
            msg = f"{mask_path} and the normals of {folders[number].name} differ in size: write one of them again"
            raise NormalMapError(msg)
        camera = _calibrated(folder / CALIBRATION, calibration, number, (int(mask.shape[0]), int(mask.shape[1])))
        views.append(view_of_maps(camera, content, mask))
        files.append(content)
    usual = Convention(axes=AXES["opengl"], pixel_center="whole")
    has_masks = folder if reading.masks not in {"none", "normals"} else None
    return assembled(views, files, reading, usual, folder=folder, masks=has_masks, notes=notes)


def _diligent_normals(folder: Path, named: str | None) -> NormalFile:
    names = (named,) if named else _NORMAL_NAMES
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        msg = (
            f"{folder} has no normals: expected {' or '.join(names)}, found {found}; add the file, or name it with "
            "--normals"
        )
        raise NormalMapError(msg)
    if path.suffix.lower() != ".mat":
        return load_normal_file(path)
    arrays = [
        value
        for value in _mat(path).values()
        if isinstance(value, np.ndarray) and value.ndim == 3 and value.shape[2] == 3
    ]
    if len(arrays) != 1:
        msg = f"{path} holds {len(arrays)} arrays of shape (height, width, 3): expected one, Normal_gt"
        raise NormalMapError(msg)
    values = torch.from_numpy(np.ascontiguousarray(arrays[0], np.float32))
    finite = torch.isfinite(values).all(-1)
    return NormalFile(
        values=torch.where(finite[..., None], values, torch.zeros(())), not_finite=~finite, encoding="MATLAB", bits=32
    )


def _mat(path: Path) -> dict[str, Any]:
    """Read a MATLAB file.

    Raises:
        NormalMapError: if it is missing or unreadable.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_HDF5)) == _HDF5:
                msg = f"{path} is a MATLAB file of version 7.3, which is not read: save it with -v7"
                raise NormalMapError(msg)
        return dict(loadmat(path))
    except (OSError, ValueError, TypeError, MatReadError) as error:
        msg = f"{path} cannot be read as a MATLAB file up to version 7 ({error}): copy it again, or save it with -v7"
        raise NormalMapError(msg) from error


def _calibrated(path: Path, values: Mapping[str, Any], number: int, size: tuple[int, int]) -> Camera:
    try:
        matrix = np.asarray(values["KK"], np.float64)
        rotation = np.asarray(values[f"Rc_{number}"], np.float64)
        shift = np.asarray(values[f"Tc_{number}"], np.float64).reshape(3)
    except (KeyError, ValueError) as error:
        msg = f"{path}: view {number} has no KK, Rc_{number} and Tc_{number} ({error}): leave it out with --exclude"
        raise NormalMapError(msg) from error
    # Published rotations are orthonormal up to a few thousandths.
    left, scales, right = np.linalg.svd(rotation)
    if rotation.shape != (3, 3) or np.abs(scales - 1).max() > 0.02 or np.linalg.det(left @ right) < 0:
        msg = f"{path}: Rc_{number} is not a rotation (singular values {scales.tolist()}): leave it out with --exclude"
        raise NormalMapError(msg)
    pose = np.eye(4)
    pose[:3, :3] = (left @ right).T
    pose[:3, 3] = -(left @ right).T @ shift
    return _camera(f"{number:02d}", matrix, size, torch.from_numpy(pose))


def _camera(name: str, matrix: Float64[np.ndarray, "3 3"], size: tuple[int, int], pose: torch.Tensor) -> Camera:
    """Return a camera with the intrinsics of pixel centers at whole numbers."""
    return Camera(
        name=name,
        height=size[0],
        width=size[1],
        fx=float(matrix[0, 0]),
        fy=float(matrix[1, 1]),
        cx=float(matrix[0, 2]) + 0.5,
        cy=float(matrix[1, 2]) + 0.5,
        world_from_camera=pose,
    )


def read_lens(path: Path) -> Float64[np.ndarray, "3 3"]:
    """Read a 3x3 matrix of intrinsics.

    Raises:
        NormalMapError: if the file does not hold one.
    """
    try:
        matrix = np.loadtxt(path, delimiter="," if "," in path.read_text("utf-8") else None, ndmin=2)
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be read as a matrix ({error}): write fx 0 cx / 0 fy cy / 0 0 1 in three lines"
        raise NormalMapError(msg) from error
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or min(matrix[0, 0], matrix[1, 1]) <= 0:
        msg = f"{path} holds {matrix.tolist()}: expected fx 0 cx / 0 fy cy / 0 0 1 in three lines, in pixels"
        raise NormalMapError(msg)
    return matrix


def read_unposed_normal_maps(  # noqa: PLR0913 - independent options of the folder layout
    folder: Path | str,
    *,
    normals: str | None = None,
    masks: str | None = None,
    axes: str | None = None,
    space: Space | None = None,
    channels: Channels | None = None,
    pixel_center: PixelCenter | None = None,
    exclude: Sequence[str | int] = (),
    fill_holes: bool = False,
) -> NormalSet:
    """Read normal maps and masks with intrinsics (`K.txt`) and without poses, in the order of their names.

    All cameras are the identity, at the distance that the masks suggest; training starts from a ring
    (`--pose-start ring`) and learns the poses. The arguments are those of `read_normal_captures`.

    Raises:
        NormalMapError: if files are missing or unreadable.
    """
    folder = Path(folder).expanduser()
    notes = list[str]()
    choices = Choices(axes=stated_axes(axes), space=space or "camera", channels=channels, pixel_center=pixel_center)
    reading = ReadOptions(choices=choices, masks=masks, fill_holes=fill_holes)
    mask_folder = reading.mask_folder(folder, notes)
    normal_folder = subfolder(folder, (normals,) if normals else NORMAL_FOLDERS, "normals", notes)
    normal_files = files_by_name(normal_folder, NORMAL_SUFFIXES)
    mask_files = files_by_name(mask_folder, MASK_SUFFIXES)
    excluded = excluded_names(set(normal_files), exclude, folder)
    path = lens_file(folder)
    assert path is not None  # noqa: S101  this file makes the layout
    matrix = read_lens(path)
    views: list[NormalView] = []
    files: list[NormalFile] = []
    for name in sorted(set(normal_files) - excluded):
        if mask_folder is not None and name not in mask_files:
            msg = f"{mask_folder} lacks the mask of {name}: add it, or leave the view out with --exclude {name}"
            raise NormalMapError(msg)
        content, mask = read_maps(ViewFiles(normals=normal_files[name], mask=mask_files.get(name)))
        assert content is not None  # noqa: S101  every view has normals here
        pose = torch.eye(4, dtype=torch.float64)
        pose[2, 3] = -_UNPOSED_DISTANCE
        camera = _camera(name.replace("/", "_"), matrix, (int(mask.shape[0]), int(mask.shape[1])), pose)
        views.append(view_of_maps(camera, content, mask))
        files.append(content)
    silhouettes = silhouettes_of(reading, views, mask_folder, notes)
    notes.append(f"poses: none ({path.name} holds the intrinsics only); --pose-start ring starts from a ring")
    notes.append(encoding_note(files))
    result = settled(views, choices, replace(OPENGL), notes, silhouettes=silhouettes, posed=False)
    return NormalSet(
        views=tuple(result.views),
        source=str(folder),
        notes=tuple(notes),
        convention=result.convention,
        noise=result.noise,
        silhouettes=silhouettes,
        posed=False,
    )
