"""Points on the level sets of the density, along the training cameras' rays (SuGaR, section 4.2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.geometry import nearest_neighbors
from fieldwatch.recon.losses import Ellipsoids
from fieldwatch.recon.mesh import OrientedPoints
from fieldwatch.recon.pipelines.splats.bands import render_in_bands
from fieldwatch.recon.pipelines.splats.hull import PhotoMask, VisualHull
from fieldwatch.recon.pipelines.splats.meshing.budget import MemoryBudget
from fieldwatch.recon.pipelines.splats.meshing.crossings import level_crossings
from fieldwatch.recon.pipelines.splats.meshing.depths import DepthMaps
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.render import RenderOutput, View

OPAQUE = 0.5
"""Opacity above which a Gaussian is part of the surface."""
NEIGHBORS = 16
"""Number of Gaussians whose densities are summed at a point, as in SuGaR."""
MaskOf = Callable[[int], PhotoMask]
"""Function from a view's index to the pixels that are informative about the surface."""
_DEPTHS_SHARE = 0.15  # fraction of the remaining memory for the depth maps


@dataclass(frozen=True, kw_only=True, eq=False)
class OpaqueGaussians:
    """Opaque Gaussians of a model, rendered in their view-independent colors.

    Attributes:
        ellipsoids: shapes of the Gaussians.
        constant: SH coefficients of degree 0.
        neighbors: indices of the nearest neighbors of each Gaussian, itself first.
        antialiased: whether Gaussians keep their light when the low-pass filter widens them.
        bands: number of bands in which an image is rendered; groups of rays are smaller by the same factor.
        carved: number of opaque Gaussians that were skipped because photos are transparent there.
    """

    ellipsoids: Ellipsoids
    constant: Float[Tensor, "n 1 3"]
    neighbors: Int[Tensor, "n k"]
    antialiased: bool
    bands: int = 1
    carved: int = 0

    @classmethod
    @torch.no_grad()
    def of(cls, model: SplatModel, hull: VisualHull | None = None, *, bands: int = 1) -> Self:
        """Select the opaque Gaussians of a model.

        Args:
            model: trained model.
            hull: visual hull of the photos; Gaussians with a center outside are skipped. None keeps all.
            bands: number of bands in which images are rendered.

        Raises:
            InputError: No Gaussian is opaque, or no opaque Gaussian is inside the hull.
        """
        scales, opacities = (part.detach().cpu() for part in model.shapes())
        opaque = opacities > OPAQUE
        if not bool(opaque.any()):
            raise InputError(
                f"none of the {len(opacities)} Gaussians has an opacity greater than {OPAQUE} (maximum: "
                f"{float(opacities.max()):.2f}), so there is no surface; train longer or with --regularization planar"
            )
        gaussians = model.gaussians
        opaque_count = int(opaque.sum())
        chosen = opaque.clone()
        if hull is not None and len(hull):
            opaque_means = gaussians.means.detach().cpu()[opaque].double().numpy()
            chosen[opaque] = ~torch.from_numpy(hull.outside(opaque_means))
        if not bool(chosen.any()):
            raise InputError(
                f"all {opaque_count} opaque Gaussians are where photos are transparent: check that the alpha of the "
                "photos is 255 on the object, or train longer"
            )
        means = gaussians.means.detach().cpu()[chosen]
        shapes = Ellipsoids(
            means=means,
            scales=scales[chosen],
            quaternions=gaussians.quaternions.detach().cpu()[chosen],
            opacities=opacities[chosen],
        )
        return cls(
            ellipsoids=shapes,
            constant=gaussians.constant.detach().cpu()[chosen][:, None],
            # Among the opaque Gaussians only: transparent ones do not count for the surface.
            neighbors=nearest_neighbors(means, NEIGHBORS).indices,
            antialiased=model.antialiased,
            bands=bands,
            carved=opaque_count - int(chosen.sum()),
        )

    @torch.no_grad()
    def render(self, view: View) -> RenderOutput:
        """Render colors and median depth, at which the transmittance falls to one half."""
        shapes = self.ellipsoids
        return render_in_bands(
            (shapes.means, shapes.quaternions, shapes.scales, shapes.opacities),
            (self.constant, self.constant[:, :0]),
            view,
            self.bands,
            sh_degree=0,
            depth="planar",
            median=True,
            antialiased=self.antialiased,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class VisibleSurface:
    """Surface that is visible from the training cameras.

    Attributes:
        levels: points on each level set of the density.
        depths: depth maps of the training cameras.
    """

    levels: tuple[OrientedPoints, ...]
    depths: DepthMaps


def surface_points(  # noqa: PLR0913  the Gaussians, the views, and limits of the sampling
    gaussians: OpaqueGaussians,
    views: Sequence[View],
    levels: Sequence[float],
    *,
    count: int,
    budget: MemoryBudget,
    mask_of: MaskOf = lambda _: PhotoMask(),
    hull: VisualHull | None = None,
    seed: int = 0,
    on_view: Callable[[int], None] = lambda _: None,
) -> VisibleSurface:
    """Sample points on the level sets that are visible from the cameras.

    Args:
        gaussians: opaque Gaussians, on the CPU.
        views: training cameras, on the CPU.
        levels: levels of the density.
        count: maximum number of points on each level, distributed evenly over the views.
        budget: memory budget.
        mask_of: function that returns the informative pixels of a view.
        hull: visual hull of the photos; points outside are skipped. None keeps all.
        seed: seed of the pixel sampling; the result does not depend on the memory budget.
        on_view: function called with the number of finished views.

    Raises:
        ValueError: There is not enough memory for the points; the message says how many fit.
    """
    # Rounded up, so that the views together can give the requested number.
    per_view = count // len(views) + 1
    budget.check_points(len(levels) * sum(min(per_view, view.height * view.width) for view in views))
    depths = DepthMaps(len(views), budget.share(_DEPTHS_SHARE))
    levels_points: list[list[OrientedPoints]] = [[] for _ in levels]
    for number, view in enumerate(views):
        output = gaussians.render(view)
        depth = output.median_depth
        mask = mask_of(number)
        if depth is None or output.median_ids is None:
            raise AssertionError("the rasterizer returned no median depth although it was requested")
        if mask.solid is not None:
            depth = torch.where(mask.solid, depth, 0.0)  # the photo shows the background there
        # 0 means empty space, NaN means unknown: masked pixels must not carve.
        depths.add(view, depth.numpy() if mask.counted is None else torch.where(mask.counted, depth, torch.nan).numpy())
        hit = (depth > 0) if mask.counted is None else (depth > 0) & mask.counted
        # Twice as many rays as points, because not every ray crosses the level.
        pixels = _sample_pixels(hit, 2 * per_view, seed + number)
        for level, points in enumerate(_points_of(gaussians, view, output, pixels, levels, budget)):
            inside = points if hull is None or not len(hull) else points.chosen(~hull.outside(points.points))
            # The pixels are in random order, so truncation is a random choice.
            levels_points[level].append(inside.chosen(np.arange(len(inside)) < per_view))
        on_view(number + 1)
    return VisibleSurface(levels=tuple(OrientedPoints.joined(*parts) for parts in levels_points), depths=depths)


def _sample_pixels(hit: Bool[Tensor, "height width"], count: int, seed: int) -> Int[Tensor, " pixels"]:
    pixels = hit.flatten().nonzero()[:, 0]
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
    return pixels[order[:count]]


def _points_of(  # noqa: PLR0913, PLR0917  one view, its pixels, and the levels
    gaussians: OpaqueGaussians,
    view: View,
    output: RenderOutput,
    pixels: Int[Tensor, " pixels"],
    levels: Sequence[float],
    budget: MemoryBudget,
) -> list[OrientedPoints]:
    """Return the points of one view on each level, with as many rays at a time as the memory allows."""
    parts: list[list[OrientedPoints]] = [[] for _ in levels]
    for chunk in pixels.split(max(budget.rays() // gaussians.bands, 1)):
        origins, directions = _surface_rays(view, output, chunk)
        # The Gaussian at which the transmittance falls to one half.
        hit = output.median_ids.flatten()[chunk].long()  # pyright: ignore[reportOptionalMemberAccess]  asked for above
        colors = output.features.reshape(-1, 3)[chunk].clamp(0, 1).mul(255).round().to(torch.uint8)
        crossings = level_crossings(origins, directions, hit, gaussians.neighbors, gaussians.ellipsoids, levels)
        for level, crossing in enumerate(crossings):
            crossed = crossing.found
            parts[level].append(
                OrientedPoints(
                    points=crossing.points[crossed].double().numpy(),
                    normals=_unit(crossing.normals[crossed]),
                    colors=colors[crossed].numpy(),
                )
            )
    return [OrientedPoints.joined(*of_level) for of_level in parts]


def _unit(normals: Float[Tensor, "n 3"]) -> np.ndarray:
    doubles = normals.double().numpy()
    return doubles / np.linalg.norm(doubles, axis=1, keepdims=True)


def _surface_rays(
    view: View, output: RenderOutput, pixels: Int[Tensor, " pixels"]
) -> tuple[Float[Tensor, "pixels 3"], Float[Tensor, "pixels 3"]]:
    """Return points on the rendered surface at the given pixels, and unit directions from the camera to them."""
    row = pixels // view.width
    column = pixels % view.width
    # Rays through pixel centers.
    x = (column + 0.5 - view.cx) / view.fx
    y = (row + 0.5 - view.cy) / view.fy
    # z = 1 in camera axes, so that scaling by depth, which is along the optical axis, gives the point.
    towards = torch.stack([x, y, torch.ones_like(x)], -1) @ view.rotation
    depth = output.median_depth.flatten()[pixels]  # pyright: ignore[reportOptionalMemberAccess]  asked for above
    return view.position + depth[:, None] * towards, torch.nn.functional.normalize(towards, dim=-1)
