"""Rendered depth maps of the training cameras, as the fusion needs them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import DepthView
from fieldwatch.recon.pipelines.splats.bands import render_in_bands
from fieldwatch.recon.pipelines.splats.hull import VisualHull
from fieldwatch.recon.pipelines.splats.meshing.depths import DepthMaps
from fieldwatch.recon.pipelines.splats.meshing.surface import OPAQUE, MaskOf
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.render import RenderOutput, View

_TWO_SURFACES = 0.05  # difference between mean and median depth, relative to the median, from which a pixel shows two
_LEAST_ALPHA = 0.3  # alpha from which a pixel shows a surface


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedDepths:
    """Depths and colors of all training views, rendered again at each iteration so that none stays in memory.

    The depth of a pixel is the mean over the Gaussians on its ray by their share of the light: it varies smoothly on a
    plane, where the median jumps from one Gaussian to the next. Where the two differ by a twentieth, the pixel shows
    two surfaces, one behind the edge of the other, and the depth is the median, that of one of them. Unlike a level set
    of the density, a mean needs no opaque Gaussians, so that all count. Nor does it need a pixel that absorbs half of
    the light: in front of a black background, surfaces as dark as that stay transparent.

    Attributes:
        gaussians: means, quaternions, scales and opacities.
        constant: SH coefficients of degree 0.
        antialiased: whether Gaussians keep their light when the low-pass filter widens them.
        cameras: cameras of the training photos.
        views: the same cameras as views, on the CPU.
        mask_of: function that returns the informative pixels of a view.
        bands: number of bands in which an image is rendered.
    """

    gaussians: tuple[Float[Tensor, "n 3"], Float[Tensor, "n 4"], Float[Tensor, "n 3"], Float[Tensor, " n"]]
    constant: Float[Tensor, "n 1 3"]
    antialiased: bool
    cameras: Sequence[Camera]
    views: Sequence[View]
    mask_of: MaskOf
    bands: int = 1

    @classmethod
    @torch.no_grad()
    def of(  # noqa: PLR0913  a model, what of it counts, and its views
        cls,
        model: SplatModel,
        hull: VisualHull,
        cameras: Sequence[Camera],
        views: Sequence[View],
        *,
        mask_of: MaskOf,
        bands: int = 1,
    ) -> Self:
        """Take the Gaussians of a model.

        Args:
            model: trained model.
            hull: visual hull of the photos; Gaussians with a center outside are left out.
            cameras: cameras of the training photos.
            views: the same cameras as views, on the CPU.
            mask_of: function that returns the informative pixels of a view.
            bands: number of bands in which images are rendered.
        """
        kept = slice(None) if not len(hull) else ~torch.from_numpy(hull.outside(_positions(model)))
        scales, opacities = model.shapes()
        parts = (model.gaussians.means, model.gaussians.quaternions, scales, opacities)
        means, quaternions, scales, opacities = (part.detach().cpu()[kept] for part in parts)
        return cls(
            gaussians=(means, quaternions, scales, opacities),
            constant=model.gaussians.constant.detach().cpu()[kept][:, None],
            antialiased=model.antialiased,
            cameras=cameras,
            views=views,
            mask_of=mask_of,
            bands=bands,
        )

    def __iter__(self) -> Iterator[DepthView]:
        """Render the views one after the other."""
        for number, camera in enumerate(self.cameras):
            output = self._rendered(number)
            colors = output.features.clamp(0, 1).mul(255).round().to(torch.uint8).numpy()
            yield DepthView(camera=camera, depth=self._depth(number, output).numpy(), colors=colors)

    def maps(self, budget: int) -> DepthMaps:
        """Return the depth maps of all views, subsampled to fit into a number of bytes."""
        maps = DepthMaps(len(self.views), budget)
        for number, view in enumerate(self.views):
            depth = self._depth(number, self._rendered(number))
            counted = self.mask_of(number).counted
            # 0 means empty space, NaN means unknown: masked pixels must not carve.
            maps.add(view, depth.numpy() if counted is None else torch.where(counted, depth, torch.nan).numpy())
        return maps

    @torch.no_grad()
    def _rendered(self, number: int) -> RenderOutput:
        return render_in_bands(
            self.gaussians,
            (self.constant, self.constant[:, :0]),
            self.views[number],
            self.bands,
            sh_degree=0,
            depth="planar",
            median=True,
            antialiased=self.antialiased,
        )

    def _depth(self, number: int, output: RenderOutput) -> Float[Tensor, "height width"]:
        """Return the depth of a rendered view; 0 where it shows no surface."""
        median = output.median_depth
        if median is None:
            raise AssertionError("the rasterizer returned no median depth although it was requested")
        mean = output.expected_depth()
        has_median = output.alpha > OPAQUE
        two_surfaces = has_median & ((mean - median).abs() > _TWO_SURFACES * median)
        depth = torch.where(two_surfaces, median, mean)
        # The median may lie behind the camera, on the plane of a Gaussian that is seen edge-on.
        shown = torch.where(has_median, median > 0, (output.alpha > _LEAST_ALPHA) & (mean > 0))
        usable = self.mask_of(number).usable
        shown = shown if usable is None else shown & usable
        return torch.where(shown, depth, 0.0)


def _positions(model: SplatModel) -> Float64[np.ndarray, "n 3"]:
    return model.gaussians.means.detach().cpu().double().numpy()
