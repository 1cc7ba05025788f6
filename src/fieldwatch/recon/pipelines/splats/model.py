"""The trained model: Gaussians, their 3D filter, and the exposures of the photos."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.recon.pipelines.splats.bands import render_in_bands
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.mip_filter import MipFilter
from fieldwatch.recon.pipelines.splats.renderable import RenderableGaussians
from fieldwatch.recon.render import DepthMode, RenderOutput, View, apply_3d_filter

Shapes = tuple[Float[Tensor, "n 3"], Float[Tensor, " n"]]
"""Scales and opacities."""
GaussiansT = TypeVar("GaussiansT", bound=RenderableGaussians)


class SplatModel(Generic[GaussiansT]):
    """Gaussians together with the settings and modules needed to render them.

    Args:
        gaussians: free Gaussians, or Gaussians bound to a mesh.
        background: background color, RGB in [0, 1], shape (3,).
        mip: Mip-Splatting's 3D filter; None renders the Gaussians unfiltered.
        exposures: color transforms of the training photos; None leaves rendered colors unchanged.
        antialiased: preserve the light of Gaussians that the low-pass filter widens, see `rasterize`.
        log_beta: logarithm of the learned surface thickness, world units; None if it is not learned.
    """

    def __init__(  # noqa: PLR0913  independent options of rendering
        self,
        gaussians: GaussiansT,
        background: Float[Tensor, "3"],
        *,
        mip: MipFilter | None = None,
        exposures: Exposures | None = None,
        antialiased: bool = False,
        log_beta: nn.Parameter | None = None,
    ) -> None:
        self.gaussians = gaussians
        self.background = background
        self.mip = mip
        self.exposures = exposures
        self.log_beta = log_beta
        self.antialiased = antialiased

    @property
    def background(self) -> Float[Tensor, "3"]:
        """Background color, RGB in [0, 1]."""
        return self._background

    @background.setter
    def background(self, background: Float[Tensor, "3"]) -> None:
        """Set the background color."""
        self._background = background
        # A black background contributes nothing, so that compositing over it can be skipped. Read here, because reading
        # it at every render would wait for the device.
        self._composited = background if bool(background.any()) else None

    def shapes(self) -> Shapes:
        """Return scales and opacities as rendered, that is, after the 3D filter if there is one."""
        scales, opacities = self.gaussians.shapes()
        return (scales, opacities) if self.mip is None else apply_3d_filter(scales, opacities, self.mip.widths)

    def render(  # noqa: PLR0913  independent outputs and options
        self,
        view: View,
        *,
        degree: int | None = None,
        depth: DepthMode | None = None,
        normals: bool = False,
        absgrad: bool = False,
        bands: int = 1,
        shapes: Shapes | None = None,
    ) -> RenderOutput:
        """Render the Gaussians.

        Args:
            view: camera to render from.
            degree: SH degree; None uses the full degree.
            depth: kind of depth to render, see `rasterize`; None renders none.
            normals: whether to render normals.
            absgrad: whether to accumulate absolute view-space gradients over pixels, for densification (AbsGS).
            bands: number of horizontal bands that are rendered one after the other to save memory, see
                `render_in_bands`.
            shapes: result of `shapes`; None computes it.
        """
        gaussians = self.gaussians
        scales, opacities = self.shapes() if shapes is None else shapes
        return render_in_bands(
            (gaussians.means, gaussians.quaternions, scales, opacities),
            gaussians.harmonics,
            view,
            bands,
            sh_degree=gaussians.degree if degree is None else degree,
            background=self._composited,
            depth=depth,
            normals=normals,
            antialiased=self.antialiased,
            absgrad=absgrad,
        )

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """Return the parameter groups, for `run.track(groups=...)`."""
        groups = self.gaussians.groups()
        if self.exposures is not None:
            groups["exposures"] = {str(i): parameter for i, parameter in enumerate(self.exposures.parameters())}
        if self.log_beta is not None:
            groups["beta"] = {"0": self.log_beta}
        return groups

    def checkpoint_items(self) -> dict[str, Any]:
        """Return the model's checkpoint items, for `run.track`."""
        beta = None if self.log_beta is None else {"log_beta": self.log_beta.data}
        items = {"gaussians": self.gaussians, "mip": self.mip, "exposures": self.exposures, "beta": beta}
        return {name: item for name, item in items.items() if item is not None}


def view_of(camera: Any, device: torch.device) -> View:
    """Return the renderer's view of a camera, on a device, in single precision."""
    names = ("fx", "fy", "cx", "cy", "width", "height")
    # Cameras are in double precision; the rasterizer's kernels use single precision.
    pose = camera.camera_from_world.to(device=device, dtype=torch.float32)
    return View(camera_from_world=pose, **{name: getattr(camera, name) for name in names})
