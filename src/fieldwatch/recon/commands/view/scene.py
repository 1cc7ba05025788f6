"""What there is to view at a path: Gaussians or a mesh, with the cameras that belong to it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch import Checkpoints, InputError
from fieldwatch.cli.kit import BadInput, open_stored, stored_steps
from fieldwatch.pipeline import Device, holds_run, read_manifest
from fieldwatch.recon.data import GaussianCloud, PhotoSet, open_splat_folder, read_gaussians
from fieldwatch.recon.data.gaussians import PlyError, SplatFolder, is_sog_folder
from fieldwatch.recon.geometry import Camera, focus_point
from fieldwatch.recon.mesh import MeshError, Triangles, read_mesh
from fieldwatch.recon.pipelines.normals import camera_in_world, surface_mesh
from fieldwatch.recon.pipelines.normals import open_run as open_normals
from fieldwatch.recon.pipelines.splats import REFINED_PIPELINE, fused_cloud, open_drawn_run, upwards

MESH_ENDINGS = (".obj", ".glb")
_Y_DOWN = (0.0, -1.0, 0.0)
_Z_UP = (0.0, 0.0, 1.0)
_Y_UP = (0.0, 1.0, 0.0)
THUMBNAIL = 192
"""Longer side of a photo in the frustum of its camera, pixels."""
_MOST_CENTERS = 100_000
"""Number of centers from which the extent of a scene is measured."""
_INNER = 0.9
"""Fraction of the Gaussians that the first view shows, where no camera says more."""


def no_photo(_index: int) -> None:
    """Return no photo."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewedScene:
    """Something to view.

    Attributes:
        title: name.
        gaussians: Gaussians; None for a mesh.
        mesh: mesh; None for Gaussians.
        cameras: cameras of the photos, in the world.
        up: upward direction of the world.
        notes: remarks about how it was read.
        photo: function that returns the photo of a camera by its index, small; None without photos.
        steps: steps of the checkpoints of its run.
        step: step of the checkpoint that is shown; -1 if it is no run.
    """

    title: str
    gaussians: GaussianCloud | None = None
    mesh: Triangles | None = None
    cameras: Sequence[Camera] = ()
    up: tuple[float, float, float]
    notes: tuple[str, ...] = ()
    photo: Callable[[int], UInt8[np.ndarray, "height width 3"] | None] = no_photo
    steps: tuple[int, ...] = ()
    step: int = -1


def open_scene(path: Path, *, checkpoint: str = "last", device: Device = "auto") -> ViewedScene:
    """Open a run, a file of Gaussians, the folder of a 3DGS training, or a mesh.

    Raises:
        BadInput, InputError: there is nothing to view at the path, or it cannot be read.
    """
    path = path.expanduser()
    if holds_run(path):
        return _of_run(path, checkpoint, device)
    if path.is_dir() and not is_sog_folder(path):
        return _of_folder(path, open_splat_folder(path))
    if path.suffix.lower() in MESH_ENDINGS:
        return _of_mesh(path, read_mesh(path))
    try:
        cloud = read_gaussians(path)
    except PlyError as not_gaussians:
        # A PLY may hold a mesh as well; what is wrong with one of Gaussians, its own reader says best.
        try:
            return _of_mesh(path, read_mesh(path))
        except MeshError:
            raise not_gaussians from None
    return ViewedScene(title=path.name, gaussians=cloud, up=_Y_DOWN, notes=cloud.notes)


def _of_folder(path: Path, folder: SplatFolder) -> ViewedScene:
    cloud = folder.gaussians()
    up = _vector(upwards(folder.cameras)) if folder.cameras else _Y_DOWN
    title = f"{path.resolve().name}, iteration {folder.iterations[-1]:,}"
    return ViewedScene(title=title, gaussians=cloud, cameras=folder.cameras, up=up, notes=cloud.notes)


def _of_mesh(path: Path, mesh: Triangles) -> ViewedScene:
    # glTF defines +y as up; other formats say nothing, and +z is usual for scans.
    return ViewedScene(title=path.name, mesh=mesh, up=_Y_UP if path.suffix.lower() == ".glb" else _Z_UP)


