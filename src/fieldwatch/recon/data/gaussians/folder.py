"""The folder that a 3D Gaussian splatting run leaves: cameras.json, cfg_args, point_cloud/iteration_N."""

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
from fieldwatch.recon.data.gaussians.settings import parse_settings, settings_text
from fieldwatch.recon.geometry import Camera, rigid

_ITERATION = re.compile(r"iteration_(\d+)")
_PLY = "point_cloud.ply"


@dataclass(frozen=True, kw_only=True, eq=False)
class SplatFolder:
    """What is in the folder of a run.

    Attributes:
        folder: the folder.
        iterations: those with a point cloud, ascending.
        cameras: of `cameras.json`, sorted by name (of several of one name the last), principal point in the centre;
            none where the file is missing.
        settings: arguments in `cfg_args`; none where the file is missing.
    """

    folder: Path
    iterations: tuple[int, ...]
    cameras: tuple[Camera, ...]
    settings: Mapping[str, Any]

    def ply(self, iteration: int | None = None) -> Path:
        """Return the path of an iteration's Gaussians; of the last one, if None.

        Raises:
            SplatFolderError: there is no such iteration; the message lists those there are.
        """
        wanted = self.iterations[-1] if iteration is None else iteration
        if wanted not in self.iterations:
            there = ", ".join(map(str, self.iterations))
            nearest = min(self.iterations, key=lambda other: abs(other - wanted))
            msg = f"{self.folder} has no iteration {wanted}: it has {there}; give -i {nearest}"
            raise SplatFolderError(msg)
        return self.folder / "point_cloud" / f"iteration_{wanted}" / _PLY

    def gaussians(self, iteration: int | None = None) -> GaussianCloud:
        """Read an iteration's Gaussians; the last one's, if None.

        Raises:
            SplatFolderError: there is no such iteration.
            PlyError: its file cannot be read.
        """
        return read_gaussian_ply(self.ply(iteration))


def open_splat_folder(folder: Path | str) -> SplatFolder:
    """Look into the folder of a run; Gaussians are read when asked for.

    Raises:
        SplatFolderError: no folder, no iteration in it, or a file that cannot be read.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        msg = f"{folder} is no folder: give the output folder of a splat training (with point_cloud/iteration_N in it)"
        raise SplatFolderError(msg)
    found = [(_ITERATION.fullmatch(path.name), path) for path in (folder / "point_cloud").glob("iteration_*")]
    iterations = sorted(int(match[1]) for match, path in found if match and (path / _PLY).is_file())
    if not iterations:
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        msg = (
            f"{folder} holds no trained splats (point_cloud/iteration_N/{_PLY}; found: {there}): give the output "
            "folder of a splat training, or train from photos with -s"
        )
        raise SplatFolderError(msg)
    settings = folder / "cfg_args"
    cameras = folder / "cameras.json"
    return SplatFolder(
        folder=folder,
        iterations=tuple(iterations),
        cameras=read_splat_cameras(cameras) if cameras.is_file() else (),
        settings=parse_settings(settings.read_text("utf-8", "replace"), settings) if settings.is_file() else {},
    )


def write_splat_folder(
    folder: Path | str,
    iteration: int,
    gaussians: GaussianCloud,
    *,
    cameras: Sequence[Camera] = (),
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write an iteration into the folder of a run, as 3D Gaussian splatting would; return the path of its PLY.

    Args:
        folder: made if it does not exist; other iterations in it stay.
        iteration: number of training steps made.
        gaussians: raw parameters.
        cameras: of the photos; `cameras.json` is written unless there are none.
        settings: for `cfg_args`; plain values. Written unless None.
    """
    folder = Path(folder)
    path = write_gaussian_ply(output_path(folder, "point_cloud", f"iteration_{iteration}", _PLY), gaussians)
    if cameras:
        rows = [_camera_row(number, camera) for number, camera in enumerate(cameras)]
        write_file(output_path(folder, "cameras.json"), json.dumps(rows).encode())
    if settings is not None:
        write_file(output_path(folder, "cfg_args"), settings_text(dict(settings)).encode())
    return path


def _camera_row(number: int, camera: Camera) -> dict[str, Any]:
    """One camera; the name loses its extension, as 3D Gaussian splatting does it."""
    return {
        "id": number,
        "img_name": str(PurePosixPath(camera.name).with_suffix("")),
        "width": camera.width,
        "height": camera.height,
        "position": camera.position.tolist(),
        "rotation": camera.world_from_camera[:3, :3].tolist(),
        "fy": camera.fy,
        "fx": camera.fx,
        "cx": camera.cx,
        "cy": camera.cy,
    }


def read_splat_cameras(path: Path | str) -> tuple[Camera, ...]:
    """Read a `cameras.json`, sorted by name; `cx` and `cy` are ours, files of others lack them and mean the centre.

    Raises:
        SplatFolderError: there is no such file, or it holds something else.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        msg = f"{path} is no file: give a cameras.json, as the output folder of a splat training holds it"
        raise SplatFolderError(msg)
    try:
        rows = json.loads(path.read_text("utf-8"))
        cameras = {str(row["img_name"]): _camera(row) for row in rows}
    except (ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        msg = f"{path} cannot be read as the cameras of a splat training ({error!r}): copy it again from its run"
        raise SplatFolderError(msg) from error
    return tuple(cameras[name] for name in sorted(cameras))


def _camera(row: Mapping[str, Any]) -> Camera:
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
