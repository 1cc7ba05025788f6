"""Scenes with a transforms*.json: Blender's synthetic ones, instant-ngp's and Nerfstudio's."""

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
    """Read a scene of `transforms.json`, or of `transforms_train.json` and `transforms_test.json`.

    Poses are turned from OpenGL's axes (y up, z backward) to OpenCV's; the world stays as the file has it. A stated
    split (two files, or `train_filenames` and `test_filenames`) is kept; frames of `transforms_val.json` and of
    `val_filenames` are not used. Blender's scenes have no points: the set's are empty then.

    Args:
        path: the file, or the folder that holds it.
        options: how photos are read.

    Raises:
        TransformsError: no file, not JSON, a frame without pose or lens.
        PhotoError: photos are missing, unreadable, or of another shape than stated.
        PlyError: the file of points that it names cannot be read.
    """
    path = Path(path).expanduser()
    options = options or PhotoOptions()
    files = {file_of_split: _TransformsFile(file, options) for file_of_split, file in _files(path).items()}
    notes: list[str] = []
    points, colours = next(iter(files.values())).points(notes)
    views = [view for file_of_split in files.values() for view in file_of_split.views(notes)]
    if not views:
        msg = f"{path} names no frame: its list 'frames' is empty; write the frames with their poses there"
        raise TransformsError(msg)
    single_file = files.get("")
    if single_file is None:
        test_names = {view.name for view in files["test"].views([])} if "test" in files else None
    else:
        test_names = single_file.named("test_filenames", views)
        unused = (single_file.named("val_filenames", views) or set()) - (test_names or set())
        views = [view for view in views if view.name not in unused]
        notes += [f"{len(unused)} frames for validation are not used"] if unused else []
    return assemble(
        views,
        options,
        points=points,
        colours=colours,
        source=str(path),
        notes=notes,
        test_names=test_names,
        left_out=[name for file_of_split in files.values() for name in file_of_split.photos.left_out],
    )


def _files(path: Path) -> dict[str, Path]:
    """Return the files to read, by the part of the scene that they are ('' for all of it)."""
    if path.is_file():
        split = path.stem.removeprefix("transforms").removeprefix("_")
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
            f"{path} holds neither transforms.json nor transforms_train.json (found: {entries}): give the folder of "
            "a Blender, instant-ngp or Nerfstudio scene, or the .json itself"
        )
        raise TransformsError(msg)
    return existing


class _TransformsFile:
    """One file: its fields and its frames."""

    def __init__(self, file: Path, options: PhotoOptions) -> None:
        self.file = file
        self.fields = _json(file)
        self._options = options

    @cached_property
    def photos(self) -> UsablePhotos:
        """The photos of the frames, checked."""
        pictures = PhotoFolder(self.file.parent)
        frames = self.fields["frames"]
        return check_photos(
            [
                PhotoCandidate(name=frame["file_path"], path=self._photo(frame, pictures), mask=self._mask(frame))
                for frame in frames
            ],
            skip=self._options.skip_unreadable,
            leave_out=self._options.leave_out,
            source=str(self.file),
            where=pictures.holds,
        )

    def views(self, notes: list[str]) -> list[PosedPhoto]:
        """Return what the file says about every photo."""
        frames: list[dict[str, Any]] = self.fields["frames"]
        usable = self.photos.photos
        notes += self.photos.notes
        if "applied_transform" in self.fields:
            notes.append("poses stay in the coordinates of the file; its applied_transform is not undone")
        return [self._view(frame, usable[frame["file_path"]]) for frame in frames if frame["file_path"] in usable]

    def named(self, key: str, views: Sequence[PosedPhoto]) -> set[str] | None:
        """Return names of the views in a list of file names; None where there is no such list."""
        names = self.fields.get(key)
        if not isinstance(names, list):
            return None
        stems = {_stem(str(name)) for name in names}
        return {view.name for view in views if _stem(view.name) in stems}

    def points(self, notes: list[str]) -> tuple[Float[Tensor, "points 3"], UInt8[Tensor, "points 3"]]:
        """Read the points that the file names by `ply_file_path`; none where it names none."""
        named = self.fields.get("ply_file_path")
        if named:
            return read_point_ply(self.file.parent / str(named))
        notes.append("the scene has no points: Gaussians have to start from random ones")
        return no_points()

    def _view(self, frame: dict[str, Any], photo: CheckedPhoto) -> PosedPhoto:
        where = f"{self.file}, frame {frame['file_path']}"
        # The file's fields are defaults that a frame may override.
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
        """Find a photo; Blender's files leave out the extension."""
        name = frame["file_path"]
        # The exact path first: a folder may hold images of equal stems.
        direct = self.file.parent / name.replace("\\", "/")
        return direct if direct.is_file() else pictures.find(f"{name}.png") or pictures.find(name)


def _json(file: Path) -> dict[str, Any]:
    try:
        fields = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{file} cannot be read as JSON ({error}): write it again, or repair it by hand"
        raise TransformsError(msg) from error
    frames = fields.get("frames") if isinstance(fields, dict) else None
    if not isinstance(frames, list) or not all(isinstance(frame, dict) and "file_path" in frame for frame in frames):
        msg = f"{file} has no list 'frames' of objects with a file_path: that is no transforms.json of a scene"
        raise TransformsError(msg)
    return {**fields, "frames": [{**frame, "file_path": str(frame["file_path"])} for frame in frames]}


def _name(stated: str, path: Path) -> str:
    """Name as stated, without a leading ./ and with the extension that the photo has."""
    return str(PurePosixPath(stated.replace("\\", "/")).with_suffix(path.suffix))


def _stem(name: str) -> str:
    return str(PurePosixPath(name.replace("\\", "/")).with_suffix(""))
