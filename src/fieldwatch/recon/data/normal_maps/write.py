"""Write normal maps in the layout of DiLiGenT-MV, SuperNormal and PMNI."""

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
    """Write a set in the layout that `read_normal_maps`, SuperNormal and PMNI read.

    Normals are written in OpenGL axes, the convention of the layout. A round trip preserves cameras up to float64
    rounding, masks and depth exactly, and normals to 16 bits per component (0.002 degrees) or, with `npy`, to float32.
    Depth is written to `integration/depth` (along the optical axis) and `integration/perspective` (along the ray), with
    NaN where it is unknown. The ground truth mesh is copied to `mesh_Gt.ply`.

    Args:
        normal_set: normal maps to write. View names that are distinct numbers become the indices; otherwise the views
            are numbered from 0.
        folder: destination, created if missing.
        kind: file format of the normals.
    """
    folder = Path(folder)
    # A set without depth gets no empty depth folders.
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
    # A set may be written to the folder it was read from; the mesh must not be copied onto itself.
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
        # The layout marks unknown depth as NaN.
        depth = torch.where(view.depth > 0, view.depth, torch.full_like(view.depth, torch.nan))
        ray_length = view.camera.directions().to(torch.float64).norm(dim=-1)
        _save(output_path(folder, *DEPTH.split("/"), f"{stem}.npy"), depth.numpy())
        _save(
            output_path(folder, *_PERSPECTIVE.split("/"), f"{stem}.npy"), (depth.double() * ray_length).float().numpy()
        )


def _save(path: Path, values: NDArray[np.generic]) -> None:
    with whole_file(path) as draft, draft.open("wb") as file:
        np.save(file, values)


def _in_opengl(normals: Float32[Tensor, "h w 3"]) -> Float32[Tensor, "h w 3"]:
    flipped = normals.cpu() * torch.tensor([1.0, -1.0, -1.0])
    # Without this, 0 would become -0.0 and files of equal sets would differ bitwise.
    return torch.where(normals.cpu() == 0, torch.zeros(()), flipped)
