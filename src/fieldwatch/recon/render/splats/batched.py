"""Splat rasterization in batched torch operations, for GPUs without gsplat: all tiles at once, front to back in chunks.

Every sum has a fixed order, over pixels by a matrix product and over tiles by segments, so that images and gradients
repeat to the bit on the same device and version of torch. The host waits once per image, for the number of Gaussians
per tile.
"""

import functools
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwatch.recon.render.splats.projection import project
from fieldwatch.recon.render.splats.reference import image_boxes
from fieldwatch.recon.render.splats.spherical_harmonics import sh_colors
from fieldwatch.recon.render.splats.stages import (
    CEILING,
    OPAQUE,
    THRESHOLD,
    BlendedImage,
    ProjectedGaussians,
    RasterBackend,
    RasterOptions,
)
from fieldwatch.recon.render.splats.view import View

_TILE = 16
_LEAST_CHUNK = 16  # Gaussians per step
_LARGEST_CHUNK = 256
_CHUNK_VALUES = 1 << 22  # values in each of the ten or so arrays of a step: 16 MB in single precision


@dataclass(frozen=True, kw_only=True, eq=False)
class _TileLists:
    """The Gaussians of each tile, front to back, as pairs of a Gaussian and a tile.

    Attributes:
        columns: tiles across the image.
        rows: tiles down the image.
        tiles: tiles, those with the most Gaussians first.
        starts: first pair of each of `tiles`.
        lengths: number of pairs of each of `tiles`.
        host_lengths: `lengths` on the host.
        gaussians: row of the Gaussian of each pair; pairs are sorted by tile, then by depth.
        pair_order: position of each pair in the order in which the pairs of a Gaussian are adjacent.
        depth_order: Gaussians by depth, which is also their order in `pair_order`.
        tiles_per_gaussian: number of pairs of each Gaussian, in `depth_order`.
    """

    columns: int
    rows: int
    tiles: Int64[Tensor, " tiles"]
    starts: Int64[Tensor, " tiles"]
    lengths: Int64[Tensor, " tiles"]
    host_lengths: list[int]
    gaussians: Int64[Tensor, " pairs"]
    pair_order: Int64[Tensor, " pairs"]
    depth_order: Int64[Tensor, " visible"]
    tiles_per_gaussian: Int64[Tensor, " visible"]

    @functools.cached_property
    def chunks(self) -> list[range]:
        """Positions within the lists, cut into chunks; the fewer tiles have Gaussians there, the longer is a chunk."""
        chunks: list[range] = []
        offset = 0
        longest = self.host_lengths[0]
        while offset < longest:
            fitting = _CHUNK_VALUES // (self.active(offset) * _TILE * _TILE)
            size = min(max(fitting, _LEAST_CHUNK), _LARGEST_CHUNK, longest - offset)
            chunks.append(range(offset, offset + size))
            offset += size
        return chunks

    def active(self, offset: int) -> int:
        """Return how many of `tiles` have Gaussians at a position of their list."""
        return bisect_left(self.host_lengths, -offset, key=lambda length: -length)

    def pairs(self, chunk: range) -> tuple[Int64[Tensor, "active chunk"], Bool[Tensor, "active chunk"]]:
        """Return the pairs of a chunk, and which of them exist."""
        active = self.active(chunk.start)
        within = torch.arange(chunk.start, chunk.stop, device=self.tiles.device)
        exists = within < self.lengths[:active, None]
        return torch.where(exists, self.starts[:active, None] + within, 0), exists


