"""Read scenes with a transforms*.json: Blender's synthetic scenes, instant-ngp and Nerfstudio."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch.recon.data.gaussians import read_point_ply
from fieldwatch.recon.data.photos import (
    CheckedPhoto,
    PhotoCandidate,
    PhotoFolder,
    PhotoOptions,
    PhotoSet,
    PosedPhoto,
    UsablePhotos,
    assemble,
    check_photos,
    no_points,
    stored_size,
)
from fieldwatch.recon.data.transforms.error import TransformsError
from fieldwatch.recon.data.transforms.frame import lens_of, pose_of

_SPLITS = ("train", "test", "val")


def read_transforms(path: Path | str, options: PhotoOptions | None = None) -> PhotoSet:
    """Read a scene from `transforms.json`, or from `transforms_train.json` and `transforms_test.json`.

    Camera axes are converted from OpenGL (y up, z backward) to OpenCV; the world frame is that of the file. A split
    stated by the scene (two files, or `train_filenames` and `test_filenames`) is kept. Frames of `transforms_val.json`
    and `val_filenames` are ignored. Scenes without points, such as Blender's, give an empty point cloud.

    Args:
        path: JSON file, or the folder that contains it.
        options: size, split and background of the photos.

    Raises:
        TransformsError: if the file is missing or not JSON, or a frame has no pose or lens.
        PhotoError: if photos are missing, unreadable, or do not have the stated aspect ratio.
        PlyError: if the point cloud named by the file cannot be read.
    """
    path = Path(path).expanduser()
    options = options or PhotoOptions()
    files = {file_of_split: _TransformsFile(file, options) for file_of_split, file in _files(path).items()}
    notes: list[str] = []
    # All files of a scene share one point cloud.
    points, colors = next(iter(files.values())).points(notes)
    views = [view for file_of_split in files.values() for view in file_of_split.views(notes)]
    if not views:
        msg = f"{path} has no frames: the list 'frames' is empty; add the frames with their poses"
        raise TransformsError(msg)
    single_file = files.get("")
    if single_file is None:
        # The notes of the test file have already been collected above.
        test_names = {view.name for view in files["test"].views([])} if "test" in files else None
    else:
        test_names = single_file.named("test_filenames", views)
        unused = (single_file.named("val_filenames", views) or set()) - (test_names or set())
        views = [view for view in views if view.name not in unused]
        notes += [f"{len(unused)} validation frames are ignored"] if unused else []
    return assemble(
        views,
        options,
        points=points,
        colors=colors,
        source=str(path),
        notes=notes,
        test_names=test_names,
        left_out=[name for file_of_split in files.values() for name in file_of_split.photos.left_out],
    )


def _files(path: Path) -> dict[str, Path]:
    """Return the files to read by their split; the key '' means a single file for the whole scene."""
    if path.is_file():
        split = path.stem.removeprefix("transforms").removeprefix("_")
        # A path to transforms_train.json stands for the scene with its test split.
        if split != "train":
            return {"": path}
        path = path.parent
    if (path / "transforms.json").is_file():
        return {"": path / "transforms.json"}
    candidates = {split: path / f"transforms_{split}.json" for split in _SPLITS[:2]}
    existing = {split: file for split, file in candidates.items() if file.is_file()}
    if "train" not in existing:
        entries = ", ".join(sorted(p.name for p in path.iterdir())[:8]) if path.is_dir() else "no such folder"
        msg = (
            f"neither transforms.json nor transforms_train.json in {path}, found: {entries}; pass the folder of a "
            "Blender, instant-ngp or Nerfstudio scene, or the .json file itself"
        )
        raise TransformsError(msg)
    return existing


class _TransformsFile:
    """The fields and frames of one transforms*.json."""

    def __init__(self, file: Path, options: PhotoOptions) -> None:
        self.file = file
        self.fields = _json(file)
        self._options = options

    @cached_property
    def photos(self) -> UsablePhotos:
        """Checked photos of the frames."""
        pictures = PhotoFolder(self.file.parent)
        frames = self.fields["frames"]
        return check_photos(
            [
                PhotoCandidate(name=frame["file_path"], path=self._photo(frame, pictures), mask=self._mask(frame))
                for frame in frames
            ],
            skip=self._options.skip_unreadable,
            leave_out=self._options.leave_out,
            most_decoded=self._options.most_decoded,
            source=str(self.file),
            where=pictures.holds,
        )

    def views(self, notes: list[str]) -> list[PosedPhoto]:
        """Return the posed photos of the frames and append notes about them to `notes`."""
        frames: list[dict[str, Any]] = self.fields["frames"]
        usable = self.photos.photos
        notes += self.photos.notes
        if "applied_transform" in self.fields:
            notes.append("poses are kept in the coordinates of the file; its applied_transform is not inverted")
        if any("depth_file_path" in frame for frame in frames):
            notes.append("the depth maps of the file are not used")
        return [self._view(frame, usable[frame["file_path"]]) for frame in frames if frame["file_path"] in usable]

    def named(self, key: str, views: Sequence[PosedPhoto]) -> set[str] | None:
        """Return the names of the views listed under `key`; None if the file has no such list."""
        names = self.fields.get(key)
        if not isinstance(names, list):
            return None
        # The lists may omit the extension, or state another one than the photos on disk have.
        stems = {_stem(str(name)) for name in names}
        return {view.name for view in views if _stem(view.name) in stems}

    def points(self, notes: list[str]) -> tuple[Float[Tensor, "points 3"], UInt8[Tensor, "points 3"]]:
        """Read the point cloud named by `ply_file_path`; empty if the field is missing."""
        named = self.fields.get("ply_file_path")
        if named:
            return read_point_ply(self.file.parent / str(named))
        notes.append("the scene has no points: Gaussians must be initialized from random points")
        return no_points()

    def _view(self, frame: dict[str, Any], photo: CheckedPhoto) -> PosedPhoto:
        where = f"{self.file}, frame {frame['file_path']}"
        # Nerfstudio allows intrinsics per file or per frame; those of a frame take precedence.
        shared = {key: value for key, value in self.fields.items() if key != "frames"}
        return PosedPhoto(
            name=_name(frame["file_path"], photo.path),
            path=photo.path,
            lens=lens_of({**shared, **frame}, stored_size(photo.path), where),
            world_from_camera=pose_of(frame, where),
            mask=photo.mask,
            transparent=photo.transparent,
            blank=photo.blank,
        )

    def _mask(self, frame: dict[str, Any]) -> Path | None:
        return None if frame.get("mask_path") is None else self.file.parent / str(frame["mask_path"])

    def _photo(self, frame: dict[str, Any], pictures: PhotoFolder) -> Path | None:
        """Find the photo of a frame; Blender's files omit the extension."""
        name = frame["file_path"]
        # The exact path is tried first, since a folder may contain images with equal stems. Windows writes backslashes.
        direct = self.file.parent / name.replace("\\", "/")
        return direct if direct.is_file() else pictures.find(f"{name}.png") or pictures.find(name)


def _json(file: Path) -> dict[str, Any]:
    try:
        fields = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{file} cannot be read as JSON ({error}): write it again, or repair it manually"
        raise TransformsError(msg) from error
    # Any valid JSON may be in the file, including lists and numbers.
    frames = fields.get("frames") if isinstance(fields, dict) else None
    if not isinstance(frames, list) or not all(isinstance(frame, dict) and "file_path" in frame for frame in frames):
        msg = f"{file} is not the transforms.json of a scene: expected a list 'frames' of objects with a file_path"
        raise TransformsError(msg)
    return {**fields, "frames": [{**frame, "file_path": str(frame["file_path"])} for frame in frames]}


def _name(stated: str, path: Path) -> str:
    """Return the stated name without a leading ./ and with the extension of the photo file."""
    return str(PurePosixPath(stated.replace("\\", "/")).with_suffix(path.suffix))


def _stem(name: str) -> str:
    return str(PurePosixPath(name.replace("\\", "/")).with_suffix(""))
