"""Read and write Gaussians and point clouds as PLY files, in the layout that splat viewers read."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.recon.data.gaussians.cloud import GaussianCloud
from fieldwatch.recon.data.gaussians.ply import columns, read_vertices, write_matrix, write_vertices
from fieldwatch.recon.formats import PlyError, Table

_POSITION = ("x", "y", "z")
_NORMAL = ("nx", "ny", "nz")
_CONSTANT = ("f_dc_0", "f_dc_1", "f_dc_2")
_SCALES = ("scale_0", "scale_1", "scale_2")
_ROTATION = ("rot_0", "rot_1", "rot_2", "rot_3")
_COLOR = ("red", "green", "blue")
_NEEDED = (*_POSITION, *_CONSTANT, "opacity", *_SCALES, *_ROTATION)
_EIGHT_BIT = math.log(2 * 255 - 1)  # logit of 1 - 1 / 510, half an 8-bit step below 1
_REST_COUNTS = (0, 9, 24, 45)  # three channels of 0, 3, 8 or 15 functions


def read_gaussian_ply(path: Path | str) -> GaussianCloud:
    """Read the PLY file of a trained splat model, binary or ASCII, with SH degree 0 to 3 and columns in any order.

    Unknown columns are kept in `extra`; the normals (always 0) are dropped. Opacities of exactly 0 and 1, whose logits
    are infinite, come from formats that store opacities in 8 bits. They are moved half a step inward, which is recorded
    in `notes`.

    Raises:
        PlyError: if the file is missing, a Git LFS pointer, not PLY, damaged, a plain point cloud, or contains
            non-finite values.
    """
    path = Path(path).expanduser()
    table = read_vertices(path)
    names = table.dtype.names or ()
    _check_columns(path, names, len(table))
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
    logits, notes = _finite_opacities(path, _tensor(table, ["opacity"])[:, 0])
    cloud = GaussianCloud(
        means=_tensor(table, _POSITION),
        log_scales=_tensor(table, _SCALES),
        quaternions=_tensor(table, _ROTATION),
        opacity_logits=logits,
        constant=_tensor(table, _CONSTANT),
        rest=coefficients.mT.contiguous(),
        filter_3d=_tensor(table, ["filter_3D"])[:, 0] if "filter_3D" in names else None,
        extra={name: _tensor(table, [name])[:, 0] for name in names if name not in known},
        notes=notes,
    )
    _check_values(path, cloud)
    return cloud


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
    _refuse_infinite(path, {"x, y, z": points})
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


def _finite_opacities(path: Path, logits: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], tuple[str, ...]]:
    """Clamp infinite logits to half an 8-bit step inside (0, 1); return them and a note about it."""
    infinite = int(logits.isinf().sum())
    if not infinite:
        return logits, ()
    note = (
        f"{infinite} of {len(logits)} Gaussians of {path} have opacities of exactly 0 or 1, as written by 8-bit "
        "formats; they were set to 0.002 and 0.998, so that they can be trained"
    )
    return torch.where(logits.isinf(), logits.clamp(-_EIGHT_BIT, _EIGHT_BIT), logits), (note,)


def _check_columns(path: Path, names: Sequence[str], count: int) -> None:
    missing = [name for name in _NEEDED if name not in names]
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


def _check_values(path: Path, cloud: GaussianCloud) -> None:
    if not len(cloud):
        msg = (
            f"{path} contains no Gaussians (0 vertices): the training that wrote it pruned all of them; pass an "
            "earlier iteration"
        )
        raise PlyError(msg)
    columns_by_name = {
        "x, y, z": cloud.means,
        "scale": cloud.log_scales,
        "rot": cloud.quaternions,
        "opacity": cloud.opacity_logits,
        "f_dc": cloud.constant,
        "f_rest": cloud.rest,
    }
    _refuse_infinite(
        path, columns_by_name if cloud.filter_3d is None else {**columns_by_name, "filter_3D": cloud.filter_3d}
    )


def _refuse_infinite(path: Path, columns_by_name: dict[str, Tensor]) -> None:
    for name, values in columns_by_name.items():
        # The fast path needs no per-row reduction, which matters for millions of Gaussians.
        if bool(torch.isfinite(values).all()):
            continue
        rows = torch.nonzero(~torch.isfinite(values.flatten(1) if values.ndim > 1 else values[:, None]).all(1))[:, 0]
        msg = (
            f"{path}: {name} is not finite in {len(rows)} of {len(values)} vertices, the first in row {int(rows[0])}: "
            "the training that wrote it diverged; pass an earlier iteration, or remove these vertices"
        )
        raise PlyError(msg)
