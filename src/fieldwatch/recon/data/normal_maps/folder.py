"""Read normal maps with a file of projection matrices: DiLiGenT-MV, SuperNormal, PMNI, IDR, NeuS and MonoSDF."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldwatch.recon.data.normal_maps.assembly import ReadOptions, ViewFiles, read_maps, silhouettes_of
from fieldwatch.recon.data.normal_maps.axes import Channels, Choices, PixelCenter, Space, canonical_axes
from fieldwatch.recon.data.normal_maps.cameras_file import CamerasFile
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.layout import (
    MESH,
    NORMAL_FOLDERS,
    holes_filled,
    subfolder,
    view_of_maps,
)
from fieldwatch.recon.data.normal_maps.map_files import (
    DEPTH_SUFFIXES,
    MASK_SUFFIXES,
    NORMAL_SUFFIXES,
    NormalFile,
    read_depth_file,
)
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.data.normal_maps.settle import OPENGL, encoding_note, settled

CAMERAS = "cameras_sphere.npz"
CAMERA_FILES = (CAMERAS, "cameras.npz")
"""Files of projection matrices: of DiLiGenT-MV, SuperNormal and PMNI, and of IDR, NeuS and MonoSDF."""
DEPTH = "integration/depth"
_NUMBER = re.compile(r"(\d+)$")  # view index at the end of a file stem
_FLAT = {"normal": re.compile(r"(\d+)_normals?$"), "mask": re.compile(r"(\d+)_masks?$")}  # MonoSDF's names


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """Files of all views by index; each source lists what it lacks.

    Attributes:
        normals: normal maps; None for masks only.
        masks: masks; None if the normals show the object.
        depth: depth maps; empty if there are none.
        names: names of the sources, for messages.
        folder: folder of masks; None if there is none.
    """

    normals: dict[int, Path] | None
    masks: dict[int, Path] | None
    depth: dict[int, Path]
    names: dict[str, str]
    folder: Path | None


def read_normal_maps(  # noqa: PLR0913 - independent options of the folder layout
    folder: Path | str,
    *,
    axes: str | None = None,
    space: Space | None = None,
    channels: Channels | None = None,
    pixel_center: PixelCenter | None = None,
    normals: str | None = None,
    masks: str | None = None,
    depth: str | None = DEPTH,
    exclude: Sequence[int] = (),
    fill_holes: bool = False,
) -> NormalSet:
    """Read projection matrices, normals, masks and, if present, depth and the ground truth mesh.

    The cameras are in `cameras_sphere.npz` or `cameras.npz`. Files are matched by the number at the end of their
    names, which is also the `<i>` of `world_mat_<i>`; the names of MonoSDF (`000000_normal.npy`, `000000_mask.png` in
    the folder itself) are read, too. Cameras are transformed to the unit sphere frame. Axes, space and channels of the
    normals and the pixel center of the intrinsics are found from the data unless stated. The usual ones of the layout
    are OpenGL camera axes and pixel centers at whole numbers.

    Args:
        folder: folder of one object.
        axes: `opengl` (x right, y up, z toward the viewer), `opencv` (x right, y down, z forward), `directx` (x right,
            y down, z toward the viewer), or the OpenCV camera axis (or world axis) of each channel, such as `x,-y,-z`;
            None or `auto` finds them.
        space: whether normals are in camera or world axes; None finds it.
        channels: `rgb` or `bgr`; None finds it.
        pixel_center: `half` or `whole`; None finds it.
        normals: folder of normals; None uses the first existing one of `normal_camera_space_GT`, ..., `normals`.
        masks: folder of masks, `normals` for the pixels that have one, or `none`; None uses `mask` or `masks` if there
            are any, else the pixels with a normal.
        depth: folder of integrated depth, used if it exists; None ignores depth.
        exclude: indices of views to leave out.
        fill_holes: whether to add holes of the masks that contain normals to the masks.

    Raises:
        NormalMapError: if files are missing, unreadable or differ in size.
    """
    folder = Path(folder).expanduser()
    notes = list[str]()
    chosen = Choices(axes=stated_axes(axes), space=space, channels=channels, pixel_center=pixel_center)
    reading = ReadOptions(choices=chosen, masks=masks, fill_holes=fill_holes)
    cameras = CamerasFile(cameras_file(folder) or folder / CAMERAS)
    sources = _sources(folder, reading, normals, depth, notes)
    views: list[NormalView] = []
    contents: list[NormalFile] = []
    for index in _used(folder, cameras, sources, frozenset(exclude), notes):
        view, normal_map = _read_view(folder, index, cameras, sources)
        views.append(view)
        contents += [] if normal_map is None else [normal_map]
    silhouettes = silhouettes_of(reading, views, sources.folder, notes)
    if contents:
        notes.append(encoding_note(contents))
    world = sources.normals is not None and "world" in next(iter(sources.normals.values())).parent.name
    usual = replace(OPENGL, space="world", axes="x,y,z") if world else OPENGL
    result = settled(views, chosen, usual, notes, silhouettes=silhouettes)
    settled_views = [holes_filled(view, notes) for view in result.views] if fill_holes else result.views
    return NormalSet(
        views=tuple(settled_views),
        # scale_mat of the layout.
        world_from_unit=torch.from_numpy(cameras.world_from_unit),
        mesh=folder / MESH if (folder / MESH).is_file() else None,
        source=str(folder),
        notes=tuple(notes),
        convention=result.convention,
        noise=result.noise,
        silhouettes=silhouettes,
    )


def _read_view(
    folder: Path, index: int, cameras: CamerasFile, sources: _Sources
) -> tuple[NormalView, NormalFile | None]:
    """Return a view, and the content of its file of normals; None without normals.

    Raises:
        NormalMapError: if a file is unreadable, or the maps differ in size.
    """
    files = ViewFiles(
        normals=None if sources.normals is None else sources.normals[index],
        mask=None if sources.masks is None else sources.masks[index],
    )
    first = files.normals or files.mask
    assert first is not None  # noqa: S101  one of them is read
    normal_map, mask = read_maps(files)
    if normal_map is not None and files.mask is not None:
        _same_size(first, normal_map.values[..., 0], files.mask, mask)
    depth_path = sources.depth.get(index)
    depth_map = None if depth_path is None else read_depth_file(depth_path)
    if depth_path is not None and depth_map is not None:
        _same_size(first, mask, depth_path, depth_map)
    # The cameras file does not state image sizes.
    name = first.stem if first.parent != folder else f"{index:03d}"
    camera = cameras.camera(index, name, (mask.shape[0], mask.shape[1]))
    return view_of_maps(camera, normal_map, mask, depth_map), normal_map


def cameras_file(folder: Path) -> Path | None:
    """Return the file of projection matrices in a folder; None if there is none."""
    return next((folder / name for name in CAMERA_FILES if (folder / name).is_file()), None)


def stated_axes(axes: str | None) -> str | None:
    """Return axes that are stated; None if they are to be found.

    Raises:
        NormalMapError: if the text is no description of axes.
    """
    return None if axes in {None, "auto"} else canonical_axes(str(axes))


def _sources(folder: Path, reading: ReadOptions, normals: str | None, depth: str | None, notes: list[str]) -> _Sources:
    """Return the files of normals, masks and depth by index.

    Raises:
        NormalMapError: if there are neither normals nor masks, or a name has no number.
    """
    if normals is None and (flat := _flat_files(folder)):
        # MonoSDF keeps all files in one folder.
        masks = None if reading.masks in {"none", "normals"} else flat["mask"] or None
        names = {"normals": "NUMBER_normal files", "masks": "NUMBER_mask files"}
        return _Sources(normals=flat["normal"], masks=masks, depth={}, names=names, folder=folder if masks else None)
    mask_folder = reading.mask_folder(folder, notes)
    masks = None if mask_folder is None else numbered(mask_folder, MASK_SUFFIXES)
    names = {"masks": "masks"}
    normal_files = None
    has_normals = normals is not None or any((folder / name).is_dir() for name in NORMAL_FOLDERS)
    # Without normals, masks alone are a visual hull.
    if has_normals or masks is None:
        normal_folder = subfolder(folder, (normals,) if normals else NORMAL_FOLDERS, "normals", notes)
        normal_files = numbered(normal_folder, NORMAL_SUFFIXES)
        names["normals"] = f"{normal_folder.name}/"
    # Depth is optional, but if there is any, every view must have it.
    depth_files = dict[int, Path]()
    if depth is not None and (folder / depth).is_dir():
        depth_files = numbered(folder / depth, DEPTH_SUFFIXES)
        names["depth"] = f"{depth}/"
    return _Sources(normals=normal_files, masks=masks, depth=depth_files, names=names, folder=mask_folder)


def _flat_files(folder: Path) -> dict[str, dict[int, Path]]:
    """Return MonoSDF's files by kind and index; nothing if there are no normals of that form."""
    found: dict[str, dict[int, Path]] = {"normal": {}, "mask": {}}
    suffixes = {"normal": NORMAL_SUFFIXES, "mask": MASK_SUFFIXES}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        for kind, pattern in _FLAT.items():
            match = pattern.fullmatch(path.stem)
            # Files of arrays before their pictures: previews have the same names.
            if (match and path.suffix.lower() in suffixes[kind] and int(match[1]) not in found[kind]) or (
                match and path.suffix.lower() in {".npy", ".exr"} and kind == "normal"
            ):
                found[kind][int(match[1])] = path
    return found if found["normal"] else {}


