"""A picture drawn in horizontal bands, one after the other: only one band's graph is in memory at a time."""

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
"""Rows of the tiles that pictures are drawn in: bands end between them."""
BANDS = 8
"""Bands of each micro-batch, once there are two: each band copies its Gaussians, so that a few bands save nothing."""
MAPS = ("features", "alpha", "depth", "normals", "median_depth", "median_ids")
"""What a picture has a value of at every pixel; the last two have no gradient in bands."""
WITH_GRADIENT = 4


class DrawOptions(TypedDict, total=False):
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
        return self.whole.bounds

    @property
    def rows(self) -> slice:
        """Which rows of the whole view these are."""
        return slice(self.top, self.top + self.height)


def band_count(micro_batches: int) -> int:
    """Return in how many bands a picture is drawn in some number of micro-batches; one draws it whole."""
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
    seeds = torch.randint(1 << 62, (views,)).tolist() if views > 1 else []
    for number, view in enumerate(batch.views, batch.first):
        generator = torch.Generator(device).manual_seed(seeds[number]) if seeds else None
        yield ViewInBands(view=view, bands=band_count(micro_batches), generator=generator), 1 / len(batch.views)


def most_bands(views: Sequence[View]) -> int:
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
    seen = rows[(ahead > view.near) & rows.isfinite()]
    held = torch.bincount((seen / TILE).floor().clamp(0, tiles - 1).long(), minlength=tiles).double()
    work = (held / held.sum().clamp_min(1) + 1 / tiles).cumsum(0)
    wanted = torch.arange(1, count, dtype=work.dtype, device=work.device) * work[-1] / count
    between = (torch.searchsorted(work, wanted) + 1).tolist()
    ends = [min(TILE * end, view.height) for end in sorted({0, *between, tiles})]
    camera = {field.name: getattr(view, field.name) for field in fields(View)}
    return [
        Band(**camera | {"cy": view.cy - top, "height": bottom - top}, whole=view, top=top)
        for top, bottom in pairwise(ends)
    ]


def splat_in_bands(
    gaussians: tuple[Tensor, Tensor, Tensor, Tensor],
    colours: tuple[Tensor, ...],
    view: View,
    count: int,
    **options: Unpack[DrawOptions],
) -> RenderOutput:
    """Draw Gaussians as `rasterize` does, in bands of rows.

    The picture, its gradients, and what `DensificationStatistics` reads of it are those of `rasterize`, up to rounding:
    every pixel lies in one band, and what a Gaussian gets from several bands is added up. (One that lies between the
    rows of two bands and touches no pixel, as only alphas below 0.006 can, does not count as visible.) The picture is
    drawn without a graph; `backward` draws every band again, of the Gaussians that touch it, and lets go of it after
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
        return _Drawing([], options).draw((*gaussians, *colours), view)
    drawing = _Drawing(bands_of(view, count, gaussians[0].detach()), options)
    maps = dict(zip(MAPS, _InBands.apply(drawing, *gaussians, *colours), strict=True))
    return RenderOutput(**maps, ids=drawing.ids, radii=drawing.radii, means2d=drawing.means2d, absgrad=drawing.absgrad)


class _Drawing:
    """How a picture is drawn in bands, and which Gaussians it shows.

    Args:
        bands: of the view.
        options: for `rasterize`.

    Attributes:
        bands: as above.
        ids, radii, means2d, absgrad: as in `RenderOutput`, of the whole picture.
        shown: which Gaussians each band shows.
        places: where these stand among `ids`.
    """

    def __init__(self, bands: Sequence[Band], options: DrawOptions) -> None:
        self.bands = bands
        self._options = options
        self.ids = self.radii = self.means2d = torch.empty(0)
        self.absgrad: Tensor | None = None
        self.shown: list[Tensor] = []
        self.places: list[Tensor] = []

    def draw(self, tensors: Sequence[Tensor], view: View) -> RenderOutput:
        """Draw some Gaussians."""
        means, quaternions, scales, opacities, *colours = tensors
        of = {"features": colours[0]} if len(colours) == 1 else {"spherical_harmonics": (colours[0], colours[1])}
        parts: dict[str, Any] = {**of, **self._options}
        return rasterize(means, quaternions, scales, opacities, view, **parts)

    def note(self, drawn: Sequence[RenderOutput]) -> None:
        """Take down which Gaussians the bands show, as the whole picture would say it."""
        self.shown = [one.ids for one in drawn]
        self.ids = torch.cat(self.shown).unique()
        self.places = [torch.searchsorted(self.ids, ids) for ids in self.shown]
        self.radii = drawn[0].radii.new_zeros(len(self.ids))
        self.means2d = drawn[0].means2d.new_zeros(len(self.ids), 2)
        for band, one, places in zip(self.bands, drawn, self.places, strict=True):
            self.radii[places] = torch.maximum(self.radii[places], one.radii)
            self.means2d[places] = one.means2d + one.means2d.new_tensor([0.0, band.top])
        if drawn[0].absgrad is not None:
            self.absgrad = torch.zeros_like(self.means2d)

    def pull(self, number: int, drawn: RenderOutput) -> None:
        """Add what pulls at a band's Gaussians on the image, after its backward pass."""
        places = self.places[number][drawn.ids]
        if drawn.means2d.grad is not None:
            self.means2d.grad = torch.zeros_like(self.means2d) if self.means2d.grad is None else self.means2d.grad
            self.means2d.grad.index_add_(0, places, drawn.means2d.grad)
        if drawn.absgrad is not None and self.absgrad is not None:
            self.absgrad.index_add_(0, places, drawn.absgrad)


