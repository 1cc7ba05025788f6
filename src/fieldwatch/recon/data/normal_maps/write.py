"""Normal maps as a folder in the layout of DiLiGenT-MV, SuperNormal and PMNI."""

import re
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fieldwatch.files import output_path, whole_file
from fieldwatch.recon.data.normal_maps.cameras_file import camera_matrices
from fieldwatch.recon.data.normal_maps.folder import CAMERAS, DEPTH
from fieldwatch.recon.data.normal_maps.layout import MESH
from fieldwatch.recon.data.normal_maps.map_files import encode_normals, write_png16
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView

_NUMBER = re.compile(r"[0-9]{1,9}")
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
        output_path(folder, *name.split("/")).mkdir(parents=True, exist_ok=True)
    world_from_unit = normal_set.world_from_unit.detach().cpu().double().numpy()
    matrices = dict[str, NDArray[np.float64]]()
    for stem, view in zip(_stems(normal_set), normal_set.views, strict=True):
        _write_view(folder, stem, view, kind)
        world, scale = camera_matrices(view.camera, world_from_unit)
        matrices |= {f"world_mat_{int(stem)}": world, f"scale_mat_{int(stem)}": scale}
    with whole_file(output_path(folder, CAMERAS)) as draft, draft.open("wb") as file:
        np.savez(file, allow_pickle=False, **matrices)
    if normal_set.mesh is not None and normal_set.mesh.resolve() != (folder / MESH).resolve():
        with whole_file(output_path(folder, MESH)) as draft:
            shutil.copyfile(normal_set.mesh, draft)
    return folder


def _stems(normal_set: NormalSet) -> list[str]:
    names = list(normal_set.names)
    if all(_NUMBER.fullmatch(name) for name in names) and len({int(name) for name in names}) == len(names):
        return names
    return [f"{number:03d}" for number in range(len(names))]


def _write_view(folder: Path, stem: str, view: NormalView, kind: Literal["png", "npy"]) -> None:
    normals = _in_opengl(view.normals)
    if kind == "png":
        write_png16(output_path(folder, _NORMALS, f"{stem}.png"), encode_normals(normals))
    else:
        _save(output_path(folder, _NORMALS, f"{stem}.npy"), normals.numpy())
    with whole_file(output_path(folder, "mask", f"{stem}.png")) as draft:
        Image.fromarray(view.mask.numpy().astype(np.uint8) * 255).save(draft, "PNG")
    if view.depth is not None:
        depth = torch.where(view.depth > 0, view.depth, torch.full_like(view.depth, torch.nan))
        stretch = view.camera.directions().to(torch.float64).norm(dim=-1)
        _save(output_path(folder, *DEPTH.split("/"), f"{stem}.npy"), depth.numpy())
        _save(output_path(folder, *_PERSPECTIVE.split("/"), f"{stem}.npy"), (depth.double() * stretch).float().numpy())


def _save(path: Path, values: NDArray[np.generic]) -> None:
    with whole_file(path) as draft, draft.open("wb") as file:
        np.save(file, values)


def _in_opengl(normals: Float32[Tensor, "h w 3"]) -> Float32[Tensor, "h w 3"]:
    turned = normals.cpu() * torch.tensor([1.0, -1.0, -1.0])
    return torch.where(normals.cpu() == 0, torch.zeros(()), turned)
