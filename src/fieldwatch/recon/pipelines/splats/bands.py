"""Rendering in horizontal bands, so that only one band's graph is in memory at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwatch.recon.pipelines.splats.scene import Batch, PhotoView
from fieldwatch.recon.render import DepthMode, RenderOutput, View, rasterize

TILE = 16
"""Height of the rasterizer's tiles, pixels; bands end at tile boundaries."""
BANDS = 8
"""Number of bands per micro-batch if there are several; every band copies its Gaussians, so that few save nothing."""
MAPS = ("features", "alpha", "depth", "normals", "median_depth", "median_ids")
"""Per-pixel outputs of the rasterizer."""
DIFFERENTIABLE_MAPS = 4
"""Number of leading entries of `MAPS` that are differentiable; the others have no gradient in bands."""


class RasterizationOptions(TypedDict, total=False):
    """Options of `rasterize`."""

    sh_degree: int
    background: Float[Tensor, " channels"] | None
    depth: DepthMode | None
    normals: bool
    median: bool
    antialiased: bool
    absgrad: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Band(View):
    """A range of rows of a view, as a view.

    Attributes:
        whole: complete view, which determines the projected shapes of Gaussians.
        top: index of the first row in the complete view.
    """

    whole: View
    top: int

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Bounds of the complete view."""
        # The projection clamps its Jacobian at the bounds: with those of the band, shapes would depend on the bands.
        return self.whole.bounds

    @property
    def rows(self) -> slice:
        """Slice of the complete view's rows."""
        return slice(self.top, self.top + self.height)


def band_count(micro_batches: int) -> int:
    """Return the number of bands in which an image is rendered; a single micro-batch renders it in one piece."""
    return 1 if micro_batches == 1 else BANDS * micro_batches


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewInBands:
    """A view and the number of bands in which it is rendered.

    Attributes:
        view: photo and camera.
        bands: number of bands that are rendered one after the other.
        generator: generator of the view's random numbers, on the device; None uses torch's default.
    """

    view: PhotoView
    bands: int
    generator: torch.Generator | None


def split_views(
    batch: Batch, micro_batches: int, *, views: int, device: torch.device
) -> Iterator[tuple[ViewInBands, float]]:
    """Yield the views of a batch one by one with their weight in the loss; more micro-batches mean more bands per view.

    If a step has several views, each has a separate generator, so that its random numbers do not depend on which rank
    renders the others.

    Args:
        batch: photos of the step.
        micro_batches: number of micro-batches, see `band_count`.
        views: number of views of the step, over all ranks.
        device: device of the generators.
    """
    # Every rank samples a seed for every view, so that the ranks' random states stay identical.
    seeds = torch.randint(1 << 62, (views,)).tolist() if views > 1 else []
    for number, view in enumerate(batch.views, batch.first):
        generator = torch.Generator(device).manual_seed(seeds[number]) if seeds else None
        yield ViewInBands(view=view, bands=band_count(micro_batches), generator=generator), 1 / len(batch.views)


