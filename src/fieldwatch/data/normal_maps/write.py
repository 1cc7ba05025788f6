"""Normal maps as a folder in the layout of DiLiGenT-MV, SuperNormal and PMNI."""

import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fieldwatch.data.normal_maps.cameras_file import camera_matrices
from fieldwatch.data.normal_maps.folder import CAMERAS, DEPTH
from fieldwatch.data.normal_maps.layout import MESH
from fieldwatch.data.normal_maps.map_files import encode_normals, write_png16
from fieldwatch.data.normal_maps.model import NormalSet, NormalView

_NORMALS = "normal_camera_space_GT"
_PERSPECTIVE = "integration/perspective"


def write_normal_maps(normal_set: NormalSet, folder: Path | str, *, kind: Literal["png", "npy"] = "png") -> Path:
    """Write a set so that `read_normal_maps` and other people's readers of the layout read it.

    Normals are written in OpenGL's axes, as the layout has them. Read back, cameras are the same to rounding of
    float64, masks and depth to the bit, normals to 16 bits per component (0.002 degrees) or, with `npy`, to float32.
    Depth goes to `integration/depth` (along the axis) and `integration/perspective` (along the ray), NaN where it is
    unknown; the true mesh is copied to `mesh_Gt.ply`.

    Args:
        normal_set: views named by different numbers keep them as their indices; others are counted from 0.
        folder: made if it does not exist.
        kind: of the files of normals.
    """
    folder = Path(folder)
    for name in (
        _NORMALS,
        "mask",
        *((DEPTH, _PERSPECTIVE) if any(v.depth is not None for v in normal_set.views) else ()),
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
    world_from_unit = normal_set.world_from_unit.detach().cpu().double().numpy()
    matrices = dict[str, NDArray[np.float64]]()
    for stem, view in zip(_stems(normal_set), normal_set.views, strict=True):
        _write_view(folder, stem, view, kind)
        world, scale = camera_matrices(view.camera, world_from_unit)
        matrices |= {f"world_mat_{int(stem)}": world, f"scale_mat_{int(stem)}": scale}
    with (folder / CAMERAS).open("wb") as file:
        np.savez(file, allow_pickle=False, **matrices)
    if normal_set.mesh is not None and normal_set.mesh.resolve() != (folder / MESH).resolve():
        shutil.copyfile(normal_set.mesh, folder / MESH)
    return folder


def _stems(normal_set: NormalSet) -> list[str]:
    names = list(normal_set.names)
    if all(name.isdecimal() for name in names) and len({int(name) for name in names}) == len(names):
        return names
    return [f"{number:03d}" for number in range(len(names))]


def _write_view(folder: Path, stem: str, view: NormalView, kind: Literal["png", "npy"]) -> None:
    normals = _in_opengl(view.normals)
    if kind == "png":
        write_png16(folder / _NORMALS / f"{stem}.png", encode_normals(normals))
    else:
        np.save(folder / _NORMALS / f"{stem}.npy", normals.numpy())
    Image.fromarray(view.mask.numpy().astype(np.uint8) * 255).save(folder / "mask" / f"{stem}.png")
    if view.depth is not None:
        depth = torch.where(view.depth > 0, view.depth, torch.full_like(view.depth, torch.nan))
        stretch = view.camera.directions().to(torch.float64).norm(dim=-1)
        np.save(folder / DEPTH / f"{stem}.npy", depth.numpy())
        np.save(folder / _PERSPECTIVE / f"{stem}.npy", (depth.double() * stretch).float().numpy())


def _in_opengl(normals: Float32[Tensor, "h w 3"]) -> Float32[Tensor, "h w 3"]:
    turned = normals.cpu() * torch.tensor([1.0, -1.0, -1.0])
    return torch.where(normals.cpu() == 0, torch.zeros(()), turned)
