"""Multiresolution hash encoding (Mueller 2022, Instant-NGP) with its Jacobian, trained without double backward.

Features and Jacobian are both linear in the table, so one native pass takes the gradients of both to it: an SDF's
normals, dMLP/dx + J^T dMLP/dF, are trained with `create_graph` through the small network alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fieldwatch import InputError
from fieldwatch.recon.render.native import call, native_available

_PRIMES = (1, 2654435761, 805459861)  # of the hash, per axis (eq. 4)
_SPREAD = 1e-4  # the table starts uniform in -_SPREAD .. _SPREAD (section 3)
# int32 offsets, and what float32 resolves
_MOST_BITS = 24
_MOST_FEATURES = 8
_MOST_LEVELS = 32
_FINEST = 1 << 20
_ROUNDING = 1e-9  # relative: keeps base * growth^level from falling just short of an integer
_SHOWN = 3  # decimals of a number in a message


@dataclass(frozen=True, kw_only=True)
class HashLevel:
    """One lattice of the encoding, whose corners are rows of the common table.

    Attributes:
        resolution: cells along an edge of the unit cube; it has (resolution + 1)^3 corners.
        start: its first row in the table.
        rows: how many it has: one per corner where they fit, the full 2^table_bits otherwise.
    """

    resolution: int
    start: int
    rows: int

    @property
    def hashed(self) -> bool:
        """Whether corners share rows."""
        return self.rows < (self.resolution + 1) ** 3


class HashEncoding(nn.Module):
    """Trainable features of points in the unit cube: `levels` lattices, trilinear in each, side by side.

    Level l has floor(base * (finest / base)^(l / (levels - 1))) cells along an edge (Mueller 2022, eq. 2-3) and its
    corners exactly on the faces of the cube. Where they fit into 2^table_bits rows each has its own, else they are
    hashed (eq. 4), without resolving collisions. The table starts uniform in +-1e-4.

    How many levels count is part of the state: `activate` sets it, `state_dict` holds it, so that a resumed run has the
    bandwidth that it stopped with. Level l has the weight (1 - cos(pi * clamp(active - l, 0, 1))) / 2 (Park 2021,
    Nerfies, eq. 8), on features and Jacobian alike; one of weight 0 gives zeros, gets no gradient and costs
    the kernels nothing.

    Points outside [0, 1] are refused, not clamped: aliased coordinates train, and give striped surfaces. A point that
    is NaN gives NaN, also as gradient, for the guard of the loop to see. Single precision on the CPU runs in native
    kernels, all else in plain torch (`hash_encode_reference`). On a GPU the check of the points is one host read.

    Args:
        levels: number of lattices, 1 to 32.
        base_resolution: cells along an edge of the coarsest.
        finest_resolution: of the finest; not below the base, up to 2^20.
        table_bits: log2 of the most rows that a level may have, 1 to 24.
        features_per_level: numbers per row, even, 2 to 8: the kernels move them in pairs.
        generator: draws the table; torch's default one, if None.

    Attributes:
        lattices: the levels, coarsest first.
        features: numbers per point, levels * features_per_level; level by level.
        table: the parameter; rows of all levels, one after the other.
        active_levels: how many levels count, 0 to `levels`; buffer of one number, which the state holds. It starts with
            all. Set it by `activate`.

    Raises:
        ValueError: a setting is out of its range.
    """

    def __init__(  # noqa: PLR0913  the settings of the paper's table 1
        self,
        *,
        levels: int = 16,
        base_resolution: int = 16,
        finest_resolution: int = 2048,
        table_bits: int = 19,
        features_per_level: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _bounded("levels", levels, 1, _MOST_LEVELS)
        _bounded("base_resolution", base_resolution, 1, _FINEST)
        _bounded("finest_resolution", finest_resolution, base_resolution, _FINEST)
        _bounded("table_bits", table_bits, 1, _MOST_BITS)
        _bounded("features_per_level", features_per_level, 2, _MOST_FEATURES)
        if features_per_level % 2:
            raise InputError(
                f"a hash encoding needs an even number of features_per_level, got {features_per_level}: they are moved "
                "in pairs"
            )
        self.lattices = _lattices(levels, base_resolution, finest_resolution, 1 << table_bits)
        self.features = levels * features_per_level
        rows = self.lattices[-1].start + self.lattices[-1].rows
        uniform = torch.rand(rows, features_per_level, generator=generator)
        self.table = nn.Parameter((2 * uniform - 1) * _SPREAD)
        self.active_levels: Float[Tensor, ""]
        self.register_buffer("active_levels", torch.tensor(float(levels)))

    def forward(self, points: Float[Tensor, "n 3"]) -> Float[Tensor, "n f"]:
        """Features of points in [0, 1]; gradients flow to the table and, once only, to the points.

        For derivatives that are trained themselves take `with_jacobian`: a backward pass with `create_graph=True`
        through the native kernels raises RuntimeError.

        Raises:
            ValueError: a point is outside [0, 1], or of another precision or device than the table.
        """
        weights = self.level_weights()
        if self._takes(points):
            return _Fused.apply(points, self.table, weights, self.lattices, False)[0]
        return _interpolated(points, self.table, self.lattices, weights, axis=None)

    def with_jacobian(self, points: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, "n f"], Float[Tensor, "n f 3"]]:
        """Features, and their derivatives by the three coordinates of the point.

        Gradients flow from both to the table and to the points; from the Jacobian to the points through the mixed
        second derivatives, as the others of a trilinear function are 0. On the faces between cells, where the Jacobian
        jumps, it is that of the cell above.

        The normals n = dMLP/dx + J^T dMLP/dF of an SDF f = MLP(x, F), where `at` is x as the network alone sees it:

            features, jacobian = encoding.with_jacobian(x)
            at = x.clone().requires_grad_()
            by_point, by_features = torch.autograd.grad(mlp(at, features).sum(), (at, features), create_graph=True)
            normals = by_point + torch.einsum("nf,nfd->nd", by_features, jacobian)

        Raises:
            ValueError: a point is outside [0, 1], or of another precision or device than the table.
        """
        weights = self.level_weights()
        if self._takes(points):
            return _Fused.apply(points, self.table, weights, self.lattices, True)
        return hash_encode_reference(points, self.table, self.lattices, weights)

    def activate(self, levels: float) -> None:
        """Let the first `levels` levels count; a fraction fades the next one in.

        Raises:
            ValueError: not between 0 and the number of levels.
        """
        most = len(self.lattices)
        if not 0 <= levels <= most:
            raise ValueError(f"{levels} of {most} levels cannot be active: give a number between 0 and {most}")
        self.active_levels.fill_(levels)

    def level_weights(self) -> Float[Tensor, "levels"]:
        """Factor of each level's features and Jacobian, 0 to 1."""
        order = torch.arange(len(self.lattices), device=self.table.device, dtype=self.table.dtype)
        share = (self.active_levels.to(self.table.dtype) - order).clamp(0, 1)
        return (1 - torch.cos(math.pi * share)) / 2

    def extra_repr(self) -> str:
        """Return what `print` shows: the lattices from coarse to fine, and the size of the table."""
        edges = ", ".join(str(level.resolution) for level in self.lattices)
        rows, width = self.table.shape
        return f"resolutions=({edges}), table={rows}x{width}, active_levels={self.active_levels.item():g}"

    def _takes(self, points: Tensor) -> bool:
        """Whether the kernels run on these points, which they check themselves; for all else they are checked here."""
        table = self.table
        if (points.dtype, points.device) != (table.dtype, table.device):
            raise ValueError(
                f"points are {points.dtype} on {points.device}, the table is {table.dtype} on {table.device}: bring "
                "the points there with points.to(encoding.table)"
            )
        if table.device.type == "cpu" and table.dtype == torch.float32 and native_available()[0]:
            return True
        _refuse_outside(points, int(((points < 0) | (points > 1)).any(dim=-1).sum()))
        return False