def _tile_lists(projected: ProjectedGaussians, view: View) -> _TileLists:
    # Rounded up: the last tiles may extend beyond the image.
    columns = -(-view.width // _TILE)
    rows = -(-view.height // _TILE)
    device = projected.means2d.device
    # Stable, so that Gaussians of equal depth have the same order as in the other backends.
    depth_order = torch.argsort(projected.depths, stable=True)
    low, high = (box[depth_order] for box in image_boxes(projected))
    first_column, first_row = (
        (low[:, axis] / _TILE).floor().clamp(0, most).long() for axis, most in enumerate((columns, rows))
    )
    last_column, last_row = (
        (high[:, axis] / _TILE).floor().clamp(-1, most - 1).long() for axis, most in enumerate((columns, rows))
    )
    across = (last_column - first_column + 1).clamp_min(0)
    counts = across * (last_row - first_row + 1).clamp_min(0)
    lengths, tiles = (
        _box_counts((first_column, last_column), (first_row, last_row), counts, (rows, columns))
        .flatten()
        .sort(descending=True, stable=True)
    )
    host_lengths = lengths.tolist()
    pairs = sum(host_lengths)
    ends = counts.cumsum(0)
    ranks = torch.arange(len(counts), device=device).repeat_interleave(counts, output_size=pairs)
    within = torch.arange(pairs, device=device) - (ends - counts)[ranks]
    tile = (first_row[ranks] + within // across[ranks]) * columns + first_column[ranks] + within % across[ranks]
    # Stable, so that the pairs of a tile stay in the order of depth.
    sorted_tile, by_tile = tile.sort(stable=True)
    starts = torch.searchsorted(sorted_tile, torch.arange(columns * rows, device=device))
    return _TileLists(
        columns=columns,
        rows=rows,
        tiles=tiles,
        starts=starts[tiles],
        lengths=lengths,
        host_lengths=host_lengths,
        gaussians=depth_order[ranks[by_tile]],
        pair_order=by_tile,
        depth_order=depth_order,
        tiles_per_gaussian=counts,
    )


def _box_counts(
    columns: tuple[Int64[Tensor, " visible"], Int64[Tensor, " visible"]],
    rows: tuple[Int64[Tensor, " visible"], Int64[Tensor, " visible"]],
    counts: Int64[Tensor, " visible"],
    size: tuple[int, int],
) -> Int64[Tensor, "rows columns"]:
    """Return how many boxes cover each tile, without a list of pairs: by sums over the boxes' corners."""
    corners = counts.new_zeros((size[0] + 1, size[1] + 1))
    covers = (counts > 0).long()
    left, right = columns
    top, bottom = rows
    width = size[1] + 1
    # A box that covers nothing adds 0, and may be anywhere: the clamp keeps its corners in range.
    for row, column, sign in ((top, left, 1), (top, right + 1, -1), (bottom + 1, left, -1), (bottom + 1, right + 1, 1)):
        at = row.clamp(0, size[0]) * width + column.clamp(0, size[1])
        corners.view(-1).index_add_(0, at, covers, alpha=sign)
    return corners.cumsum(0).cumsum(1)[:-1, :-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Chunk:
    """Gaussians of a chunk at the pixels of their tiles.

    Attributes:
        rows: the Gaussian of each pair.
        dx: distance of the pixel from the center, to the right.
        dy: distance of the pixel from the center, down.
        u: first whitened coordinate.
        v: second whitened coordinate.
        falloff: exp(-(u^2 + v^2) / 2).
        raw: alpha before its limits.
        alphas: alpha, 0 below the threshold.
    """

    rows: Int64[Tensor, "active chunk"]
    dx: Float[Tensor, "active pixels chunk"]
    dy: Float[Tensor, "active pixels chunk"]
    u: Float[Tensor, "active pixels chunk"]
    v: Float[Tensor, "active pixels chunk"]
    falloff: Float[Tensor, "active pixels chunk"]
    raw: Float[Tensor, "active pixels chunk"]
    alphas: Float[Tensor, "active pixels chunk"]


def _evaluate(
    lists: _TileLists,
    positions: range,
    means2d: Float[Tensor, "visible 2"],
    whitening: Float[Tensor, "visible 3"],
    alphas: Float[Tensor, " visible"],
) -> _Chunk:
    pairs, exists = lists.pairs(positions)
    rows = lists.gaussians[pairs]
    tiles = lists.tiles[: len(rows)]
    pixel = torch.arange(_TILE * _TILE, device=rows.device)
    x = ((tiles % lists.columns) * _TILE)[:, None] + pixel % _TILE
    y = (torch.div(tiles, lists.columns, rounding_mode="floor") * _TILE)[:, None] + pixel // _TILE
    mean_x, mean_y = means2d[rows].unbind(-1)
    l1, l2, l3 = (factor[:, None, :] for factor in whitening[rows].unbind(-1))
    dx = (x + 0.5).to(means2d)[:, :, None] - mean_x[:, None, :]
    dy = (y + 0.5).to(means2d)[:, :, None] - mean_y[:, None, :]
    u = l1 * dx + l2 * dy
    v = l3 * dy
    falloff = torch.exp(-(u.square() + v.square()) / 2)
    raw = torch.where(exists, alphas[rows], 0)[:, None, :] * falloff
    limited = torch.where(raw >= THRESHOLD, raw.clamp_max(CEILING), 0)
    return _Chunk(rows=rows, dx=dx, dy=dy, u=u, v=v, falloff=falloff, raw=raw, alphas=limited)


def _transmittances(
    alphas: Float[Tensor, "active pixels chunk"], start: Float[Tensor, "active pixels"]
) -> tuple[Float[Tensor, "active pixels chunk"], Float[Tensor, "active pixels chunk"]]:
    """Return the transmittance in front of and behind each Gaussian of a chunk."""
    behind = start[:, :, None] * torch.cumprod(1 - alphas, -1)
    return torch.cat([start[:, :, None], behind[:, :, :-1]], -1), behind


class _Blend(torch.autograd.Function):
    """Map packed features, means, whitening and alphas to the image; see `blend`."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, means2d: Tensor, whitening: Tensor, alphas: Tensor, *settings: Any) -> Any:
        lists, view, absgrad = settings
        tiles = len(lists.tiles)
        pixels = _TILE * _TILE
        features = packed.new_zeros((tiles, pixels, packed.shape[1]))
        alpha = packed.new_zeros((tiles, pixels))
        median = lists.tiles.new_full((tiles, pixels), -1)
        transmittance = packed.new_ones((tiles, pixels))
        starts: list[Tensor] = []  # transmittance in front of each chunk, of its active tiles
        for positions in lists.chunks:
            chunk = _evaluate(lists, positions, means2d, whitening, alphas)
            active = len(chunk.rows)
            starts.append(transmittance[:active].clone())
            before, behind = _transmittances(chunk.alphas, starts[-1])
            weights = torch.where(before > OPAQUE, chunk.alphas * before, 0)
            features[:active] += weights @ packed[chunk.rows]
            alpha[:active] += weights.sum(-1)
            crossing = (before > 0.5) & (behind <= 0.5)
            # At most one Gaussian per pixel crosses 1/2; amax selects it among the -1.
            found = torch.where(crossing, chunk.rows[:, None, :], -1).amax(-1)
            median[:active] = torch.maximum(median[:active], found)
            transmittance[:active] = behind[:, :, -1]
        ctx.save_for_backward(packed, means2d, whitening, alphas)
        ctx.lists = lists
        ctx.starts = starts
        ctx.view = view
        ctx.absgrad = absgrad
        image_median = _untiled(median, lists, view)
        ctx.mark_non_differentiable(image_median)
        return _untiled(features, lists, view), _untiled(alpha, lists, view), image_median

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        packed, means2d, whitening, alphas = ctx.saved_tensors
        lists = ctx.lists
        of_features = _tiled(gradients[0], lists)
        of_alpha = _tiled(gradients[1], lists)
        channels = packed.shape[1]
        # Per pair: features, center, whitening, alpha, absolute center. The last row takes the pairs that do not exist.
        rows = packed.new_zeros((len(lists.gaussians) + 1, channels + 8))
        # Sum of weight times upstream gradient over the Gaussians behind a chunk.
        behind_chunk = torch.zeros_like(of_alpha)
        # Entry (j, i) is 1 if j is behind i: a product with it sums over what is behind, in a fixed order.
        longest = max(map(len, lists.chunks), default=0)
        is_behind = torch.ones((longest, longest), dtype=packed.dtype, device=packed.device).tril(-1)
        for positions, start in zip(reversed(lists.chunks), reversed(ctx.starts), strict=True):
            chunk = _evaluate(lists, positions, means2d, whitening, alphas)
            active = len(chunk.rows)
            before, _ = _transmittances(chunk.alphas, start)
            visible = before > OPAQUE
            weights = torch.where(visible, chunk.alphas * before, 0)
            upstream = of_features[:active] @ packed[chunk.rows].mT + of_alpha[:active, :, None]
            weighted = weights * upstream
            behind = weighted @ is_behind[: len(positions), : len(positions)] + behind_chunk[:active, :, None]
            # w_i = alpha_i T_i and T_j is proportional to 1 - alpha_i for every j behind i.
            by_alpha = torch.where(visible, before * upstream - behind / (1 - chunk.alphas), 0)
            unclamped = (chunk.raw >= THRESHOLD) & (chunk.raw <= CEILING)
            by_raw = torch.where(unclamped, by_alpha, 0)
            by_exponent = by_raw * chunk.raw
            by_u = -by_exponent * chunk.u
            by_v = -by_exponent * chunk.v
            l1, l2, l3 = (factor[:, None, :] for factor in whitening[chunk.rows].unbind(-1))
            # The distance from the center falls as the center moves toward the pixel.
            by_x = -by_u * l1
            by_y = -(by_u * l2 + by_v * l3)
            per_pair = torch.stack(
                [
                    by_x.sum(1),
                    by_y.sum(1),
                    (by_u * chunk.dx).sum(1),
                    (by_u * chunk.dy).sum(1),
                    (by_v * chunk.dy).sum(1),
                    (by_raw * chunk.falloff).sum(1),
                    by_x.abs().sum(1),
                    by_y.abs().sum(1),
                ],
                -1,
            )
            per_pair = torch.cat([weights.mT @ of_features[:active], per_pair], -1)
            pairs, exists = lists.pairs(positions)
            target = torch.where(exists, pairs, len(rows) - 1)
            rows.index_copy_(0, target.flatten(), per_pair.flatten(0, 1))
            behind_chunk[:active] += weighted.sum(-1)
        sums = _per_gaussian(rows[:-1], lists)
        if ctx.absgrad is not None:
            ctx.absgrad.copy_(sums[:, channels + 6 :])
        widths = [channels, 2, 3, 1, 2]
        by_packed, by_means, by_whitening, by_alphas, _ = sums.split(widths, -1)
        return by_packed, by_means, by_whitening, by_alphas[:, 0], None, None, None


def _per_gaussian(rows: Float[Tensor, "pairs width"], lists: _TileLists) -> Float[Tensor, "visible width"]:
    """Sum the rows of each Gaussian's pairs, in the order of its tiles."""
    adjacent = torch.empty_like(rows).index_copy_(0, lists.pair_order, rows)
    sums = torch.segment_reduce(adjacent, "sum", lengths=lists.tiles_per_gaussian, axis=0, unsafe=True, initial=0.0)
    return torch.empty_like(sums).index_copy_(0, lists.depth_order, sums)


def _untiled(values: Tensor, lists: _TileLists, view: View) -> Tensor:
    """Arrange values per tile and pixel as an image."""
    in_order = torch.empty_like(values).index_copy_(0, lists.tiles, values)
    grid = in_order.unflatten(1, (_TILE, _TILE)).unflatten(0, (lists.rows, lists.columns))
    return grid.transpose(1, 2).flatten(2, 3).flatten(0, 1)[: view.height, : view.width].contiguous()


def _tiled(image: Tensor, lists: _TileLists) -> Tensor:
    """Arrange an image as values per tile and pixel, padded with zeros."""
    height, width = image.shape[:2]
    padded = image.new_zeros((lists.rows * _TILE, lists.columns * _TILE, *image.shape[2:]))
    padded[:height, :width] = image
    grid = padded.unflatten(1, (lists.columns, _TILE)).unflatten(0, (lists.rows, _TILE)).transpose(1, 2)
    return grid.flatten(2, 3).flatten(0, 1)[lists.tiles]


def blend(
    packed: Float[Tensor, "visible channels"], projected: ProjectedGaussians, view: View, options: RasterOptions
) -> BlendedImage:
    """Blend packed features from front to back: w_i = alpha_i prod_{j < i} (1 - alpha_j) (3DGS, Kerbl 2023, eq. 3)."""
    with torch.no_grad():
        lists = _tile_lists(projected, view)
    absgrad = torch.zeros_like(projected.means2d) if options.absgrad else None
    shape = (projected.means2d, projected.whitening, projected.alphas)
    features, alpha, median = _Blend.apply(packed, *shape, lists, view, absgrad)
    return BlendedImage(features, alpha, median.to(torch.int32) if options.median else None, absgrad)


BATCHED = RasterBackend(project=project, colors=sh_colors, blend=blend)
"""Backend in batched torch operations, for any device and precision."""
