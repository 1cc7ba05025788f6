"""What is trained, as one thing to draw: the Gaussians, their 3D filter, and the photos' colours."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.recon.pipelines.splats.bands import splat_in_bands
from fieldwatch.recon.pipelines.splats.drawable import Drawable
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.mip import SharpestDetail
from fieldwatch.recon.render import DepthMode, RenderOutput, View, apply_3d_filter

Held = TypeVar("Held", bound=Drawable)


class SplatModel(Generic[Held]):
    """Gaussians and what belongs to drawing them.

    Args:
        gaussians: what is drawn: free ones, or those that a mesh carries.
        background: behind everything, red, green, blue.
        mip: Mip-Splatting's 3D filter; None draws the Gaussians as they are.
        exposures: colour maps of the training photos; None leaves colours as they are drawn.
        antialiased: keep the light of Gaussians that drawing widens, see `rasterize`.
        log_beta: logarithm of the surface's thickness, world units, where that is learned; else None.
    """

    def __init__(  # noqa: PLR0913  each is one thing that drawing may need
        self,
        gaussians: Held,
        background: Float[Tensor, "3"],
        *,
        mip: SharpestDetail | None = None,
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

    def shapes(self) -> tuple[Float[Tensor, "n 3"], Float[Tensor, " n"]]:
        """Return scales and opacities as they are drawn: under the 3D filter, where there is one."""
        scales = self.gaussians.scales
        opacities = self.gaussians.opacities
        return (scales, opacities) if self.mip is None else apply_3d_filter(scales, opacities, self.mip.widths)

    def render(  # noqa: PLR0913  each is one thing that can be rendered
        self,
        view: View,
        *,
        degree: int | None = None,
        depth: DepthMode | None = None,
        normals: bool = False,
        magnitudes: bool = False,
        bands: int = 1,
    ) -> RenderOutput:
        """Render the Gaussians.

        Args:
            view: through which camera.
            degree: of the harmonics; None uses all there are.
            depth: also depth, see `rasterize`.
            normals: also normals.
            magnitudes: also sums of absolute gradients on the image, for growth.
            bands: number of horizontal bands in which the picture is drawn, one after the other, see `splat_in_bands`;
                for where memory does not suffice.
        """
        gaussians = self.gaussians
        scales, opacities = self.shapes()
        return splat_in_bands(
            (gaussians.means, gaussians.quaternions, scales, opacities),
            gaussians.harmonics,
            view,
            bands,
            sh_degree=gaussians.degree if degree is None else degree,
            background=_padded(self.background),
            depth=depth,
            normals=normals,
            antialiased=self.antialiased,
            absgrad=magnitudes,
        )

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """Parameter groups, for `run.track(groups=...)`."""
        further = {name: {str(i): part for i, part in enumerate(parts)} for name, parts in self.further().items()}
        return self.gaussians.groups() | further

    def further(self) -> dict[str, list[nn.Parameter]]:
        """What is learned beside the Gaussians, by name."""
        found = {} if self.exposures is None else {"exposures": list(self.exposures.parameters())}
        return found if self.log_beta is None else found | {"beta": [self.log_beta]}

    def kept(self) -> dict[str, Any]:
        """What of it a checkpoint holds, for `run.track`."""
        beta = None if self.log_beta is None else {"log_beta": self.log_beta.data}
        parts = {"gaussians": self.gaussians, "mip": self.mip, "exposures": self.exposures, "beta": beta}
        return {name: part for name, part in parts.items() if part is not None}


def _padded(background: Float[Tensor, "3"]) -> Float[Tensor, "3"] | None:
    """Nothing has to be added for black."""
    return background if bool(background.any()) else None


def view_of(camera: Any, device: torch.device) -> View:
    """Return the render room's view of a geometry camera, on a device, in single precision."""
    names = ("fx", "fy", "cx", "cy", "width", "height")
    pose = camera.camera_from_world.to(device=device, dtype=torch.float32)
    return View(camera_from_world=pose, **{name: getattr(camera, name) for name in names})
