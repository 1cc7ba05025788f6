"""Splat rasterization by our own GPU kernels: single precision, the same bits every time, no wait of the host.

Every tensor has a row for each Gaussian; those that are not visible have radius 0. The pairs of Gaussian and tile are
sorted in an array whose size the host chooses by the renderings before. It reads their number at the end, when the
device has long counted them, and lists and blends again with more room if they did not fit.
"""

import functools
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwatch.recon.render.gpu import KernelFile
from fieldwatch.recon.render.splats.stages import GaussianTensors, RasterOptions, SphericalHarmonics
from fieldwatch.recon.render.splats.view import View
from fieldwatch.recon.transfers import constant

_TILE = 16
_LIST_THREADS = 128  # as in gpu/splats_blend.cu and gpu/splats_project.cu
_GEOMETRY = 8  # gradients per pair besides the channels, as in gpu/splats_blend.cu
MOST_CHANNELS = 24
"""Most channels of an image: a warp adds up the gradients of a pair, a column per thread."""
_MOST_PAIRS = 2**31 - 1
_LEAST_ROOM = 1 << 12
_SPARE = 1.25  # room for pairs, relative to the most that were needed
_FORGETS = 0.99  # per rendering, of that maximum
PROJECTION = KernelFile("splats_project.cu")
"""The kernels whose trial decides about all of them."""
_DEPTHS = {None: 0, "center": 1, "planar": 2}
_DEPTH_CHANNELS = (0, 1, 3)


class KernelRendering(NamedTuple):
    """A rendered view; see `RenderOutput`. All tensors of Gaussians have a row for each, whether visible or not."""

    features: Float[Tensor, "height width channels"]
    alpha: Float[Tensor, "height width"]
    depth: Float[Tensor, "height width"] | None
    normals: Float[Tensor, "height width 3"] | None
    median_depth: Float[Tensor, "height width"] | None
    median_ids: Int[Tensor, "height width"] | None
    visible: Bool[Tensor, " n"]
    radii: Float[Tensor, " n"]
    means2d: Float[Tensor, "n 2"]
    absgrad: Float[Tensor, "n 2"] | None


class _Maps(NamedTuple):
    """Which maps are blended: widths of the features, mode of the depth (0 to 2), whether normals."""

    given: int
    depth: int
    normals: bool

    @property
    def channels(self) -> int:
        return self.given + _DEPTH_CHANNELS[self.depth] + 3 * self.normals

    @property
    def plane(self) -> int:
        """Channel of the planes' depth at the image center; -1 without planes."""
        return self.given if self.depth == 2 else -1


class _Pairs(NamedTuple):
    """Pairs of Gaussian and tile: sorted positions, the Gaussian of each pair, the first position of each tile."""

    order: Int[Tensor, " room"]
    owners: Int[Tensor, " room"]
    starts: Int[Tensor, " tiles_and_end"]


@functools.cache
def _blending(channels: int) -> KernelFile:
    return KernelFile("splats_blend.cu", defines=(("CHANNELS", channels),))


