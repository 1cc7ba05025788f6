"""Recognises what kind of data a path holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fieldwatch.cli.doctor_frames import frames_report, gaussians_report
from fieldwatch.cli.doctor_normals import NormalOptions, normals_report
from fieldwatch.cli.doctor_photos import PICTURES, has_colmap, has_transforms, photos_report
from fieldwatch.cli.doctor_report import DataReport
from fieldwatch.cli.ending import BadInput
from fieldwatch.data import normal_layout

Kind = Literal["normals", "photos", "frames", "gaussians"]

_MAPS = {"normal_camera_space_GT", "normal_camera_space_sdmunips", "normal_camera_space", "normals", "normal"}
_MASKS = {"mask", "masks"}
_WANTED = (
    "normal maps (cameras_sphere.npz with normal_camera_space_GT/ and mask/; or normals/, masks/ and COLMAP's "
    "sparse/0/), photos with cameras (images/ and sparse/0/; or transforms.json), frames (pictures, or a video file), "
    "or Gaussians (a .ply, or point_cloud/iteration_N/)"
)


def kind_of(path: Path) -> Kind:
    """Return what a path holds, by the names of what is in it.

    Raises:
        BadInput: nothing is there, or nothing that is known; the message says what was found and what was wanted.
        PermissionError: the folder may not be read.
    """
    if path.is_file():
        return _kind_of_file(path)
    if not path.is_dir():
        raise BadInput(f"{path} does not exist: give a folder or a file, holding {_WANTED}")
    names = sorted(entry.name for entry in path.iterdir())
    if normal_layout(path) is not None or (not _MASKS.isdisjoint(names) and not _MAPS.isdisjoint(names)):
        return "normals"
    if any(entry.name.startswith("iteration_") for entry in path.glob("point_cloud/*")):
        return "gaussians"
    if has_transforms(path) or has_colmap(path):
        return "photos"
    if any(Path(name).suffix.lower() in PICTURES and not name.startswith(".") for name in names):
        return "frames"
    raise BadInput(_unknown(path, names))


def report_of(path: Path, kind: Kind, options: NormalOptions) -> DataReport:
    """Read and check data of a kind; errors of its reader pass."""
    if kind == "normals":
        return normals_report(path, options)
    readers = {"photos": photos_report, "frames": frames_report, "gaussians": gaussians_report}
    return readers[kind](path)


def _kind_of_file(path: Path) -> Kind:
    ending = path.suffix.lower()
    if ending == ".ply":
        return "gaussians"
    if ending == ".json":
        return "photos"
    if ending in PICTURES | {".npz", ".npy", ".exr", ".bin", ".txt"}:
        raise BadInput(f"{path} is one file of a data set: give the folder that holds the whole set, {_WANTED}")
    if ending in {".obj", ".glb"}:
        raise BadInput(f"{path} is a mesh: `fieldwatch mesh quality {path}` says how good it is")
    return "frames"


def _unknown(path: Path, names: Sequence[str]) -> str:
    if "run.json" in names:
        return f"{path} is a run, not data: `fieldwatch health {path}` says what is wrong with it"
    found = ", ".join(names[:10]) + (f", ... ({len(names)})" if len(names) > 10 else "")
    if not names:
        return f"{path} is empty: give a folder or a file, holding {_WANTED}"
    below = next((path / name for name in names if (path / name).is_dir() and _is_known(path / name)), None)
    hint = f"did you mean {below}? Else give" if below else "give"
    return f"{path} holds nothing that is known (found: {found}): {hint} {_WANTED}"


def _is_known(path: Path) -> bool:
    """Whether a folder below would be known, by a quick look."""
    has_pictures = any(entry.suffix.lower() in PICTURES for entry in path.iterdir())
    return normal_layout(path) is not None or has_transforms(path) or has_colmap(path) or has_pictures
