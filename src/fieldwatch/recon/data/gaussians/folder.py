"""The output folder of a 3D Gaussian splatting run: cameras.json, cfg_args, point_cloud/iteration_N."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from fieldwatch.files import output_path, write_file
from fieldwatch.recon.data.gaussians.cloud import GaussianCloud
from fieldwatch.recon.data.gaussians.error import SplatFolderError
from fieldwatch.recon.data.gaussians.files import read_gaussian_ply, write_gaussian_ply
from fieldwatch.recon.data.gaussians.reading import is_sog_folder, read_gaussians
from fieldwatch.recon.data.gaussians.settings import parse_settings, settings_text
from fieldwatch.recon.geometry import Camera, rigid

_ITERATION = re.compile(r"iteration_(\d+)")
_PLY = "point_cloud.ply"


@dataclass(frozen=True, kw_only=True, eq=False)
class SplatFolder:
    """Contents of the output folder of a splat training.

    Attributes:
        folder: path of the folder; of a single file, the folder that it is in.
        iterations: iterations with a point cloud, ascending; empty for a single file that names none.
        cameras: cameras of `cameras.json`, sorted by name; empty if the file is missing. If a name occurs more than
            once, its last camera is used. Without `cx` and `cy`, the principal point is the image center.
        settings: training arguments of `cfg_args`; empty if the file is missing.
        file: file of Gaussians, of any format, if one was opened instead of a folder.
    """

    folder: Path
    iterations: tuple[int, ...]
    cameras: tuple[Camera, ...]
    settings: Mapping[str, Any]
    file: Path | None = None

    @property
    def path(self) -> Path:
        """The file or folder that was opened."""
        return self.folder if self.file is None else self.file

    def check(self, iteration: int) -> None:
        """Refuse an iteration that the folder does not have; a single file counts as any iteration.

        Raises:
            SplatFolderError: if the iteration does not exist. The message lists the available ones.
        """
        if self.file is None:
            self.ply(iteration)

    def ply(self, iteration: int | None = None) -> Path:
        """Return the path of an iteration's PLY file; `None` selects the last iteration.

        Raises:
            SplatFolderError: if the iteration does not exist. The message lists the available ones.
        """
        wanted = self.iterations[-1] if iteration is None else iteration
        if wanted not in self.iterations:
            available = ", ".join(map(str, self.iterations))
            nearest = min(self.iterations, key=lambda other: abs(other - wanted))
            msg = f"{self.folder} has no iteration {wanted} (available: {available}): use -i {nearest}, the nearest one"
            raise SplatFolderError(msg)
        return self.folder / "point_cloud" / f"iteration_{wanted}" / _PLY

    def gaussians(self, iteration: int | None = None) -> GaussianCloud:
        """Read the Gaussians of an iteration; `None` selects the last iteration. A single file has no others.

        Raises:
            SplatFolderError: if the iteration does not exist.
            PlyError, SplatFileError: if its file cannot be read.
        """
        if self.file is not None:
            return read_gaussians(self.file)
        return read_gaussian_ply(self.ply(iteration))


def open_splat_folder(folder: Path | str) -> SplatFolder:
    """Open the output folder of a splat training. Gaussians are read on demand, with `SplatFolder.gaussians`.

    A single file of Gaussians, of any format that `read_gaussians` reads, is opened as well, with the `cameras.json`
    and `cfg_args` of its run, if it is `point_cloud/iteration_N/NAME`, or else of its own folder.

    Raises:
        SplatFolderError: if the folder does not exist, has no iterations, or contains an unreadable file.
    """
    folder = Path(folder).expanduser()
    if folder.is_file() or is_sog_folder(folder):
        return _single_file(folder)
    if not folder.is_dir():
        msg = (
            f"{folder} is not a folder or file: pass the output folder of a splat training (it contains "
            "point_cloud/iteration_N), or a file of Gaussians"
        )
        raise SplatFolderError(msg)
    # fullmatch ignores folders such as iteration_7000_backup.
    matches = [(_ITERATION.fullmatch(path.name), path) for path in (folder / "point_cloud").glob("iteration_*")]
    iterations = sorted(int(match[1]) for match, path in matches if match and (path / _PLY).is_file())
    if not iterations:
        entries = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        msg = (
            f"no trained splats in {folder}: expected point_cloud/iteration_N/{_PLY}, found: {entries}; pass the "
            "output folder of a splat training, or train from photos with -s"
        )
        raise SplatFolderError(msg)
    return _opened(folder, tuple(iterations))


def _single_file(file: Path) -> SplatFolder:
    parent = file.absolute().parent
    match = _ITERATION.fullmatch(parent.name)
    if match and parent.parent.name == "point_cloud":
        return _opened(parent.parent.parent, (int(match[1]),), file)
    return _opened(file.parent, (), file)


def _opened(folder: Path, iterations: tuple[int, ...], file: Path | None = None) -> SplatFolder:
    # Both files are optional: runs copied for viewing often consist of the point cloud alone.
    settings = folder / "cfg_args"
    cameras = folder / "cameras.json"
    return SplatFolder(
        folder=folder,
        iterations=iterations,
        cameras=read_splat_cameras(cameras) if cameras.is_file() else (),
        settings=parse_settings(settings.read_text("utf-8", "replace"), settings) if settings.is_file() else {},
        file=file,
    )


def write_splat_folder(
    folder: Path | str,
    iteration: int,
    gaussians: GaussianCloud,
    *,
    cameras: Sequence[Camera] = (),
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write an iteration to a run folder in the layout of 3D Gaussian splatting; return the path of its PLY file.

    Args:
        folder: run folder, created if missing. Other iterations in it are kept.
        iteration: number of completed training steps.
        gaussians: Gaussians to write.
        cameras: cameras of the photos. If empty, `cameras.json` is not written.
        settings: plain values for `cfg_args`. If None, `cfg_args` is not written.
    """
    folder = Path(folder)
    # The point cloud is written first: without it, open_splat_folder rejects the folder.
    path = write_gaussian_ply(output_path(folder, "point_cloud", f"iteration_{iteration}", _PLY), gaussians)
    if cameras:
        rows = [_camera_row(number, camera) for number, camera in enumerate(cameras)]
        write_file(output_path(folder, "cameras.json"), json.dumps(rows).encode())
    if settings is not None:
        write_file(output_path(folder, "cfg_args"), settings_text(dict(settings)).encode())
    return path


