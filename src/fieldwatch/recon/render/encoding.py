"""Multiresolution hash encoding (Mueller 2022, Instant-NGP) with its Jacobian, trained without double backward.

Features and Jacobian are both linear in the table, so one native pass backpropagates both. The normals of an SDF,
dMLP/dx + J^T dMLP/dF, therefore need `create_graph` for the small network only.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fieldwatch import InputError
from fieldwatch.recon.render.native import call, native_available
from fieldwatch.recon.transfers import constant

_PRIMES = (1, 2654435761, 805459861)  # hash factors of the axes (eq. 4)
_SPREAD = 1e-4  # the initial table is uniform in [-_SPREAD, _SPREAD] (section 3)
# Limits from int32 offsets in the kernels and from the resolution of float32.
_MOST_BITS = 24
_MOST_FEATURES = 8
_MOST_LEVELS = 32
_FINEST = 1 << 20
_ROUNDING = 1e-9  # relative tolerance that keeps base * growth^level from rounding below an integer
_SHOWN = 3  # decimals in messages


@dataclass(frozen=True, kw_only=True)
class HashLevel:
    """One lattice of the encoding; its corners map to rows of the shared table.

    Attributes:
        resolution: cells along an edge of the unit cube; the lattice has (resolution + 1)^3 corners.
        start: first row of the lattice in the table.
        rows: number of rows: one per corner if they fit, else 2^table_bits.
    """

    resolution: int
    start: int
    rows: int

    @property
    def hashed(self) -> bool:
        """Whether corners share rows of the table."""
        return self.rows < (self.resolution + 1) ** 3


class HashEncoding(nn.Module):
    """Trainable features of points in the unit cube, interpolated trilinearly in `levels` lattices and concatenated.

    Level l has floor(base * (finest / base)^(l / (levels - 1))) cells along an edge (Mueller 2022, eq. 2-3), with
    corners exactly on the faces of the cube. If its corners fit into 2^table_bits rows, each has a separate row; else
    they are hashed (eq. 4) without resolving collisions. The table is initialized uniformly in +-1e-4.

    The number of active levels is part of the state: `activate` sets it and `state_dict` has it, so a resumed run
    continues with the same bandwidth. Level l has the weight (1 - cos(pi * clamp(active - l, 0, 1))) / 2 (Park 2021,
    Nerfies, eq. 8) for features and Jacobian. A level of weight 0 gives zeros, gets no gradient and takes no time in
    the kernels.

    Points outside [0, 1] are an error, not clamped: training with aliased coordinates works, but produces striped
    surfaces. A NaN point gives NaN features and gradients, so the guard of the loop detects it. Single precision on the
    CPU runs in native kernels, everything else in plain torch (`hash_encode_reference`). On a GPU, checking the points
    takes one host read.

    Args:
        levels: number of lattices, 1 to 32.
        base_resolution: cells along an edge of the coarsest lattice.
        finest_resolution: cells along an edge of the finest lattice; at least the base resolution, at most 2^20.
        table_bits: log2 of the maximum number of rows per level, 1 to 24.
        features_per_level: features per row; an even number from 2 to 8, because the kernels process pairs.
        generator: random generator of the initial table; None uses the default one of torch.

    Attributes:
        lattices: lattices, coarsest first.
        features: number of features per point, levels * features_per_level, ordered by level.
        table: parameter with the rows of all levels, concatenated.
        active_levels: buffer with the number of active levels, 0 to `levels`; initially all. Set it by `activate`.

    Raises:
        ValueError: a setting is out of range.
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
                f"features_per_level of a hash encoding must be even, got {features_per_level}: the kernels process "
                "pairs"
            )
        self.lattices = _lattices(levels, base_resolution, finest_resolution, 1 << table_bits)
        self.features = levels * features_per_level
        rows = self.lattices[-1].start + self.lattices[-1].rows
        uniform = torch.rand(rows, features_per_level, generator=generator)
        self.table = nn.Parameter((2 * uniform - 1) * _SPREAD)
        self.active_levels: Float[Tensor, ""]
        self.register_buffer("active_levels", torch.tensor(float(levels)))
        self._activated: tuple[float, Tensor, int] | None = None  # levels, in which tensor, at which version

    def forward(self, points: Float[Tensor, "n 3"]) -> Float[Tensor, "n f"]:
        """Return the features of points in [0, 1]; gradients flow to the table and, once only, to the points.

        To train derivatives, use `with_jacobian`: a backward pass with `create_graph=True` through the native kernels
        raises RuntimeError.

        Raises:
            ValueError: a point is outside [0, 1], or precision or device differ from those of the table.
        """
        weights = self.level_weights()
        if self._fits_kernel(points):
            return _Fused.apply(points, self.table, weights, self.lattices, False)[0]
        return _interpolated_at_once(points, self.table, self.lattices, weights, axes=())[0]

    def with_jacobian(self, points: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, "n f"], Float[Tensor, "n f 3"]]:
        """Return the features and their derivatives with respect to the three coordinates.

        Gradients flow from both to the table and the points. From the Jacobian to the points they flow through the
        mixed second derivatives; the others of a trilinear function are 0. On faces between cells, where the Jacobian
        is discontinuous, it is that of the upper cell.

        Example: the normals n = dMLP/dx + J^T dMLP/dF of an SDF f = MLP(x, F), where `at` is the copy of x that only
        the network uses:

            features, jacobian = encoding.with_jacobian(x)
            at = x.clone().requires_grad_()
            by_point, by_features = torch.autograd.grad(mlp(at, features).sum(), (at, features), create_graph=True)
            normals = by_point + torch.einsum("nf,nfd->nd", by_features, jacobian)

        Raises:
            ValueError: a point is outside [0, 1], or precision or device differ from those of the table.
        """
        weights = self.level_weights()
        if self._fits_kernel(points):
            return _Fused.apply(points, self.table, weights, self.lattices, True)
        features, *slopes = _interpolated_at_once(points, self.table, self.lattices, weights, axes=(0, 1, 2))
        return features, torch.stack(slopes, dim=-1)

    def activate(self, levels: float) -> None:
        """Activate the first `levels` levels; a fractional part fades in the next one.

        Raises:
            ValueError: `levels` is not between 0 and the number of levels.
        """
        most = len(self.lattices)
        if not 0 <= levels <= most:
            raise ValueError(f"the number of active levels must be between 0 and {most}, got {levels}")
        known = self._activated
        active = self.active_levels
        # Spares a GPU a launch in most steps.
        if known is None or known[0] != levels or known[1] is not active or known[2] != active._version:  # noqa: SLF001  counts writes
            active.fill_(levels)
            self._activated = (levels, active, active._version)  # noqa: SLF001  as above

    def level_weights(self) -> Float[Tensor, "levels"]:
        """Return the weight of each level, 0 to 1."""
        order = torch.arange(len(self.lattices), device=self.table.device, dtype=self.table.dtype)
        # Coarse levels become active first.
        share = (self.active_levels.to(self.table.dtype) - order).clamp(0, 1)
        return (1 - torch.cos(math.pi * share)) / 2

    def extra_repr(self) -> str:
        """Return the resolutions and the size of the table for `print`."""
        edges = ", ".join(str(level.resolution) for level in self.lattices)
        rows, width = self.table.shape
        return f"resolutions=({edges}), table={rows}x{width}, active_levels={self.active_levels.item():g}"

    def _fits_kernel(self, points: Tensor) -> bool:
        """Return whether the native kernels, which check the range of points, support them; else check it here."""
        table = self.table
        if (points.dtype, points.device) != (table.dtype, table.device):
            raise ValueError(
                f"points are {points.dtype} on {points.device}, but the table is {table.dtype} on {table.device}: "
                "convert them with points.to(encoding.table)"
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

    This is the reference of the native kernels, and can be differentiated any number of times. Points outside [0, 1]
    are extrapolated from the nearest cell.

    Args:
        points: points in [0, 1].
        table: rows of all levels.
        lattices: lattices, as in `HashEncoding.lattices`.
        weights: weight of each level.
    """
    features = _interpolated(points, table, lattices, weights, axis=None)
    slopes = [_interpolated(points, table, lattices, weights, axis=axis) for axis in range(3)]
    return features, torch.stack(slopes, dim=-1)


class _Fused(torch.autograd.Function):
    """The native kernels, parallel over points; the backward pass of the table is parallel over levels."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, table: Tensor, weights: Tensor, *settings: Any) -> Any:
        lattices, with_jacobian = settings
        points = points.contiguous()
        table = table.contiguous()
        width = table.shape[1] * len(lattices)
        features = points.new_empty(len(points), width)
        jacobian = points.new_empty(len(points), width, 3) if with_jacobian else None
        grid = (len(points), points, *grid_arguments(lattices, weights, table))
        outside_count = call("fw_encode", *grid, torch.get_num_threads(), features, jacobian)
        _refuse_outside(points, outside_count)
        ctx.save_for_backward(points, table, weights)
        ctx.lattices = lattices
        # Unused outputs get None instead of zeros as gradient, which the kernel skips.
        ctx.set_materialize_grads(False)
        return features, jacobian

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        # Not torch's once_differentiable: for a constant incoming gradient it detaches silently.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the native hash encoding cannot be differentiated twice, as create_graph=True requires: use "
                "with_jacobian, and create_graph=True only for the network after it"
            )
        points, table, weights = ctx.saved_tensors
        upstream = [None if part is None else part.contiguous() for part in gradients]
        dpoints = torch.empty_like(points) if ctx.needs_input_grad[0] else None
        # The kernel overwrites requested gradients and skips null pointers.
        dtable = torch.empty_like(table) if ctx.needs_input_grad[1] else None
        grid = (len(points), points, *grid_arguments(ctx.lattices, weights, table))
        call("fw_encode_backward", *grid, torch.get_num_threads(), *upstream, dtable, dpoints)
        return dpoints, dtable, None, None, None