def _used(
    folder: Path, cameras: CamerasFile, sources: _Sources, exclude: frozenset[int], notes: list[str]
) -> list[int]:
    """Return the indices of the views.

    Raises:
        NormalMapError: if a view lacks a file, an excluded view does not exist, or no view is left.
    """
    files_by_source: dict[str, dict[int, Any]] = {
        sources.names[kind]: files
        for kind, files in (("normals", sources.normals), ("masks", sources.masks), ("depth", sources.depth or None))
        if files is not None
    }
    files_by_source[cameras.path.name] = cameras.world
    # Every view mentioned by any source is expected in all of them, so that missing files are noticed.
    known = set[int]().union(*files_by_source.values())
    lacks = {source: sorted(known - exclude - set(names_by_view)) for source, names_by_view in files_by_source.items()}
    if wrong := [f"{source} lacks {shortened_numbers(numbers)}" for source, numbers in lacks.items() if numbers]:
        numbers = sorted(set[int]().union(*map(set, lacks.values())))
        msg = (
            f"{folder}: every view needs normals, a mask and a camera, but {'; '.join(wrong)} (views "
            f"{shortened_numbers(sorted(known - exclude))} have at least one file); files are matched by the number "
            f"in their names: add the missing files, or leave these views out (--exclude {' '.join(map(str, numbers))})"
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
    return used


def numbered(folder: Path, suffixes: frozenset[str]) -> dict[int, Path]:
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
