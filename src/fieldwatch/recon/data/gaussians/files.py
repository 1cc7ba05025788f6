"""Gaussians to and from PLY files, in the layout that splat viewers read."""

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
_COLOUR = ("red", "green", "blue")
_NEEDED = (*_POSITION, *_CONSTANT, "opacity", *_SCALES, *_ROTATION)
_EIGHT_BIT = math.log(2 * 255 - 1)  # logit of 1 - half a step of 8 bits
_REST_COUNTS = (0, 9, 24, 45)  # three channels of 0, 3, 8 or 15 functions


def read_gaussian_ply(path: Path | str) -> GaussianCloud:
    """Read the PLY of a trained splat model: columns in any order, binary or ASCII, spherical harmonics of degree 0..3.

    Columns that are not known are kept in `extra`; the normals (always 0) are dropped. Opacities of exactly 0 and 1,
    whose logits are infinite, come from formats that store them in 8 bits; they are brought half a step inside, and
    `notes` say so.

    Raises:
        PlyError: the file is missing, a Git LFS pointer, not PLY, damaged, a plain point cloud, or holds values that
            are not finite; the message says which.
    """
    path = Path(path).expanduser()
    table = read_vertices(path)
    names = table.dtype.names or ()
    _check_columns(path, names, len(table))
    rest = [f"f_rest_{i}" for i in range(sum(name.startswith("f_rest_") for name in names))]
    if len(rest) not in _REST_COUNTS or not set(rest) <= set(names):
        msg = (
            f"{path} has {len(rest)} columns f_rest_*, spherical harmonics of degree 0 to 3 have "
            f"{', '.join(map(str, _REST_COUNTS))}, numbered from 0: write the file again"
        )
        raise PlyError(msg)
    known = {*_NEEDED, *rest, *_NORMAL, "filter_3D"}
    # The file stores all coefficients of red, then green, then blue.
    harmonics = torch.from_numpy(columns(table, rest)).unflatten(1, (3, -1)) if rest else torch.zeros(len(table), 3, 0)
    logits, notes = _finite_opacities(path, _tensor(table, ["opacity"])[:, 0])
    cloud = GaussianCloud(
        means=_tensor(table, _POSITION),
        log_scales=_tensor(table, _SCALES),
        quaternions=_tensor(table, _ROTATION),
        opacity_logits=logits,
        constant=_tensor(table, _CONSTANT),
        rest=harmonics.mT.contiguous(),
        filter_3d=_tensor(table, ["filter_3D"])[:, 0] if "filter_3D" in names else None,
        extra={name: _tensor(table, [name])[:, 0] for name in names if name not in known},
        notes=notes,
    )
    _check_values(path, cloud)
    return cloud


def write_gaussian_ply(path: Path | str, cloud: GaussianCloud) -> Path:
    """Write Gaussians as splat viewers read them: float32, binary little endian; whole or not at all.

    `filter_3d` and `extra` follow as columns of their own, which viewers skip; `cloud.fused()` makes them unnecessary.
    """
    path = Path(path)
    # Back to the file's order: channel by channel.
    channels_first = cloud.rest.detach().mT.flatten(1)
    blocks: list[tuple[Sequence[str], Tensor]] = [
        (_POSITION, cloud.means),
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
    """Read a plain point cloud: x, y, z and red, green, blue (white where there is no colour).

    Raises:
        PlyError: the file is missing, a Git LFS pointer, not PLY, damaged, or holds values that are not finite.
    """
    path = Path(path).expanduser()
    table = read_vertices(path)
    names = table.dtype.names or ()
    missing = [name for name in _POSITION if name not in names]
    if missing:
        msg = f"{path} has no column {', '.join(missing)} (it has {', '.join(names)}): give a cloud of points in space"
        raise PlyError(msg)
    points = _tensor(table, _POSITION)
    _refuse_infinite(path, {"x, y, z": points})
    if not set(_COLOUR) <= set(names):
        return points, torch.full((len(points), 3), 255, dtype=torch.uint8)
    # Integer colors count to 255, floating-point ones to 1.
    whole = all(np.issubdtype(table.dtype[name], np.integer) for name in _COLOUR)
    colours = columns(table, _COLOUR) * (1 if whole else 255)
    return points, torch.from_numpy(np.rint(colours).clip(0, 255).astype(np.uint8))


def write_point_ply(path: Path | str, points: Float[Tensor, "points 3"], colours: UInt8[Tensor, "points 3"]) -> Path:
    """Write a plain point cloud, with normals of 0, as 3D Gaussian splatting keeps its first points."""
    kinds = [(name, "<f4") for name in (*_POSITION, *_NORMAL)] + [(name, "u1") for name in _COLOUR]
    rows: NDArray[np.void] = np.zeros(len(points), np.dtype(kinds))
    for i in range(3):
        rows[_POSITION[i]] = points[:, i].cpu().numpy()
        rows[_COLOUR[i]] = colours[:, i].cpu().numpy()
    write_vertices(Path(path), rows)
    return Path(path)


def _tensor(table: Table, names: Sequence[str]) -> Tensor:
    return torch.from_numpy(np.array(columns(table, names), np.float32, order="C"))


def _finite_opacities(path: Path, logits: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], tuple[str, ...]]:
    """Bring opacities of exactly 0 and 1 to where 8 bits would have rounded them from."""
    infinite = int(logits.isinf().sum())
    if not infinite:
        return logits, ()
    note = (
        f"{infinite} of {len(logits)} Gaussians of {path} have opacities of exactly 0 or 1, as 8-bit formats have; "
        "they start from 0.002 and 0.998, so that it can be trained"
    )
    return torch.where(logits.isinf(), logits.clamp(-_EIGHT_BIT, _EIGHT_BIT), logits), (note,)


def _check_columns(path: Path, names: Sequence[str], count: int) -> None:
    missing = [name for name in _NEEDED if name not in names]
    if not missing:
        return
    if "f_dc_0" in missing:
        kind = "a plain point cloud" if set(_POSITION) <= set(names) else "something else than Gaussians"
        msg = (
            f"{path} has no colours of Gaussians (f_dc_0, f_dc_1, f_dc_2): it is {kind} of {count} vertices with "
            f"{', '.join(names[:12])}; give point_cloud/iteration_N/point_cloud.ply of a trained model"
        )
    else:
        msg = f"{path} lacks {', '.join(missing)}, which Gaussians need: it was cut or written by another tool"
    raise PlyError(msg)


def _check_values(path: Path, cloud: GaussianCloud) -> None:
    if not len(cloud):
        msg = f"{path} holds no Gaussian (0 vertices): the training that wrote it lost them all; give an earlier one"
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
        if bool(torch.isfinite(values).all()):
            continue
        rows = torch.nonzero(~torch.isfinite(values.flatten(1) if values.ndim > 1 else values[:, None]).all(1))[:, 0]
        msg = (
            f"{path}: {name} is not finite in {len(rows)} of {len(values)} vertices, the first is row {int(rows[0])}: "
            "the training that wrote it diverged; give an earlier iteration, or remove these vertices"
        )
        raise PlyError(msg)