class _InBands(torch.autograd.Function):
    """Tensors of all Gaussians to the maps of the whole picture, which alone are kept in between."""

    @staticmethod
    def forward(ctx: Any, drawing: _Drawing, *tensors: Tensor) -> Any:
        maps: list[Tensor | None] = [None] * len(MAPS)
        drawn: list[RenderOutput] = []
        for band in drawing.bands:
            one = drawing.draw(tensors, band)
            for number, name in enumerate(MAPS):
                _put(maps, number, getattr(one, name), band)
            drawn.append(_without_maps(one))
        drawing.note(drawn)
        ctx.drawing = drawing
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(one for one in maps[WITH_GRADIENT:] if one is not None))
        ctx.set_materialize_grads(False)
        return tuple(maps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        drawing: _Drawing = ctx.drawing
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        sums = [torch.zeros_like(one) if wanted else None for one, wanted in zip(tensors, needed, strict=True)]
        for number, (band, ids) in enumerate(zip(drawing.bands, drawing.shown, strict=True)):
            if not len(ids):
                continue
            pairs = zip(tensors, needed, strict=True)
            own = [one.index_select(0, ids).requires_grad_(wanted) for one, wanted in pairs]
            with torch.enable_grad():
                drawn = drawing.draw(own, band)
            pulled = [
                (getattr(drawn, name), gradient[band.rows])
                for name, gradient in zip(MAPS, gradients, strict=True)
                if gradient is not None
            ]
            torch.autograd.backward([one for one, _ in pulled], [gradient for _, gradient in pulled])
            for total, leaf in zip(sums, own, strict=True):
                if total is not None and leaf.grad is not None:
                    total.index_add_(0, ids, leaf.grad)
            drawing.pull(number, drawn)
        return (None, *sums)


def _put(maps: list[Tensor | None], number: int, rows: Tensor | None, band: Band) -> None:
    """Put a band's rows into the whole map, which is made with the first of them."""
    if rows is None:
        return
    whole = maps[number]
    if whole is None:
        maps[number] = whole = rows.new_empty(band.whole.height, *rows.shape[1:])
    whole[band.rows] = rows


def _without_maps(drawn: RenderOutput) -> RenderOutput:
    """What is left of a band once its rows are in the whole maps; copied: it lies in memory for all Gaussians."""
    nothing = drawn.alpha.new_empty(0, 0)
    return RenderOutput(
        features=nothing[..., None],
        alpha=nothing,
        depth=None,
        normals=None,
        median_depth=None,
        median_ids=None,
        ids=drawn.ids.clone(),
        radii=drawn.radii.clone(),
        means2d=drawn.means2d.clone(),
        absgrad=drawn.absgrad,
    )