def row_blocks(count: int) -> int:
    """Return how many blocks of the kernels for Gaussians have a thread for each of a number of rows."""
    return -(-count // _LIST_THREADS)


def _grid(view: View) -> int:
    """Return the number of tiles; the last ones may extend beyond the image."""
    return -(-view.width // _TILE) * -(-view.height // _TILE)


def _lens(view: View, options: RasterOptions, like: Tensor) -> Tensor:
    values = (view.fx, view.fy, view.cx, view.cy, view.near, options.eps2d, *view.bounds)
    return constant(values, like)


class _Project(torch.autograd.Function):
    """Map Gaussians to packed channels, image positions, whitening, alphas, and what has no gradient."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *tensors, degree, maps, view, options = arguments
        means, quaternions, scales, opacities = (tensor.contiguous() for tensor in tensors[:4])
        dc, rest, features = (None if tensor is None else tensor.contiguous() for tensor in tensors[4:])
        count = len(means)
        world = view.camera_from_world.detach().to(means).contiguous()
        lens = _lens(view, options, means)
        coefficients = 0 if rest is None else rest.shape[1]
        given = 0 if features is None else features.shape[1]
        size = (count, view.width, view.height, world, lens, int(options.antialiased))
        gaussians = (means, quaternions, scales, opacities, dc, rest, coefficients, degree)
        depth = (maps.depth, int(maps.normals), maps.channels)
        packed = means.new_empty(count, maps.channels)
        means2d = means.new_empty(count, 2)
        whitening = means.new_empty(count, 3)
        alphas, depths, radii = (means.new_empty(count) for _ in range(3))
        visible = means.new_empty(count, dtype=torch.bool)
        tiles = means.new_empty(count, dtype=torch.int32)
        outputs = (packed, means2d, whitening, alphas, depths, radii, visible, tiles)
        PROJECTION.launch("project_forward", row_blocks(count), *size, *gaussians, features, given, *depth, *outputs)
        ctx.save_for_backward(means, quaternions, scales, opacities, dc, rest, visible)
        ctx.size = size
        ctx.settings = (coefficients, degree, given, *depth)
        ctx.features = features is not None and features.requires_grad
        ctx.mark_non_differentiable(depths, radii, visible, tiles)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        *gaussians, dc, rest, visible = ctx.saved_tensors
        coefficients, degree, given, *depth = ctx.settings
        means = gaussians[0]
        count = len(means)
        shapes = ((count, depth[-1]), (count, 2), (count, 3), (count,))
        upstream = [
            means.new_zeros(shape) if part is None else part.contiguous()
            for part, shape in zip(gradients[:4], shapes, strict=True)
        ]
        outputs = [torch.empty_like(tensor) for tensor in gaussians]
        needs_dc, needs_rest, needs_features = ctx.needs_input_grad[4:7]
        ddc = torch.empty_like(dc) if needs_dc else None
        drest = torch.empty_like(rest) if needs_rest else None
        dfeatures = means.new_empty(count, given) if needs_features else None
        settings = (dc, rest, coefficients, degree, given, *depth)
        results = (*outputs, ddc, drest, dfeatures)
        PROJECTION.launch(
            "project_backward", row_blocks(count), *ctx.size, *gaussians, *settings, visible, *upstream, *results
        )
        return (*results, None, None, None, None)


class _Blend(torch.autograd.Function):
    """Map packed channels, image positions, whitening and alphas to the maps of the image."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, means2d: Tensor, whitening: Tensor, alphas: Tensor, *settings: Any) -> Any:
        pairs, counts, view, maps, background, median, absgrad = settings
        image = (view.height, view.width)
        features = packed.new_empty(*image, maps.given)
        alpha = packed.new_empty(image)
        depth = packed.new_empty(image) if maps.depth else None
        normals = packed.new_empty(*image, 3) if maps.normals else None
        half = packed.new_empty(image, dtype=torch.int32) if median else None
        passed = packed.new_empty(image)
        last = packed.new_empty(image, dtype=torch.int32)
        shape = (means2d, whitening, alphas, packed)
        lists = (view.width, view.height, pairs.starts, pairs.order, pairs.owners)
        channels = (maps.given, maps.depth, background)
        outputs = (features, alpha, depth, normals, half, passed, last)
        _blending(maps.channels).launch("blend_forward", _grid(view), *lists, *shape, *channels, *outputs)
        ctx.save_for_backward(*shape, *pairs, *counts, background, passed, last)
        ctx.view = view
        ctx.maps = maps
        ctx.absgrad = absgrad
        ctx.set_materialize_grads(False)
        if half is not None:
            ctx.mark_non_differentiable(half)
        return features, alpha, depth, normals, half

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        means2d, whitening, alphas, packed, order, owners, starts, tiles, ends, background, passed, last = (
            ctx.saved_tensors
        )
        view = ctx.view
        maps = ctx.maps
        width = maps.channels + _GEOMETRY
        upstream = [None if part is None else part.contiguous() for part in gradients[:4]]
        rows = packed.new_empty(len(owners), width)
        shape = (means2d, whitening, alphas, packed)
        lists = (view.width, view.height, starts, order, owners)
        channels = (maps.given, maps.depth, background, passed, last)
        kernels = _blending(maps.channels)
        kernels.launch("blend_backward", _grid(view), *lists, *shape, *channels, *upstream, rows)
        outputs = [torch.empty_like(part) for part in (packed, means2d, whitening, alphas)]
        count = len(packed)
        sums = (count, maps.plane, tiles, ends, packed, rows, *outputs, ctx.absgrad)
        kernels.launch("gather_gradients", row_blocks(count * width), *sums)
        return (*outputs, *[None] * 7)


class _Room:
    """How many pairs of Gaussian and tile the next rendering has room for, per device."""

    def __init__(self) -> None:
        self._most: dict[torch.device, float] = {}

    def of(self, device: torch.device) -> int:
        """Return the room in pairs."""
        needed = _SPARE * self._most.get(device, 0.0)
        return min(max(round(needed), _LEAST_ROOM), _MOST_PAIRS)

    def needed(self, device: torch.device, pairs: int) -> None:
        """Remember a number of pairs."""
        self._most[device] = max(float(pairs), _FORGETS * self._most.get(device, 0.0))


_ROOM = _Room()


class _Count:
    """The number of pairs, on its way to the host.

    Args:
        ends: sums of the pairs up to each Gaussian.
    """

    def __init__(self, ends: Int[Tensor, " n"]) -> None:
        self._host = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._arrived = torch.cuda.Event()
        if len(ends):
            self._host.copy_(ends[-1:], non_blocking=True)
        self._arrived.record()

    def read(self) -> int:
        """Return the number. The device counted before all that was launched since: it is not idle meanwhile."""
        if not self._arrived.query():
            self._arrived.synchronize()
        return int(self._host[0])


def _list(projected: Any, ends: Tensor, view: View, maps: _Maps, empty: tuple[int, Tensor | None]) -> _Pairs:
    """Return the pairs.

    Args:
        projected: results of the projection.
        ends: sums of the pairs up to each Gaussian.
        view: camera.
        maps: maps to blend.
        empty: room for pairs, and the absolute gradients, which become 0.
    """
    room, absgrad = empty
    _, means2d, whitening, alphas, depths, _, _, tiles = projected
    keys = torch.empty(room, dtype=torch.int64, device=means2d.device)
    owners = torch.empty(room, dtype=torch.int32, device=means2d.device)
    count = len(means2d)
    kernels = _blending(maps.channels)
    shape = (means2d.detach(), whitening.detach(), alphas.detach(), depths, tiles, ends)
    lists = (keys, owners, absgrad)
    # A block at least: places without a pair get a key even if there are no Gaussians.
    kernels.launch("list_pairs", max(row_blocks(count), 1), count, view.width, view.height, room, *shape, *lists)
    # Stable, so that Gaussians of equal depth have the same order as in the other backends.
    keys, order = keys.sort(stable=True)
    starts = torch.empty(_grid(view) + 1, dtype=torch.int32, device=means2d.device)
    kernels.launch("tile_starts", row_blocks(_grid(view) + 1), _grid(view), room, keys, starts)
    return _Pairs(order, owners, starts)


def render(  # noqa: PLR0913  four tensors are the Gaussians, the rest are options of one image
    gaussians: GaussianTensors,
    view: View,
    options: RasterOptions,
    *,
    harmonics: SphericalHarmonics | None,
    features: Float[Tensor, "n c"] | None,
    background: Float[Tensor, " channels"] | None,
    depth: str | None,
) -> KernelRendering:
    """Rasterize Gaussians on a GPU; see `rasterize`. The median depth has no gradient.

    Raises:
        ValueError: the tensors are not in single precision on a GPU, there are too many channels, or the Gaussians
            touch more than 2^31 tiles.
        KernelsUnavailable: the kernels cannot be compiled.
    """
    given = (3 if harmonics else 0) + (0 if features is None else features.shape[1])
    mode = _DEPTHS[depth]
    maps = _Maps(given, max(mode, 1) if options.median else mode, options.normals)
    if maps.channels > MOST_CHANNELS:
        raise ValueError(f"the GPU kernels blend up to {MOST_CHANNELS} channels, got {maps.channels}")
    colors = (None, None, 0) if harmonics is None else (harmonics.dc, harmonics.rest, harmonics.degree)
    projected = _Project.apply(*gaussians, *colors[:2], features, colors[2], maps, view, options)
    packed, means2d, whitening, alphas, _, radii, visible, tiles = projected
    if means2d.requires_grad and not options.absgrad:
        # Not a leaf: without this, densification would find no gradient. torch copies it.
        means2d.retain_grad()
    ends = tiles.cumsum(0, dtype=torch.int64)
    count = _Count(ends)
    absgrad = torch.empty_like(means2d) if options.absgrad else None  # `_list` writes zeros
    behind = None if background is None else background.detach().contiguous()
    while True:
        room = _ROOM.of(means2d.device)
        with torch.no_grad():
            pairs = _list(projected, ends, view, maps, (room, absgrad))
        settings = (pairs, (tiles, ends), view, maps, behind, options.median, absgrad)
        image, alpha, depth_map, normals, half = _Blend.apply(packed, means2d, whitening, alphas, *settings)
        needed = count.read()
        if needed > _MOST_PAIRS:
            raise ValueError(
                f"{len(means2d)} Gaussians touch more than 2^31 tiles in total: their scales have diverged, or the "
                f"image of {view.width} x {view.height} pixels is too large for this number of Gaussians"
            )
        _ROOM.needed(means2d.device, needed)
        if needed <= room:
            break
    median = None if half is None else _median_depth(half, packed.detach(), maps, view)
    return KernelRendering(
        features=image,
        alpha=alpha,
        depth=depth_map if mode else None,
        normals=normals,
        median_depth=median,
        median_ids=None if half is None else half.long(),
        visible=visible,
        radii=radii,
        means2d=means2d,
        absgrad=absgrad,
    )


def _median_depth(
    rows: Int[Tensor, "height width"], packed: Float[Tensor, "n channels"], maps: _Maps, view: View
) -> Float[Tensor, "height width"]:
    """Return the depth of the median Gaussian of each pixel, on its plane if planes are blended; 0 without one."""
    if not len(packed):
        return packed.new_zeros(rows.shape)
    found = packed.index_select(0, rows.clamp_min(0).flatten().long()).unflatten(0, rows.shape)[..., maps.given :]
    depths = found[..., 0]
    if maps.depth == 2:
        across = torch.arange(view.width, device=rows.device) + (0.5 - view.width / 2)
        down = torch.arange(view.height, device=rows.device) + (0.5 - view.height / 2)
        depths = depths + across * found[..., 1] + down[:, None] * found[..., 2]
    return torch.where(rows >= 0, depths, 0.0)
