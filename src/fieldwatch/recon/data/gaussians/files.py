"""Read and write Gaussians and point clouds as PLY files, in the layout that splat viewers read."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.recon.data.gaussians.checks import finite_opacities, infinite_values, problem_of
from fieldwatch.recon.data.gaussians.cloud import GaussianCloud
from fieldwatch.recon.data.gaussians.compressed_ply import is_compressed, read_compressed
from fieldwatch.recon.data.gaussians.ply import columns, read_elements, read_vertices, write_matrix, write_vertices
from fieldwatch.recon.formats import PlyError, Table

_POSITION = ("x", "y", "z")
_NORMAL = ("nx", "ny", "nz")
_CONSTANT = ("f_dc_0", "f_dc_1", "f_dc_2")
_SCALES = ("scale_0", "scale_1", "scale_2")
_ROTATION = ("rot_0", "rot_1", "rot_2", "rot_3")
_COLOR = ("red", "green", "blue")
_NEEDED = (*_POSITION, *_CONSTANT, "opacity", *_SCALES, *_ROTATION)
_FLAT = 1e-3  # thickness of the discs of 2D Gaussian splatting, as a fraction of their smaller radius
_REST_COUNTS = (0, 9, 24, 45)  # three channels of 0, 3, 8 or 15 functions


def read_gaussian_ply(path: Path | str) -> GaussianCloud:
    """Read the PLY file of a trained splat model, binary or ASCII, with SH degree 0 to 3 and columns in any order.

    The compressed PLY of SuperSplat and the PLY of 2D Gaussian splatting, which has two scales, are read as well.
    Unknown columns are kept in `extra`; the normals (always 0) are dropped. Opacities of exactly 0 and 1, whose logits
    are infinite, come from formats that store opacities in 8 bits. They are moved half a step inward, which is recorded
    in `notes`.

    Raises:
        PlyError: if the file is missing, a Git LFS pointer, not PLY, damaged, a plain point cloud, or contains
            non-finite values.
    """
    path = Path(path).expanduser()
    tables = read_elements(path)
    if is_compressed(tables):
        return _finite(path, read_compressed(path, tables))
    table = tables["vertex"]
    names = table.dtype.names or ()
    flat = _SCALES[2] not in names and set(_SCALES[:2]) <= set(names)
    _check_columns(path, names, [name for name in _NEEDED if not (flat and name == _SCALES[2])], len(table))
    # Counting first detects files whose columns are not numbered from 0.
    rest = [f"f_rest_{i}" for i in range(sum(name.startswith("f_rest_") for name in names))]
    if len(rest) not in _REST_COUNTS or not set(rest) <= set(names):
        msg = (
            f"{path} has {len(rest)} columns f_rest_*: expected {', '.join(map(str, _REST_COUNTS))} (SH degree 0 to "
            "3), numbered from 0; write the file again"
        )
        raise PlyError(msg)
    known = {*_NEEDED, *rest, *_NORMAL, "filter_3D"}
    # The file is channel-major: all coefficients of red, then green, then blue.
    coefficients = (
        torch.from_numpy(columns(table, rest)).unflatten(1, (3, -1)) if rest else torch.zeros(len(table), 3, 0)
    )
    logits, notes = finite_opacities(path, _tensor(table, ["opacity"])[:, 0])
    log_scales = _tensor(table, _SCALES[:2] if flat else _SCALES)
    if flat:
        log_scales, thickness_note = _with_thickness(log_scales)
        notes = (*notes, *thickness_note)
    cloud = GaussianCloud(
        means=_tensor(table, _POSITION),
        log_scales=log_scales,
        quaternions=_tensor(table, _ROTATION),
        opacity_logits=logits,
        constant=_tensor(table, _CONSTANT),
        rest=coefficients.mT.contiguous(),
        filter_3d=_tensor(table, ["filter_3D"])[:, 0] if "filter_3D" in names else None,
        extra={name: _tensor(table, [name])[:, 0] for name in names if name not in known},
        notes=notes,
    )
    return _finite(path, cloud)


def write_gaussian_ply(path: Path | str, cloud: GaussianCloud) -> Path:
    """Write Gaussians atomically as a float32, binary little-endian PLY file that splat viewers read.

    `filter_3d` and `extra` are written as additional columns, which viewers ignore. Write `cloud.fused()` for viewers
    that should show the effect of `filter_3d`.
    """
    path = Path(path)
    # Back to the channel-major order of the file.
    channels_first = cloud.rest.detach().mT.flatten(1)
    blocks: list[tuple[Sequence[str], Tensor]] = [
        (_POSITION, cloud.means),
        # Some viewers require the normals that 3D Gaussian splatting writes as 0.
        (_NORMAL, torch.zeros_like(cloud.means)),
        (_CONSTANT, cloud.constant),
        ([f"f_rest_{i}" for i in range(channels_first.shape[1])], channels_first),
        (["opacity"], cloud.opacity_logits[:, None]),
        (_SCALES, cloud.log_scales),
        (_ROTATION, cloud.quaternions),
    ]
    if cloud.filter_3d is not None:
        blocks.append((["filter_3D"], cloud.filter_3d[:, None]))
    blocks += [([name], values[:, None]) for name, values in cloud.extra.items()]
    names = [name for block_names, _ in blocks for name in block_names]
    matrix = np.empty((len(cloud), len(names)), np.float32)
    column = 0
    for block_names, values in blocks:
        matrix[:, column : column + len(block_names)] = values.detach().cpu().float().numpy()
        column += len(block_names)
    write_matrix(path, names, matrix)
    return path


def read_point_ply(path: Path | str) -> tuple[Float[Tensor, "points 3"], UInt8[Tensor, "points 3"]]:
    """Read the positions and RGB colors of a plain point cloud. Points without color are white.

    Raises:
        PlyError: if the file is missing, a Git LFS pointer, not PLY, damaged, or contains non-finite positions.
    """
    path = Path(path).expanduser()
    table = read_vertices(path)
    names = table.dtype.names or ()
    missing = [name for name in _POSITION if name not in names]
    if missing:
        msg = f"{path} has no column {', '.join(missing)} (it has {', '.join(names)}): pass a 3D point cloud"
        raise PlyError(msg)
    points = _tensor(table, _POSITION)
    if problem := infinite_values(path, {"x, y, z": points}):
        raise PlyError(problem)
    if not set(_COLOR) <= set(names):
        return points, torch.full((len(points), 3), 255, dtype=torch.uint8)
    # By convention, integer colors range to 255 and floating-point colors to 1.
    integral = all(np.issubdtype(table.dtype[name], np.integer) for name in _COLOR)
    colors = columns(table, _COLOR) * (1 if integral else 255)
    return points, torch.from_numpy(np.rint(colors).clip(0, 255).astype(np.uint8))


def write_point_ply(path: Path | str, points: Float[Tensor, "points 3"], colors: UInt8[Tensor, "points 3"]) -> Path:
    """Write a plain point cloud with zero normals, the layout of 3D Gaussian splatting's initial points."""
    kinds = [(name, "<f4") for name in (*_POSITION, *_NORMAL)] + [(name, "u1") for name in _COLOR]
    rows: NDArray[np.void] = np.zeros(len(points), np.dtype(kinds))
    for i in range(3):
        rows[_POSITION[i]] = points[:, i].cpu().numpy()
        rows[_COLOR[i]] = colors[:, i].cpu().numpy()
    write_vertices(Path(path), rows)
    return Path(path)


