"""Protocol of Gaussians that can be rendered, free or bound to a mesh."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data import GaussianCloud
from fieldwatch.recon.pipelines.splats.gaussians import Rows


@runtime_checkable
class RenderableGaussians(Protocol):
    """Gaussians with one row each: free (`Gaussians`) or bound to a mesh (`BoundGaussians`)."""

    def __len__(self) -> int:
        """Return the number of Gaussians."""
        ...

    @property
    def means(self) -> Float[Tensor, "n 3"]:
        """Centers, world units."""
        ...

    @property
    def quaternions(self) -> Float[Tensor, "n 4"]:
        """Rotations as quaternions w, x, y, z of any length except 0."""
        ...

    @property
    def scales(self) -> Float[Tensor, "n 3"]:
        """Standard deviations along each Gaussian's axes, world units."""
        ...

    @property
    def opacities(self) -> Float[Tensor, " n"]:
        """Opacities, 0 .. 1."""
        ...

    def shapes(self) -> tuple[Float[Tensor, "n 3"], Float[Tensor, " n"]]:
        """Return scales and opacities."""
        ...

    @property
    def harmonics(self) -> tuple[Float[Tensor, "n 1 3"], Float[Tensor, "n functions 3"]]:
        """SH coefficients of degree 0 and of the higher degrees."""
        ...

    @property
    def degree(self) -> int:
        """SH degree, 0 .. 3."""
        ...

    def degree_at(self, step: int, every: int = 1000) -> int:
        """Return the SH degree in use at a step."""
        ...

    def rows(self) -> Rows:
        """Return the raw values of all rows, detached."""
        ...

    def to_cloud(self) -> GaussianCloud:
        """Return a copy on the host, in the layout of splat files."""
        ...

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """Return the parameter groups, for `run.track(groups=...)`."""
        ...