def max_bands(views: Sequence[View]) -> int:
    """Return the maximum number of bands of the tallest view."""
    return max(-(-view.height // TILE) for view in views)


@torch.no_grad()
def bands_of(view: View, count: int, means: Float[Tensor, "n 3"]) -> list[Band]:
    """Divide a view into at most `count` bands of equal work, as far as tile boundaries allow.

    Work is estimated as half pixels and half Gaussians, most of which may be in a few rows.

    Args:
        view: camera of the view.
        count: maximum number of bands.
        means: centers of the Gaussians, world units.
    """
    tiles = -(-view.height // TILE)
    pose = view.camera_from_world.to(means)
    down, ahead = (means @ pose[1:3, :3].T + pose[1:3, 3]).unbind(1)
    # Pixel rows of the projected centers.
    rows = view.fy * down / ahead + view.cy
    visible_rows = rows[(ahead > view.near) & rows.isfinite()]
    # Centers outside the image count for the first or last row of tiles, to which they are clamped.
    per_tile = torch.bincount((visible_rows / TILE).floor().clamp(0, tiles - 1).long(), minlength=tiles).double()
    # Both parts sum to 1: Gaussians counted by their centers, and pixels, which are equal for all rows of tiles.
    work = (per_tile / per_tile.sum().clamp_min(1) + 1 / tiles).cumsum(0)
    targets = torch.arange(1, count, dtype=work.dtype, device=work.device) * work[-1] / count
    inner_ends = (torch.searchsorted(work, targets) + 1).tolist()
    # Several targets may fall into one tile: the set removes empty bands.
    ends = [min(TILE * end, view.height) for end in sorted({0, *inner_ends, tiles})]
    camera = {field.name: getattr(view, field.name) for field in fields(View)}
    return [
        Band(**camera | {"cy": view.cy - top, "height": bottom - top}, whole=view, top=top)
        for top, bottom in pairwise(ends)
    ]


def render_in_bands(
    gaussians: tuple[Tensor, Tensor, Tensor, Tensor],
    colors: tuple[Tensor, ...],
    view: View,
    count: int,
    **options: Unpack[RasterizationOptions],
) -> RenderOutput:
    """Render Gaussians like `rasterize`, in bands of rows.

    The image, its gradients and the inputs of `DensificationStatistics` equal those of `rasterize` up to rounding:
    every pixel is in one band, and gradients of a Gaussian are summed over bands. (A Gaussian between the rows of two
    bands that touches no pixel, which is possible only for alphas below 0.006, does not count as visible.) The forward
    pass keeps no graph. `backward` renders every band again, only with the Gaussians that touch it, and frees its graph
    before the next band.

    Args:
        gaussians: means, quaternions, scales and opacities.
        colors: SH coefficients of degree 0 and of the higher degrees, or a single tensor of features of any width.
        view: camera of the view.
        count: maximum number of bands; 1 is plain `rasterize`.
        **options: options of `rasterize`.

    Raises:
        ValueError: As in `rasterize`.
    """
    if count == 1:
        return _BandedRendering([], options).render((*gaussians, *colors), view)
    rendering = _BandedRendering(bands_of(view, count, gaussians[0].detach()), options)
    maps = dict(zip(MAPS, _RenderInBands.apply(rendering, *gaussians, *colors), strict=True))
    return RenderOutput(
        **maps, ids=rendering.ids, radii=rendering.radii, means2d=rendering.means2d, absgrad=rendering.absgrad
    )


class _BandedRendering:
    """State of a rendering in bands, shared by its forward and backward pass.

    Args:
        bands: bands of the view.
        options: options of `rasterize`.

    Attributes:
        bands: bands of the view.
        ids, radii, means2d, absgrad: as in `RenderOutput`, for the complete image.
        visible: rows of the Gaussians visible in each band.
        positions: positions in `ids` of the Gaussians visible in each band.
    """

    def __init__(self, bands: Sequence[Band], options: RasterizationOptions) -> None:
        self.bands = bands
        self._options = options
        self.ids = self.radii = self.means2d = torch.empty(0)
        self.absgrad: Tensor | None = None
        self.visible: list[Tensor] = []
        self.positions: list[Tensor] = []

    def render(self, tensors: Sequence[Tensor], view: View) -> RenderOutput:
        """Render Gaussians in a view or band."""
        means, quaternions, scales, opacities, *colors = tensors
        # A single tensor holds features; two are SH coefficients.
        appearance = {"features": colors[0]} if len(colors) == 1 else {"spherical_harmonics": (colors[0], colors[1])}
        keywords: dict[str, Any] = {**appearance, **self._options}
        return rasterize(means, quaternions, scales, opacities, view, **keywords)

    def set_visible(self, outputs: Sequence[RenderOutput]) -> None:
        """Combine ids, positions and radii of the visible Gaussians over the bands."""
        self.visible = [output.ids for output in outputs]
        # `unique` also sorts, which `searchsorted` requires.
        self.ids = torch.cat(self.visible).unique()
        self.positions = [torch.searchsorted(self.ids, ids) for ids in self.visible]
        self.radii = outputs[0].radii.new_zeros(len(self.ids))
        self.means2d = outputs[0].means2d.new_zeros(len(self.ids), 2)
        for band, output, positions in zip(self.bands, outputs, self.positions, strict=True):
            self.radii[positions] = torch.maximum(self.radii[positions], output.radii)
            # Rows of a band are relative to its top.
            self.means2d[positions] = output.means2d + output.means2d.new_tensor([0.0, band.top])
        if outputs[0].absgrad is not None:
            self.absgrad = torch.zeros_like(self.means2d)

    def add_view_space_gradients(self, band: int, output: RenderOutput) -> None:
        """Accumulate the view-space gradients of a band's Gaussians after its backward pass."""
        # `output.ids` index the rows passed to the band's second rendering, that is, the Gaussians visible in it.
        positions = self.positions[band][output.ids]
        if output.means2d.retains_grad and output.means2d.grad is not None:
            self.means2d.grad = torch.zeros_like(self.means2d) if self.means2d.grad is None else self.means2d.grad
            self.means2d.grad.index_add_(0, positions, output.means2d.grad)
        if output.absgrad is not None and self.absgrad is not None:
            self.absgrad.index_add_(0, positions, output.absgrad)


class _RenderInBands(torch.autograd.Function):
    """Maps of the complete image from the tensors of all Gaussians, without a graph between forward and backward."""

    @staticmethod
    def forward(ctx: Any, rendering: _BandedRendering, *tensors: Tensor) -> Any:
        maps: list[Tensor | None] = [None] * len(MAPS)
        outputs: list[RenderOutput] = []
        # Autograd functions run `forward` without a graph, so each band's intermediates are freed at once.
        for band in rendering.bands:
            output = rendering.render(tensors, band)
            for number, name in enumerate(MAPS):
                _put_rows(maps, number, getattr(output, name), band)
            outputs.append(_copied_without_pixels(output))
        rendering.set_visible(outputs)
        ctx.rendering = rendering
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(each for each in maps[DIFFERENTIABLE_MAPS:] if each is not None))
        ctx.set_materialize_grads(False)  # gradients of maps that no loss uses are None instead of zeros
        return tuple(maps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        rendering: _BandedRendering = ctx.rendering
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        sums = [torch.zeros_like(tensor) if needs else None for tensor, needs in zip(tensors, needed, strict=True)]
        for number, (band, ids) in enumerate(zip(rendering.bands, rendering.visible, strict=True)):
            if not len(ids):
                continue
            pairs = zip(tensors, needed, strict=True)
            # Only the Gaussians of this band, so that its graph, which is freed before the next band, stays small.
            leaves = [tensor.index_select(0, ids).requires_grad_(needs) for tensor, needs in pairs]
            with torch.enable_grad():
                output = rendering.render(leaves, band)
            with_gradient = [
                (getattr(output, name), gradient[band.rows])
                for name, gradient in zip(MAPS, gradients, strict=True)
                if gradient is not None
            ]
            torch.autograd.backward([rows for rows, _ in with_gradient], [gradient for _, gradient in with_gradient])
            for total, leaf in zip(sums, leaves, strict=True):
                if total is not None and leaf.grad is not None:
                    total.index_add_(0, ids, leaf.grad)
            rendering.add_view_space_gradients(number, output)
        # `rendering`, the first argument, is not differentiable.
        return (None, *sums)


def _put_rows(maps: list[Tensor | None], number: int, rows: Tensor | None, band: Band) -> None:
    """Copy a band's rows into the complete map, which is allocated with the first band."""
    if rows is None:
        return
    whole = maps[number]
    if whole is None:
        maps[number] = whole = rows.new_empty(band.whole.height, *rows.shape[1:])
    whole[band.rows] = rows


def _copied_without_pixels(output: RenderOutput) -> RenderOutput:
    """Return a band's output without pixels; copied, because views would keep the rows of all Gaussians in memory."""
    empty = output.alpha.new_empty(0, 0)
    # A mask makes the host wait, which a rendering in bands does anyway.
    rows = slice(None) if output.visible is None else output.visible
    return RenderOutput(
        features=empty[..., None],
        alpha=empty,
        depth=None,
        normals=None,
        median_depth=None,
        median_ids=None,
        ids=output.ids[rows].clone(),
        radii=output.radii[rows].clone(),
        means2d=output.means2d[rows].clone(),
        absgrad=None if output.absgrad is None else output.absgrad[rows],
    )