def _camera_row(number: int, camera: Camera) -> dict[str, Any]:
    """Return a camera's entry of `cameras.json`. The name loses its extension, as in 3D Gaussian splatting."""
    return {
        "id": number,
        "img_name": str(PurePosixPath(camera.name).with_suffix("")),
        "width": camera.width,
        "height": camera.height,
        "position": camera.position.tolist(),
        # Camera-to-world, despite the name W2C in 3DGS' camera_to_JSON.
        "rotation": camera.world_from_camera[:3, :3].tolist(),
        "fy": camera.fy,
        "fx": camera.fx,
        "cx": camera.cx,
        "cy": camera.cy,
    }


def read_splat_cameras(path: Path | str) -> tuple[Camera, ...]:
    """Read a `cameras.json`; return its cameras sorted by name.

    `cx` and `cy` are an extension of this library. Without them, the principal point is the image center.

    Raises:
        SplatFolderError: if the file does not exist or is malformed.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        msg = f"{path} does not exist: pass the cameras.json from the output folder of a splat training"
        raise SplatFolderError(msg)
    try:
        rows = json.loads(path.read_text("utf-8"))
        # Later entries replace earlier ones of the same name.
        cameras = {str(row["img_name"]): _camera(row) for row in rows}
    # torch raises RuntimeError for matrices of the wrong size; the others come from JSON and conversions.
    except (ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        msg = f"{path} is not a valid cameras.json of a splat training ({error!r}): copy it again from the run"
        raise SplatFolderError(msg) from error
    return tuple(cameras[name] for name in sorted(cameras))


def _camera(row: Mapping[str, Any]) -> Camera:
    # "rotation" is the camera-to-world rotation, so no transposition is needed.
    rotation = torch.tensor(row["rotation"], dtype=torch.float64).reshape(3, 3)
    position = torch.tensor(row["position"], dtype=torch.float64).reshape(3)
    width = int(row["width"])
    height = int(row["height"])
    return Camera(
        name=str(row["img_name"]),
        width=width,
        height=height,
        fx=float(row["fx"]),
        fy=float(row["fy"]),
        cx=float(row.get("cx", width / 2)),
        cy=float(row.get("cy", height / 2)),
        world_from_camera=rigid(rotation, position),
    )