def _bounded(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{name} of a hash encoding must be between {least} and {most}, got {value}")


def _lattices(levels: int, base: int, finest: int, most_rows: int) -> tuple[HashLevel, ...]:
    growth = math.log(finest / base) / max(levels - 1, 1)
    lattices = []
    start = 0
    for level in range(levels):
        # Equations 2 and 3; _ROUNDING keeps the finest level at exactly `finest`.
        resolution = math.floor(base * math.exp(growth * level) * (1 + _ROUNDING))
        rows = min((resolution + 1) ** 3, most_rows)
        lattices.append(HashLevel(resolution=resolution, start=start, rows=rows))
        start += rows
    return tuple(lattices)


def grid_arguments(
    lattices: Sequence[HashLevel], weights: Float[Tensor, "levels"], table: Float[Tensor, "rows features"]
) -> tuple[Any, ...]:
    """Return the arguments with which native kernels take an encoding.

    Args:
        lattices: lattices of the encoding.
        weights: weight of each level.
        table: features, contiguous.
    """
    return len(lattices), table.shape[1], _layout(lattices), weights, table


def _layout(lattices: Sequence[HashLevel]) -> Int64[Tensor, "levels 3"]:
    """Lay out the levels as an array of `Level` of native/encoding.c."""
    return torch.tensor([[level.resolution, level.start, level.rows] for level in lattices])


def _refuse_outside(points: Tensor, count: int) -> None:
    if count:
        least, most = (round(bound.item(), _SHOWN) for bound in (points.detach().min(), points.detach().max()))
        raise ValueError(
            f"{count} of {len(points)} points are outside [0, 1], the domain of the encoding; coordinates range from "
            f"{least} to {most}: map the box of the scene to the unit cube first, (p - low) / (high - low), and remove "
            "or clamp points outside it"
        )


def _interpolated(
    points: Float[Tensor, "n 3"],
    table: Float[Tensor, "rows width"],
    lattices: Sequence[HashLevel],
    weights: Float[Tensor, "levels"],
    *,
    axis: int | None,
) -> Float[Tensor, "n f"]:
    """Return features or, with `axis`, their derivative by one coordinate.

    For the derivative, the weights of the corners along that axis are -resolution and +resolution.
    """
    per_level = []
    for level, weight in zip(lattices, weights.unbind(), strict=True):
        scaled = points * level.resolution
        # The clamp assigns points on the upper face of the cube to the last cell instead of one beyond it.
        cell = scaled.detach().floor().clamp(0, level.resolution - 1)
        fraction = scaled - cell
        # NaN does not convert to an integer: use any row, because the weights of that point are NaN anyway.
        cell_index = torch.where(cell.isnan(), 0.0, cell).long()
        # Per axis: weights of the lower and the upper corner.
        corner_weights = [torch.stack([1 - part, part], dim=-1) for part in fraction.unbind(-1)]
        if axis is not None:
            slope = constant((-1.0, 1.0), points) * level.resolution
            corner_weights[axis] = slope.expand_as(corner_weights[axis])
        corners = torch.einsum("ni,nj,nk->nijk", *corner_weights).flatten(1)
        per_level.append(weight * torch.einsum("nc,ncw->nw", corners, table[_rows(cell_index, level)]))
    return torch.cat(per_level, dim=-1)


def _rows(cell: Int64[Tensor, "n 3"], level: HashLevel) -> Int64[Tensor, "n 8"]:
    """Return the table rows of the corners of cells, with z fastest."""
    side = torch.arange(2, device=cell.device)
    x, y, z = (cell[:, axis, None] + side for axis in range(3))
    x = x[:, :, None, None]
    y = y[:, None, :, None]
    z = z[:, None, None, :]
    edge = level.resolution + 1
    if level.hashed:
        # Equation 4. The number of hashed rows is a power of two, so the mask is a modulo.
        rows = (x * _PRIMES[0] ^ y * _PRIMES[1] ^ z * _PRIMES[2]) & (level.rows - 1)
    else:
        rows = x + edge * (y + edge * z)
    return level.start + rows.flatten(1)


def _interpolated_at_once(
    points: Float[Tensor, "n 3"],
    table: Float[Tensor, "rows width"],
    lattices: Sequence[HashLevel],
    weights: Float[Tensor, "levels"],
    *,
    axes: Sequence[int],
) -> list[Float[Tensor, "n f"]]:
    """Return features and their derivatives by coordinates, for all levels and derivatives at once.

    A GPU takes as long to launch an operation for one level as for all of them. The table is read once, and its
    gradient is a single sorted sum, which repeats to the bit.
    """
    resolution = constant(tuple(float(level.resolution) for level in lattices), points)[:, None]
    scaled = points[:, None, :] * resolution
    # The clamp assigns points on the upper face of the cube to the last cell instead of one beyond it.
    cell = torch.minimum(scaled.detach().floor().clamp_min(0), resolution - 1)
    fraction = scaled - cell
    # NaN does not convert to an integer: use any row, because the weights of that point are NaN anyway.
    rows = _rows_at_once(torch.where(cell.isnan(), 0.0, cell).long(), lattices)
    # Per axis: weights of the lower and the upper corner, then their derivatives.
    along = torch.stack([1 - fraction, fraction], dim=-1).unbind(2)
    slope = (constant((-1.0, 1.0), points) * resolution).expand_as(along[0])
    factors = [along, *([slope if axis == turned else along[axis] for axis in range(3)] for turned in axes)]
    corners = torch.stack(
        [(x[..., :, None, None] * y[..., None, :, None] * z[..., None, None, :]).flatten(2) for x, y, z in factors], 2
    )
    blended = torch.einsum("nlkc,nlcw->knlw", corners, table[rows]) * weights[:, None]
    return list(blended.flatten(2).unbind())


def _rows_at_once(cell: Int64[Tensor, "n levels 3"], lattices: Sequence[HashLevel]) -> Int64[Tensor, "n levels 8"]:
    """Return the table rows of the corners of cells in all levels, with z fastest."""

    def per_level(numbers: Iterable[int]) -> Int64[Tensor, "levels 1"]:
        return constant(tuple(numbers), cell)[:, None]

    sides = cell[..., None] + torch.arange(2, device=cell.device)
    x = sides[:, :, 0, :, None, None]
    y = sides[:, :, 1, None, :, None]
    z = sides[:, :, 2, None, None, :]
    edge = per_level(level.resolution + 1 for level in lattices)[..., None, None]
    rows = (x + edge * (y + edge * z)).flatten(2)
    if any(level.hashed for level in lattices):
        # Equation 4. The number of hashed rows is a power of two, so the mask is a modulo.
        hashed = (x * _PRIMES[0] ^ y * _PRIMES[1] ^ z * _PRIMES[2]).flatten(2)
        hashed = hashed & per_level(level.rows - 1 for level in lattices)
        rows = torch.where(per_level(level.hashed for level in lattices) > 0, hashed, rows)
    return rows + per_level(level.start for level in lattices)
