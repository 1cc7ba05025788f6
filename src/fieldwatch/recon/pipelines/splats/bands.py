"""Rendering in horizontal bands, one after the other: only one band's graph is in memory at a time."""

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
"""Rows of the rasterizer's tiles: bands end between tiles."""
BANDS = 8
"""Bands of each micro-batch, once there are two: each band copies its Gaussians, so that a few bands save nothing."""
MAPS = ("features", "alpha", "depth", "normals", "median_depth", "median_ids")
"""What a rendering has at every pixel."""
DIFFERENTIABLE_MAPS = 4
"""The first so many of them; the others have no gradient in bands."""


class RasterizationOptions(TypedDict, total=False):
    """What `rasterize` is asked for; see there."""

    sh_degree: int
    background: Float[Tensor, " channels"] | None
    depth: DepthMode | None
    normals: bool
    median: bool
    antialiased: bool
    absgrad: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Band(View):
    """Some rows of a view, as a view.

    Attributes:
        whole: the view; Gaussians have the shape that they have in it.
        top: its row that is the first one here.
    """

    whole: View
    top: int

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Those of the whole view."""
        # The projection clamps its Jacobian there: by bounds of the band, shapes would depend on the number of bands.
        return self.whole.bounds

    @property
    def rows(self) -> slice:
        """Which rows of the whole view these are."""
        return slice(self.top, self.top + self.height)


def band_count(micro_batches: int) -> int:
    """Return in how many bands an image is rendered for a number of micro-batches; one renders it whole."""
    return 1 if micro_batches == 1 else BANDS * micro_batches


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewInBands:
    """A view, and how it is rendered when memory is short.

    Attributes:
        view: the photo and its camera.
        bands: number of bands in which it is rendered, one after the other.
        generator: of the view's random numbers, on the device; None is torch's own.
    """

    view: PhotoView
    bands: int
    generator: torch.Generator | None


def split_views(
    batch: Batch, micro_batches: int, *, views: int, device: torch.device
) -> Iterator[tuple[ViewInBands, float]]:
    """Yield the views of a batch one by one, and the share of each; in more micro-batches, each in more bands.

    Where a step has several views, each has a generator of its own, so that its random numbers do not depend on which
    process renders the others.

    Args:
        batch: the photos of a step.
        micro_batches: how many there are, see `band_count`.
        views: of a step, over all processes.
        device: of the generators.
    """
    # Every process draws a seed for every view: their common random state must not drift apart.
    seeds = torch.randint(1 << 62, (views,)).tolist() if views > 1 else []
    for number, view in enumerate(batch.views, batch.first):
        generator = torch.Generator(device).manual_seed(seeds[number]) if seeds else None
        yield ViewInBands(view=view, bands=band_count(micro_batches), generator=generator), 1 / len(batch.views)


def max_bands(views: Sequence[View]) -> int:
    """Into how many bands the tallest of some views can be divided."""
    return max(-(-view.height // TILE) for view in views)


@torch.no_grad()
def bands_of(view: View, count: int, means: Float[Tensor, "n 3"]) -> list[Band]:
    """Divide a view into bands with as much work each, as far as whole tiles allow it; at most `count`.

    Half of the work is the pixels, half the Gaussians, of which most may lie in a few rows.

    Args:
        view: the camera.
        count: bands, at most.
        means: of the Gaussians, world units.
    """
    tiles = -(-view.height // TILE)
    pose = view.camera_from_world.to(means)
    down, ahead = (means @ pose[1:3, :3].T + pose[1:3, 3]).unbind(1)
    rows = view.fy * down / ahead + view.cy
    visible_rows = rows[(ahead > view.near) & rows.isfinite()]
    per_tile = torch.bincount((visible_rows / TILE).floor().clamp(0, tiles - 1).long(), minlength=tiles).double()
    # Two shares of 1 each: of the Gaussians by their centers, and of the pixels, which all rows of tiles have alike.
    work = (per_tile / per_tile.sum().clamp_min(1) + 1 / tiles).cumsum(0)
    targets = torch.arange(1, count, dtype=work.dtype, device=work.device) * work[-1] / count
    inner_ends = (torch.searchsorted(work, targets) + 1).tolist()
    # Several targets may fall into one tile: the set leaves out bands without rows.
    ends = [min(TILE * end, view.height) for end in sorted({0, *inner_ends, tiles})]
    camera = {field.name: getattr(view, field.name) for field in fields(View)}
    return [
        Band(**camera | {"cy": view.cy - top, "height": bottom - top}, whole=view, top=top)
        for top, bottom in pairwise(ends)
    ]


def render_in_bands(
    gaussians: tuple[Tensor, Tensor, Tensor, Tensor],
    colours: tuple[Tensor, ...],
    view: View,
    count: int,
    **options: Unpack[RasterizationOptions],
) -> RenderOutput:
    """Render Gaussians as `rasterize` does, in bands of rows.

    The image, its gradients, and what `DensificationStatistics` reads of it are those of `rasterize`, up to rounding:
    every pixel lies in one band, and what a Gaussian gets from several bands is added up. (One that lies between the
    rows of two bands and touches no pixel, as only alphas below 0.006 can, does not count as visible.) The image is
    rendered without a graph; `backward` renders every band again, of the Gaussians that touch it, and frees it after
    its gradients.

    Args:
        gaussians: means, quaternions, scales and opacities.
        colours: harmonics of degree 0 and those above, or features of any width alone.
        view: the camera.
        count: of bands, at most; 1 is `rasterize`.
        options: as for `rasterize`.

    Raises:
        ValueError: as `rasterize`.
    """
    if count == 1:
        return _BandedRendering([], options).render((*gaussians, *colours), view)
    rendering = _BandedRendering(bands_of(view, count, gaussians[0].detach()), options)
    maps = dict(zip(MAPS, _RenderInBands.apply(rendering, *gaussians, *colours), strict=True))
    return RenderOutput(
        **maps, ids=rendering.ids, radii=rendering.radii, means2d=rendering.means2d, absgrad=rendering.absgrad
    )


class _BandedRendering:
    """How an image is rendered in bands, and which Gaussians are visible in it.

    Args:
        bands: of the view.
        options: for `rasterize`.

    Attributes:
        bands: as above.
        ids, radii, means2d, absgrad: as in `RenderOutput`, of the whole image.
        visible: which Gaussians are visible in each band.
        positions: their positions in `ids`.
    """

    def __init__(self, bands: Sequence[Band], options: RasterizationOptions) -> None:
        self.bands = bands
        self._options = options
        self.ids = self.radii = self.means2d = torch.empty(0)
        self.absgrad: Tensor | None = None
        self.visible: list[Tensor] = []
        self.positions: list[Tensor] = []

    def render(self, tensors: Sequence[Tensor], view: View) -> RenderOutput:
        """Render some Gaussians in a view, or in a band of one."""
        means, quaternions, scales, opacities, *colours = tensors
        appearance = (
            {"features": colours[0]} if len(colours) == 1 else {"spherical_harmonics": (colours[0], colours[1])}
        )
        keywords: dict[str, Any] = {**appearance, **self._options}
        return rasterize(means, quaternions, scales, opacities, view, **keywords)

    def set_visible(self, outputs: Sequence[RenderOutput]) -> None:
        """Derive from the bands which Gaussians are visible in the whole image, where, and how large."""
        self.visible = [output.ids for output in outputs]
        # Sorted by `unique`, as `searchsorted` wants it.
        self.ids = torch.cat(self.visible).unique()
        self.positions = [torch.searchsorted(self.ids, ids) for ids in self.visible]
        self.radii = outputs[0].radii.new_zeros(len(self.ids))
        self.means2d = outputs[0].means2d.new_zeros(len(self.ids), 2)
        for band, output, positions in zip(self.bands, outputs, self.positions, strict=True):
            self.radii[positions] = torch.maximum(self.radii[positions], output.radii)
            # A band counts its rows from its own top.
            self.means2d[positions] = output.means2d + output.means2d.new_tensor([0.0, band.top])
        if outputs[0].absgrad is not None:
            self.absgrad = torch.zeros_like(self.means2d)

    def add_view_space_gradients(self, band: int, output: RenderOutput) -> None:
        """Add the view-space gradients of a band's Gaussians, after its backward pass."""
        # `output.ids` number the rows that the band was rendered of, which are those visible in it.
        positions = self.positions[band][output.ids]
        if output.means2d.grad is not None:
            self.means2d.grad = torch.zeros_like(self.means2d) if self.means2d.grad is None else self.means2d.grad
            self.means2d.grad.index_add_(0, positions, output.means2d.grad)
        if output.absgrad is not None and self.absgrad is not None:
            self.absgrad.index_add_(0, positions, output.absgrad)


