"""Read normal maps of a transforms*.json: Blender, instant-ngp, NeuS2, Nerfstudio and SDFStudio."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image

from fieldwatch.files import UndecodableError, decoding
from fieldwatch.recon.data.normal_maps.assembly import NONE, NORMALS, REACH, ReadOptions, ViewFiles, assembled
from fieldwatch.recon.data.normal_maps.axes import AXES, Channels, Choices, Convention, PixelCenter, Space
from fieldwatch.recon.data.normal_maps.captures import excluded_names, files_by_name, posed_view
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.folder import stated_axes
from fieldwatch.recon.data.normal_maps.layout import NORMAL_FOLDERS, subfolder
from fieldwatch.recon.data.normal_maps.map_files import (
    MASK_SUFFIXES,
    NORMAL_SUFFIXES,
    load_normal_file,
    read_mask_file,
)
from fieldwatch.recon.data.normal_maps.model import NormalSet
from fieldwatch.recon.data.transforms import TransformsError, lens_of, pose_of
from fieldwatch.recon.geometry import Camera

FRAME_FILES = ("transforms.json", "transforms_train.json", "meta_data.json")
"""Files of frames, in the order in which they are looked for."""
_NORMAL_KEYS = ("normal_path", "normal_file_path", "mono_normal_path")
_MASK_KEYS = ("mask_path", "foreground_mask", "mask_file_path")


def frames_file(folder: Path) -> Path | None:
    """Return the file of frames in a folder; None if there is none."""
    return next((folder / name for name in FRAME_FILES if (folder / name).is_file()), None)


def names_normals(file: Path) -> bool:
    """Return whether the frames of a file name normal maps."""
    try:
        frames = json.loads(file.read_text("utf-8")).get("frames", [])
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(frames, list) and any(isinstance(frame, dict) and _named(frame, _NORMAL_KEYS) for frame in frames)


def read_normal_frames(  # noqa: PLR0913 - independent options of the folder layout
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
    """Read normal maps and masks of the frames of a `transforms.json` (or `transforms_train.json`, `meta_data.json`).

    A frame states its files (`normal_path` or `mono_normal_path`, `mask_path` or `foreground_mask`), or they have the
    name of its photo in the folders of normals and masks. Poses are camera to world with OpenGL axes; those of
    SDFStudio's `meta_data.json` (`camtoworld`, `intrinsics`) have OpenCV axes. The unit sphere is found from the masks,
    as by `read_normal_captures`, which also describes the other arguments.

    Raises:
        NormalMapError: if files are missing, ambiguous or unreadable.
        TransformsError: if a frame has no pose or lens.
    """
    folder = Path(folder).expanduser()
    notes = list[str]()
    choices = Choices(axes=stated_axes(axes), space=space, channels=channels, pixel_center=pixel_center)
    reading = ReadOptions(choices=choices, masks=masks, fill_holes=fill_holes, ratio=ratio)
    file = frames_file(folder) or folder / FRAME_FILES[0]
    fields = _fields(file)
    frames = {_name(frame): frame for frame in fields["frames"]}
    excluded = excluded_names(set(frames), exclude, folder)
    names = [name for name in frames if name not in excluded]
    mask_folder = reading.mask_folder(folder, notes)
    has_folder = normals is not None or any((folder / name).is_dir() for name in NORMAL_FOLDERS)
    normal_folder = (
        subfolder(folder, (normals,) if normals else NORMAL_FOLDERS, "normals", notes) if has_folder else None
    )
    normal_files = files_by_name(normal_folder, NORMAL_SUFFIXES)
    mask_files = files_by_name(mask_folder, MASK_SUFFIXES)
    found = {
        name: ViewFiles(
            normals=_file(folder, frames[name], _NORMAL_KEYS, name, normal_files),
            mask=None
            if reading.masks in {NONE, NORMALS}
            else _file(folder, frames[name], _MASK_KEYS, name, mask_files),
        )
        for name in names
    }
    _refuse_missing(folder, file, found)
    read = []
    for name, files in found.items():
        camera = _camera(file, fields, frames[name], name, files)
        read.append(posed_view(files, camera, f"its frame in {file.name}", notes))
    return assembled(
        [view for view, _ in read],
        [content for _, content in read],
        reading,
        Convention(axes=AXES["opengl"]),
        folder=folder,
        masks=folder if any(files.mask for files in found.values()) else None,
        notes=notes,
    )


def _fields(file: Path) -> dict[str, Any]:
    try:
        fields = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{file} cannot be read as JSON ({error}): write it again, or repair it manually"
        raise TransformsError(msg) from error
    frames = fields.get("frames") if isinstance(fields, dict) else None
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        msg = f"{file} has no frames: expected a list 'frames' of objects with a file_path and a transform_matrix"
        raise TransformsError(msg)
    return fields


def _name(frame: Mapping[str, Any]) -> str:
    """Return the name of a frame: that of its photo, else of its normal map, without folders and suffix."""
    stated = frame.get("file_path") or frame.get("rgb_path") or _named(frame, _NORMAL_KEYS) or ""
    return PurePosixPath(str(stated).replace("\\", "/")).stem


def _named(frame: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((str(frame[key]) for key in keys if frame.get(key)), None)


def _file(
    folder: Path, frame: Mapping[str, Any], keys: Sequence[str], name: str, files: Mapping[str, Path]
) -> Path | None:
    """Return the file that a frame states, or that of its name in a folder; None if there is none."""
    stated = _named(frame, keys)
    if stated is not None:
        return folder / stated.replace("\\", "/")
    return next((path for path in _candidates(name, files)), None)


def _candidates(name: str, files: Mapping[str, Path]) -> Iterator[Path]:
    """Yield files of a frame: of its name, of its name with an appended word, or of its name in a subfolder."""
    if name in files:
        yield files[name]
    for stem, path in files.items():
        last = PurePosixPath(stem).name
        # Blender's compositor appends the frame number or the pass: r_3_normal, r_3_normal0001.
        if last == name or last.startswith((f"{name}_normal", f"{name}_mask", f"{name}_alpha")):
            yield path


def _refuse_missing(folder: Path, file: Path, found: Mapping[str, ViewFiles]) -> None:
    """Check that all frames have the same kinds of files.

    Raises:
        NormalMapError: if some frames lack normals or a mask that others have, or all lack both.
    """
    for kind in ("normals", "mask"):
        lacking = [name for name, files in found.items() if getattr(files, kind) is None]
        if lacking and len(lacking) < len(found):
            listed = ", ".join(lacking[:8]) + (f", ... ({len(lacking)})" if len(lacking) > 8 else "")
            msg = (
                f"{folder}: frames {listed} of {file.name} have no {kind}: add the files with the names of the "
                "photos, or leave these frames out with --exclude"
            )
            raise NormalMapError(msg)
    if not any(files.normals or files.mask for files in found.values()):
        msg = (
            f"{folder}: no frame of {file.name} has normals or a mask: put them into normal/ and mask/ with the names "
            "of the photos, or state normal_path and mask_path in each frame"
        )
        raise NormalMapError(msg)


def _camera(file: Path, fields: Mapping[str, Any], frame: Mapping[str, Any], name: str, files: ViewFiles) -> Camera:
    where = f"{file}, frame {name}"
    shared = {key: value for key, value in fields.items() if key != "frames"}
    values: dict[str, Any] = {**shared, **frame}
    opencv = False
    if "camtoworld" in values:
        # SDFStudio: OpenCV axes and a matrix of intrinsics.
        values["transform_matrix"] = values["camtoworld"]
        opencv = True
        matrix = values.get("intrinsics") or []
        if len(matrix) >= 3:
            values |= {"fl_x": matrix[0][0], "fl_y": matrix[1][1], "cx": matrix[0][2], "cy": matrix[1][2]}
        values |= {key: values[long] for key, long in (("w", "width"), ("h", "height")) if long in values}
    lens = lens_of(values, _size(files), where)
    if lens.distorts:
        msg = (
            f"{where} has a lens with distortion, but normal maps require pinhole cameras: undistort the photos (with "
            "colmap image_undistorter or ns-process-data) and make their normals again"
        )
        raise NormalMapError(msg)
    pose = pose_of(values, where)
    if opencv:
        # `pose_of` turned OpenGL axes, which these are not: y and z are turned back.
        pose = pose.clone()
        pose[:3, 1:3] *= -1
    intrinsics = {key: getattr(lens, key) for key in ("fx", "fy", "cx", "cy")}
    return Camera(name=name, width=lens.width, height=lens.height, **intrinsics, world_from_camera=pose)


def _size(files: ViewFiles) -> tuple[int, int]:
    """Return width and height of the maps of a frame, for files that do not state them."""
    path = files.normals or files.mask
    assert path is not None  # noqa: S101  frames without files were refused
    if path.suffix.lower() == ".png" and path.is_file():
        try:
            with decoding(), Image.open(path) as picture:
                return picture.size
        except UndecodableError as error:
            msg = f"{path} cannot be read ({error}): write it again, or leave its frame out with --exclude"
            raise NormalMapError(msg) from error
    values = read_mask_file(path) if files.normals is None else load_normal_file(path).not_finite
    return int(values.shape[1]), int(values.shape[0])
