"""A folder in the layout of DiLiGenT-MV, SuperNormal and PMNI."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fieldwatch.recon.data.normal_maps.cameras_file import CamerasFile
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.layout import (
    MASK_FOLDERS,
    MESH,
    NORMAL_FOLDERS,
    Axes,
    holes_filled,
    in_opencv,
    subfolder,
    view_of_maps,
)
from fieldwatch.recon.data.normal_maps.map_files import (
    DEPTH_SUFFIXES,
    MASK_SUFFIXES,
    NORMAL_SUFFIXES,
    read_depth_file,
    read_mask_file,
    read_normal_file,
)
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView

CAMERAS = "cameras_sphere.npz"
DEPTH = "integration/depth"
_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True, kw_only=True)
class _ViewFiles:
    """The files of one view."""

    normals: Path
    mask: Path
    depth: Path | None


def read_normal_maps(  # noqa: PLR0913 - what differs between people's folders
    folder: Path | str,
    *,
    axes: Axes = "opengl",
    normals: str | None = None,
    depth: str | None = DEPTH,
    exclude: Sequence[int] = (),
    fill_holes: bool = False,
) -> NormalSet:
    """Read `cameras_sphere.npz`, a folder of camera-space normals, masks and, where there are, depth and a true mesh.

    Files belong together by the number at the end of their names, which is also the `<i>` of `world_mat_<i>`. Cameras
    are taken to the frame of the unit sphere; pixel centres, at whole numbers in the layout, to +0.5.

    Args:
        folder: of one object.
        axes: of the normals in the files: OpenGL's (x right, y up, z to the viewer; the layout's), OpenCV's (x right,
            y down, z forward), or recognised by the sign of z, which faces the viewer.
        normals: name of the folder of normals; if None, the first there is of `normal_camera_space_GT`, ..., `normals`.
        depth: folder of integrated depth, used if it exists; None leaves it out.
        exclude: indices of views that are left out.
        fill_holes: add holes of the masks to them where there are normals in the holes.

    Raises:
        NormalMapError: something is missing, unreadable, of different sizes, or the axes cannot be recognised.
    """
    folder = Path(folder).expanduser()
    notes = list[str]()
    cameras = CamerasFile(folder / CAMERAS)
    paths = _paths(folder, cameras, normals, depth, frozenset(exclude), notes)
    views: list[NormalView] = []
    for index, files in paths.items():
        normal_map = read_normal_file(files.normals)
        mask = read_mask_file(files.mask)
        _same_size(files.normals, normal_map[..., 0], files.mask, mask)
        depth_map = None if files.depth is None else read_depth_file(files.depth)
        if files.depth is not None and depth_map is not None:
            _same_size(files.normals, normal_map[..., 0], files.depth, depth_map)
        camera = cameras.camera(index, files.normals.stem, (mask.shape[0], mask.shape[1]))
        views.append(view_of_maps(camera, normal_map, mask, depth_map))
    views = in_opencv(views, axes, folder, notes)
    if fill_holes:
        views = [holes_filled(view, notes) for view in views]
    return NormalSet(
        views=tuple(views),
        world_from_unit=torch.from_numpy(cameras.world_from_unit),
        mesh=folder / MESH if (folder / MESH).is_file() else None,
        source=str(folder),
        notes=tuple(notes),
    )


def _paths(  # noqa: PLR0913, PLR0917 - what selects files
    folder: Path,
    cameras: CamerasFile,
    normals: str | None,
    depth: str | None,
    exclude: frozenset[int],
    notes: list[str],
) -> dict[int, _ViewFiles]:
    """Return the files of every view, which must be there for the same views."""
    normal_folder = subfolder(folder, (normals,) if normals else NORMAL_FOLDERS, "normals", notes)
    normal_files = _numbered(normal_folder, NORMAL_SUFFIXES)
    mask_files = _numbered(subfolder(folder, MASK_FOLDERS, "masks", notes), MASK_SUFFIXES)
    depth_files = dict[int, Path]()
    if depth is not None and (folder / depth).is_dir():
        depth_files = _numbered(folder / depth, DEPTH_SUFFIXES)
    known = set(normal_files) | set(mask_files) | set(cameras.world) | set(depth_files)
    files_by_source = {f"{normal_folder.name}/": normal_files, "masks": mask_files, CAMERAS: cameras.world}
    files_by_source |= {f"{depth}/": depth_files} if depth_files else {}
    lacks = {source: sorted(known - exclude - set(names_by_view)) for source, names_by_view in files_by_source.items()}
    if wrong := [f"{source} lacks {shortened_numbers(numbers)}" for source, numbers in lacks.items() if numbers]:
        msg = (
            f"{folder}: normals, masks and cameras are not there for the same views: {'; '.join(wrong)} (views "
            f"{shortened_numbers(sorted(known - exclude))} have some file); files belong together by the number in "
            "their names: "
            "add what is missing, or leave these views out (exclude)"
        )
        raise NormalMapError(msg)
    used = sorted(known - exclude)
    if unknown := exclude - known:
        msg = (
            f"{folder}: views {sorted(unknown)} are to be left out, but there are only "
            f"{shortened_numbers(sorted(known))}"
        )
        raise NormalMapError(msg)
    if not used:
        msg = (
            f"{folder}: no view is left: all of {shortened_numbers(sorted(known))} are left out (exclude); leave "
            "out fewer"
        )
        raise NormalMapError(msg)
    # Gaps are legal, but often mean that a file is missing from all folders.
    if used != list(range(used[0], used[0] + len(used))):
        notes.append(f"the indices of the views have gaps: {shortened_numbers(used)}")
    return {i: _ViewFiles(normals=normal_files[i], mask=mask_files[i], depth=depth_files.get(i)) for i in used}


def _numbered(folder: Path, suffixes: frozenset[str]) -> dict[int, Path]:
    """Return the files by the number at the end of their names."""
    paths = dict[int, Path]()
    for path in sorted(p for p in folder.iterdir() if p.suffix.lower() in suffixes and not p.name.startswith(".")):
        match = _NUMBER.search(path.stem)
        if match is None:
            msg = f"{path} has no number at the end of its name: name files by index, as 00{path.suffix}"
            raise NormalMapError(msg)
        if (other := paths.get(int(match[1]))) is not None:
            msg = f"{other} and {path.name} both are of view {int(match[1])}: remove one, or give it another number"
            raise NormalMapError(msg)
        paths[int(match[1])] = path
    return paths


def _same_size(path: Path, values: Tensor, other_path: Path, other_values: Tensor) -> None:
    if values.shape != other_values.shape:
        msg = (
            f"{path} has {values.shape[1]}x{values.shape[0]} pixels and {other_path} "
            f"{other_values.shape[1]}x{other_values.shape[0]} "
            "(width x height): maps of a view have one size; write one of them again"
        )
        raise NormalMapError(msg)


def shortened_numbers(numbers: Sequence[int]) -> str:
    """Return numbers for a message, at most eight."""
    listed = ", ".join(str(number) for number in numbers[:8])
    return f"{listed}, ... ({len(numbers)})" if len(numbers) > 8 else listed