def _of_run(path: Path, checkpoint: str, device: Device) -> ViewedScene:
    pipeline = read_manifest(path).about.get("pipeline")
    if pipeline == "normals":
        stored = open_stored(partial(open_normals, device=device), path, checkpoint)
        mesh = surface_mesh(stored.model, stored.scene, stored.config.mesh_resolution)
        if not len(mesh.faces):
            raise InputError(f"the field of step {stored.step} has no surface yet: choose another --checkpoint")
        # The mesh is in the world.
        cameras = tuple(camera_in_world(camera, stored.scene) for camera in stored.scene.maps.cameras)
        up = _vector(upwards(cameras))
        steps = {"steps": tuple(stored_steps(Checkpoints(path / "checkpoints"), path)), "step": stored.step}
        return ViewedScene(title=_titled(path, stored.step), mesh=mesh, cameras=cameras, up=up, **steps)
    if pipeline not in ("splats", REFINED_PIPELINE):
        raise BadInput(
            f"{path} is a run of {pipeline or 'another program'}: expected one of splats, refined or normals"
        )
    drawn = open_stored(partial(open_drawn_run, device=device), path, checkpoint)
    cameras = drawn.scene.photos.cameras
    cloud = fused_cloud(drawn.model)
    return ViewedScene(
        title=_titled(path, drawn.step),
        gaussians=cloud,
        cameras=cameras,
        up=_vector(upwards(cameras)),
        photo=partial(thumbnail, drawn.scene.photos),
        steps=tuple(stored_steps(Checkpoints(path / "checkpoints"), path)),
        step=drawn.step,
    )


def thumbnail(photos: PhotoSet, index: int) -> UInt8[np.ndarray, "height width 3"]:
    """Return a photo with a longer side of at most `THUMBNAIL` pixels."""
    image = photos[index].image
    every = math.ceil(max(image.shape[:2]) / THUMBNAIL)
    return np.ascontiguousarray(image[::every, ::every].cpu().numpy())


def _titled(path: Path, step: int) -> str:
    return f"{path.resolve().name}, step {step:,}"


def _vector(values: Tensor) -> tuple[float, float, float]:
    x, y, z = values.tolist()
    return x, y, z


def first_view(scene: ViewedScene) -> tuple[Float[Tensor, "3"], float]:
    """Return the center of the first view, float64, and the radius of what it shows.

    All of a mesh is shown. Of Gaussians, cameras say what the photos are about; without, most of them are shown.
    """
    if scene.mesh is not None and len(scene.mesh.vertices):
        low, high = torch.from_numpy(scene.mesh.vertices.min(0)), torch.from_numpy(scene.mesh.vertices.max(0))
        return (low + high) / 2, _positive(float((high - low).norm()) / 2)
    if scene.cameras:
        middle = focus_point(scene.cameras)
        distances = torch.stack([camera.position.double().cpu() - middle for camera in scene.cameras]).norm(dim=-1)
        # What the photos show lies between them and a little behind the focus.
        return middle, _positive(0.8 * float(distances.median()))
    if scene.gaussians is None:
        return torch.zeros(3, dtype=torch.float64), 1.0
    means = scene.gaussians.means.double()[:: max(len(scene.gaussians) // _MOST_CENTERS, 1)]
    middle = means.median(dim=0).values
    return middle, _positive(float((means - middle).norm(dim=-1).quantile(_INNER)))


def _positive(radius: float) -> float:
    return radius if 0 < radius < math.inf else 1.0


def upright(up: Sequence[float]) -> Float[Tensor, "3 3"]:
    """Return the shortest rotation from an upward direction to +y, float64."""
    start = torch.tensor(up, dtype=torch.float64)
    start = start / start.norm()
    end = torch.tensor(_Y_UP, dtype=torch.float64)
    cosine = float(start @ end)
    # Opposite directions: half a turn about x, which both are perpendicular to.
    if cosine < -1 + 1e-12:
        return torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))
    x, y, z = torch.linalg.cross(start, end).tolist()
    skew = torch.tensor([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]], dtype=torch.float64)
    return torch.eye(3, dtype=torch.float64) + skew + skew @ skew / (1 + cosine)
