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
    Candidate,
    Checked,
    PhotoOptions,
    PhotoSet,
    PictureFolder,
    Sifted,
    View,
    assemble,
    no_points,
    sift_photos,
    stored_size,
)
from fieldwatch.recon.data.transforms.error import TransformsError
from fieldwatch.recon.data.transforms.frame import lens_of, pose_of

_PARTS = ("train", "test", "val")


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
    parts = {part: _Part(file, options) for part, file in _files(path).items()}
    notes: list[str] = []
    points, colours = next(iter(parts.values())).points(notes)
    views = [view for part in parts.values() for view in part.views(notes)]
    if not views:
        msg = f"{path} names no frame: its list 'frames' is empty; write the frames with their poses there"
        raise TransformsError(msg)
    whole = parts.get("")
    if whole is None:
        tested = {view.name for view in parts["test"].views([])} if "test" in parts else None
    else:
        tested = whole.named("test_filenames", views)
        unused = (whole.named("val_filenames", views) or set()) - (tested or set())
        views = [view for view in views if view.name not in unused]
        notes += [f"{len(unused)} frames for validation are not used"] if unused else []
    return assemble(
        views,
        options,
        points=points,
        colours=colours,
        source=str(path),
        notes=notes,
        tested=tested,
        left_out=[name for part in parts.values() for name in part.sifted.left_out],
    )


def _files(path: Path) -> dict[str, Path]:
    """Return the files to read, by the part of the scene that they are ('' for all of it)."""
    if path.is_file():
        part = path.stem.removeprefix("transforms").removeprefix("_")
        if part != "train":
            return {"": path}
        path = path.parent
    if (path / "transforms.json").is_file():
        return {"": path / "transforms.json"}
    found = {part: path / f"transforms_{part}.json" for part in _PARTS[:2]}
    there = {part: file for part, file in found.items() if file.is_file()}
    if "train" not in there:
        there_is = ", ".join(sorted(p.name for p in path.iterdir())[:8]) if path.is_dir() else "no such folder"
        msg = (
            f"{path} holds neither transforms.json nor transforms_train.json (found: {there_is}): give the folder of "
            "a Blender, instant-ngp or Nerfstudio scene, or the .json itself"
        )
        raise TransformsError(msg)
    return there


class _Part:
    """One file: its fields and its frames."""

    def __init__(self, file: Path, options: PhotoOptions) -> None:
        self.file = file
        self.fields = _json(file)
        self._options = options

    @cached_property
    def sifted(self) -> Sifted:
        """The photos of the frames, checked."""
        pictures = PictureFolder(self.file.parent)
        frames = self.fields["frames"]
        return sift_photos(
            [
                Candidate(name=frame["file_path"], path=self._photo(frame, pictures), mask=self._mask(frame))
                for frame in frames
            ],
            skip=self._options.skip_unreadable,
            leave_out=self._options.leave_out,
            source=str(self.file),
            where=pictures.holds,
        )

    def views(self, notes: list[str]) -> list[View]:
        """Return what the file says about every photo."""
        frames: list[dict[str, Any]] = self.fields["frames"]
        photos = self.sifted.photos
        notes += self.sifted.notes
        if "applied_transform" in self.fields:
            notes.append("poses stay in the coordinates of the file; its applied_transform is not undone")
        return [self._view(frame, photos[frame["file_path"]]) for frame in frames if frame["file_path"] in photos]

    def named(self, key: str, views: Sequence[View]) -> set[str] | None:
        """Return names of the views in a list of file names; None where there is no such list."""
        listed = self.fields.get(key)
        if not isinstance(listed, list):
            return None
        stems = {_stem(str(name)) for name in listed}
        return {view.name for view in views if _stem(view.name) in stems}

    def points(self, notes: list[str]) -> tuple[Float[Tensor, "points 3"], UInt8[Tensor, "points 3"]]:
        """Read the points that the file names by `ply_file_path`; none where it names none."""
        named = self.fields.get("ply_file_path")
        if named:
            return read_point_ply(self.file.parent / str(named))
        notes.append("the scene has no points: Gaussians have to start from random ones")
        return no_points()

    def _view(self, frame: dict[str, Any], photo: Checked) -> View:
        where = f"{self.file}, frame {frame['file_path']}"
        shared = {key: value for key, value in self.fields.items() if key != "frames"}
        return View(
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

    def _photo(self, frame: dict[str, Any], pictures: PictureFolder) -> Path | None:
        """Find a photo; Blender's files leave out the extension."""
        name = frame["file_path"]
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