def _tensor(table: Table, names: Sequence[str]) -> Tensor:
    # The copy keeps a small tensor from holding the whole table in memory.
    return torch.from_numpy(np.array(columns(table, names), np.float32, order="C"))


def _check_columns(path: Path, names: Sequence[str], needed: Sequence[str], count: int) -> None:
    missing = [name for name in needed if name not in names]
    if not missing:
        return
    # Passing the initial point cloud instead of a trained model is the most common mistake.
    if "f_dc_0" in missing:
        kind = "a plain point cloud" if set(_POSITION) <= set(names) else "not a splat model"
        msg = (
            f"{path} has no Gaussian colors (f_dc_0, f_dc_1, f_dc_2): it is {kind}, with {count} vertices and the "
            f"columns {', '.join(names[:12])}; pass point_cloud/iteration_N/point_cloud.ply of a trained model"
        )
    else:
        msg = (
            f"{path} is missing {', '.join(missing)}, which Gaussians require: columns were removed, or the file was "
            "written by another tool; export it again with all of them"
        )
    raise PlyError(msg)


def _with_thickness(log_scales: Float[Tensor, "n 2"]) -> tuple[Float[Tensor, "n 3"], tuple[str, ...]]:
    """Return the scales of flat Gaussians with a third one along the normal, the third axis of 2DGS; and a note."""
    thickness = log_scales.amin(1, keepdim=True) + math.log(_FLAT)
    note = (
        f"the file has two scales per Gaussian, as 2D Gaussian splatting writes them: the third, along the normal, was "
        f"set to {_FLAT:g} of the smaller of the two"
    )
    return torch.cat([log_scales, thickness], 1), (note,)


def _finite(path: Path, cloud: GaussianCloud) -> GaussianCloud:
    if problem := problem_of(path, cloud):
        raise PlyError(problem)
    return cloud