class _RenderInBands(torch.autograd.Function):
    """From the tensors of all Gaussians to the maps of the whole image; no graph is kept in between."""

    @staticmethod
    def forward(ctx: Any, rendering: _BandedRendering, *tensors: Tensor) -> Any:
        maps: list[Tensor | None] = [None] * len(MAPS)
        outputs: list[RenderOutput] = []
        for band in rendering.bands:
            output = rendering.render(tensors, band)
            for number, name in enumerate(MAPS):
                _put_rows(maps, number, getattr(output, name), band)
            outputs.append(_copied_without_pixels(output))
        rendering.set_visible(outputs)
        ctx.rendering = rendering
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(each for each in maps[DIFFERENTIABLE_MAPS:] if each is not None))
        ctx.set_materialize_grads(False)  # maps that no loss reads come as None, not as zeros
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
            # Only the Gaussians of this band: its graph, which is freed before the next band's, is small.
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
        return (None, *sums)


def _put_rows(maps: list[Tensor | None], number: int, rows: Tensor | None, band: Band) -> None:
    """Put a band's rows into the whole map, which is made with the first of them."""
    if rows is None:
        return
    whole = maps[number]
    if whole is None:
        maps[number] = whole = rows.new_empty(band.whole.height, *rows.shape[1:])
    whole[band.rows] = rows


def _copied_without_pixels(output: RenderOutput) -> RenderOutput:
    """What is left of a band once its rows are in the whole maps; copied, as views would keep rows of all Gaussians."""
    nothing = output.alpha.new_empty(0, 0)
    return RenderOutput(
        features=nothing[..., None],
        alpha=nothing,
        depth=None,
        normals=None,
        median_depth=None,
        median_ids=None,
        ids=output.ids.clone(),
        radii=output.radii.clone(),
        means2d=output.means2d.clone(),
        absgrad=output.absgrad,
    )
