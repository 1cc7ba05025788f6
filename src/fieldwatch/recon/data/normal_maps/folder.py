"""Read normal maps in the layout of DiLiGenT-MV, SuperNormal and PMNI."""

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
_NUMBER = re.compile(r"(\d+)$")  # view index at the end of a file stem


@dataclass(frozen=True, kw_only=True)
class _ViewFiles:
    """Files of one view."""

    normals: Path
    mask: Path
    depth: Path | None


def read_normal_maps(  # noqa: PLR0913 - independent options of the folder layout
    folder: Path | str,
    *,
    axes: Axes = "opengl",
    normals: str | None = None,
    depth: str | None = DEPTH,
    exclude: Sequence[int] = (),
    fill_holes: bool = False,
) -> NormalSet:
    """Read `cameras_sphere.npz`, camera-space normals, masks and, if present, depth and the ground truth mesh.

    Files are matched by the number at the end of their names, which is also the `<i>` of `world_mat_<i>`. Cameras are
    transformed to the unit sphere frame, and pixel centers from integers, the convention of the layout, to +0.5.

    Args:
        folder: folder of one object.
        axes: axes of the normals in the files: `opengl` (x right, y up, z toward the viewer; the convention of the
            layout), `opencv` (x right, y down, z forward), or `auto` to detect them by the sign of z.
        normals: folder of normals; None uses the first existing one of `normal_camera_space_GT`, ..., `normals`.
        depth: folder of integrated depth, used if it exists; None ignores depth.
        exclude: indices of views to leave out.
        fill_holes: whether to add holes of the masks that contain normals to the masks.

    Raises:
        NormalMapError: if files are missing, unreadable or differ in size, or the axes cannot be detected.
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
        # The cameras file does not state image sizes.
        camera = cameras.camera(index, files.normals.stem, (mask.shape[0], mask.shape[1]))
        views.append(view_of_maps(camera, normal_map, mask, depth_map))
    views = in_opencv(views, axes, folder, notes)
    if fill_holes:
        views = [holes_filled(view, notes) for view in views]
    return NormalSet(
        views=tuple(views),
        # scale_mat of the layout.
        world_from_unit=torch.from_numpy(cameras.world_from_unit),
        mesh=folder / MESH if (folder / MESH).is_file() else None,
        source=str(folder),
        notes=tuple(notes),
    )


def _paths(  # noqa: PLR0913, PLR0917 - all options that select files
    folder: Path,
    cameras: CamerasFile,
    normals: str | None,
    depth: str | None,
    exclude: frozenset[int],
    notes: list[str],
) -> dict[int, _ViewFiles]:
    """Return the files of every view, by index.

    Raises:
        NormalMapError: if a view lacks a file, an excluded view does not exist, or no view is left.
    """
    normal_folder = subfolder(folder, (normals,) if normals else NORMAL_FOLDERS, "normals", notes)
    normal_files = _numbered(normal_folder, NORMAL_SUFFIXES)
    mask_files = _numbered(subfolder(folder, MASK_FOLDERS, "masks", notes), MASK_SUFFIXES)
    # Depth is optional, but if there is any, every view must have it.
    depth_files = dict[int, Path]()
    if depth is not None and (folder / depth).is_dir():
        depth_files = _numbered(folder / depth, DEPTH_SUFFIXES)
    # Every view mentioned by any source is expected in all of them, so that missing files are noticed.
    known = set(normal_files) | set(mask_files) | set(cameras.world) | set(depth_files)
    files_by_source = {f"{normal_folder.name}/": normal_files, "masks": mask_files, CAMERAS: cameras.world}
    files_by_source |= {f"{depth}/": depth_files} if depth_files else {}
    lacks = {source: sorted(known - exclude - set(names_by_view)) for source, names_by_view in files_by_source.items()}
    if wrong := [f"{source} lacks {shortened_numbers(numbers)}" for source, numbers in lacks.items() if numbers]:
        msg = (
            f"{folder}: every view needs normals, a mask and a camera, but {'; '.join(wrong)} (views "
            f"{shortened_numbers(sorted(known - exclude))} have at least one file); files are matched by the number "
            "in their names: add the missing files, or leave these views out (exclude)"
        )
        raise NormalMapError(msg)
    used = sorted(known - exclude)
    # A mistyped index would otherwise exclude nothing without notice.
    if unknown := exclude - known:
        msg = (
            f"{folder}: cannot leave out views {sorted(unknown)}: the only views are {shortened_numbers(sorted(known))}"
        )
        raise NormalMapError(msg)
    if not used:
        msg = f"{folder}: no view is left: all of {shortened_numbers(sorted(known))} are left out; exclude fewer"
        raise NormalMapError(msg)
    # Gaps are allowed, but often mean that a view is missing from all folders.
    if used != list(range(used[0], used[0] + len(used))):
        notes.append(f"the indices of the views have gaps: {shortened_numbers(used)}")
    return {i: _ViewFiles(normals=normal_files[i], mask=mask_files[i], depth=depth_files.get(i)) for i in used}


def _numbered(folder: Path, suffixes: frozenset[str]) -> dict[int, Path]:
    """Return the files of a folder by the number at the end of their names.

    Raises:
        NormalMapError: if a name has no number, or two files have the same one.
    """
    paths = dict[int, Path]()
    # Hidden files include the "._" files that macOS writes on other file systems.
    for path in sorted(p for p in folder.iterdir() if p.suffix.lower() in suffixes and not p.name.startswith(".")):
        match = _NUMBER.search(path.stem)
        if match is None:
            msg = f"{path} has no number at the end of its name: name files by index, as 00{path.suffix}"
            raise NormalMapError(msg)
        if (other := paths.get(int(match[1]))) is not None:
            msg = f"{other} and {path.name} both belong to view {int(match[1])}: remove or renumber one of them"
            raise NormalMapError(msg)
        paths[int(match[1])] = path
    return paths


def _same_size(path: Path, values: Tensor, other_path: Path, other_values: Tensor) -> None:
    if values.shape != other_values.shape:
        msg = (
            f"{path} is {values.shape[1]}x{values.shape[0]} and {other_path} is "
            f"{other_values.shape[1]}x{other_values.shape[0]} (width x height): all maps of a view must have the same "
            "size; write one of them again"
        )
        raise NormalMapError(msg)


def shortened_numbers(numbers: Sequence[int]) -> str:
    """Join the first eight numbers for a message; append the count if there are more."""
    listed = ", ".join(str(number) for number in numbers[:8])
    return f"{listed}, ... ({len(numbers)})" if len(numbers) > 8 else listed