def hash_encode_reference(
    points: Float[Tensor, "n 3"],
    table: Float[Tensor, "rows width"],
    lattices: Sequence[HashLevel],
    weights: Float[Tensor, "levels"],
) -> tuple[Float[Tensor, "n f"], Float[Tensor, "n f 3"]]:
    """Compute features and Jacobian in plain torch, on any device and in any precision.

    What the native kernels are tested against; it can be differentiated any number of times. Points outside [0, 1]
    are extrapolated from the nearest cell.

    Args:
        points: in [0, 1].
        table: rows of all levels.
        lattices: the levels, as `HashEncoding.lattices`.
        weights: of the levels.
    """
    features = _interpolated(points, table, lattices, weights, axis=None)
    slopes = [_interpolated(points, table, lattices, weights, axis=axis) for axis in range(3)]
    return features, torch.stack(slopes, dim=-1)


class _Fused(torch.autograd.Function):
    """The native kernels: forward over points; backward over levels for the table, over points for the points."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, table: Tensor, weights: Tensor, *settings: Any) -> Any:
        lattices, with_jacobian = settings
        points = points.contiguous()
        table = table.contiguous()
        width = table.shape[1] * len(lattices)
        features = points.new_empty(len(points), width)
        jacobian = points.new_empty(len(points), width, 3) if with_jacobian else None
        grid = (len(points), points, len(lattices), table.shape[1], _layout(lattices), weights, table)
        outside_count = call("fw_encode", *grid, torch.get_num_threads(), features, jacobian)
        _refuse_outside(points, outside_count)
        ctx.save_for_backward(points, table, weights)
        ctx.lattices = lattices
        # An output that nothing depends on gets None instead of a tensor of zeros: the kernel skips it.
        ctx.set_materialize_grads(False)
        return features, jacobian

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        # Not torch's once_differentiable: where the incoming gradient is constant it would detach without a word.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the native hash encoding cannot be differentiated twice, and create_graph=True asked for that: take "
                "features and Jacobian from with_jacobian, and differentiate only the network after it that way"
            )
        points, table, weights = ctx.saved_tensors
        upstream = [None if part is None else part.contiguous() for part in gradients]
        dpoints = torch.empty_like(points) if ctx.needs_input_grad[0] else None
        dtable = torch.empty_like(table) if ctx.needs_input_grad[1] else None
        grid = (len(points), points, len(ctx.lattices), table.shape[1], _layout(ctx.lattices), weights, table)
        call("fw_encode_backward", *grid, torch.get_num_threads(), *upstream, dtable, dpoints)
        return dpoints, dtable, None, None, None


def _bounded(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"a hash encoding needs {name} between {least} and {most}, got {value}")


def _lattices(levels: int, base: int, finest: int, most_rows: int) -> tuple[HashLevel, ...]:
    growth = math.log(finest / base) / max(levels - 1, 1)
    lattices = []
    start = 0
    for level in range(levels):
        # Equations 2 and 3 of the paper; _ROUNDING keeps the finest level at exactly `finest`.
        resolution = math.floor(base * math.exp(growth * level) * (1 + _ROUNDING))
        rows = min((resolution + 1) ** 3, most_rows)
        lattices.append(HashLevel(resolution=resolution, start=start, rows=rows))
        start += rows
    return tuple(lattices)


def _layout(lattices: Sequence[HashLevel]) -> Int64[Tensor, "levels 3"]:
    """The levels as native/encoding.c reads them (`Level`)."""
    return torch.tensor([[level.resolution, level.start, level.rows] for level in lattices])


def _refuse_outside(points: Tensor, count: int) -> None:
    if count:
        least, most = (round(bound.item(), _SHOWN) for bound in (points.detach().min(), points.detach().max()))
        raise ValueError(
            f"{count} of {len(points)} points are outside [0, 1], where the encoding lives; coordinates run from "
            f"{least} to {most}: map the box of the scene to the unit cube first, (p - low) / (high - low), and leave "
            "out or clamp what lies beyond it"
        )


def _interpolated(
    points: Float[Tensor, "n 3"],
    table: Float[Tensor, "rows width"],
    lattices: Sequence[HashLevel],
    weights: Float[Tensor, "levels"],
    *,
    axis: int | None,
) -> Float[Tensor, "n f"]:
    """Features, or their derivatives by one coordinate: along that axis the weights of the corners are -+resolution."""
    per_level = []
    for level, weight in zip(lattices, weights.unbind(), strict=True):
        scaled = points * level.resolution
        # The clamp puts a point on the upper face of the cube into the last cell instead of one beyond it.
        cell = scaled.detach().floor().clamp(0, level.resolution - 1)
        fraction = scaled - cell
        # NaN has no integer: any row will do, since the weights of that point are NaN anyway.
        cell_index = torch.where(cell.isnan(), 0.0, cell).long()
        corner_weights = [
            torch.stack([1 - part, part], dim=-1) for part in fraction.unbind(-1)
        ]  # per axis: lower, upper corner
        if axis is not None:
            slope = points.new_tensor([-1.0, 1.0]) * level.resolution
            corner_weights[axis] = slope.expand_as(corner_weights[axis])
        corners = torch.einsum("ni,nj,nk->nijk", *corner_weights).flatten(1)
        per_level.append(weight * torch.einsum("nc,ncw->nw", corners, table[_rows(cell_index, level)]))
    return torch.cat(per_level, dim=-1)


def _rows(cell: Int64[Tensor, "n 3"], level: HashLevel) -> Int64[Tensor, "n 8"]:
    """Rows of a cell's corners in the table, z running fastest."""
    side = torch.arange(2, device=cell.device)
    x, y, z = (cell[:, axis, None] + side for axis in range(3))
    x = x[:, :, None, None]
    y = y[:, None, :, None]
    z = z[:, None, None, :]
    edge = level.resolution + 1
    if level.hashed:
        # Equation 4. The number of hashed rows is a power of two, so the mask is the modulo.
        rows = (x * _PRIMES[0] ^ y * _PRIMES[1] ^ z * _PRIMES[2]) & (level.rows - 1)
    else:
        rows = x + edge * (y + edge * z)
    return level.start + rows.flatten(1)
