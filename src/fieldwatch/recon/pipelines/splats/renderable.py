"""What can be rendered as splats: Gaussians that are free, or that follow from a mesh."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data import GaussianCloud
from fieldwatch.recon.pipelines.splats.gaussians import Rows


@runtime_checkable
class RenderableGaussians(Protocol):
    """Gaussians, one row each: free ones (`Gaussians`), or those that a mesh carries."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    @property
    def means(self) -> Float[Tensor, "n 3"]:
        """Centres, world units."""
        ...

    @property
    def quaternions(self) -> Float[Tensor, "n 4"]:
        """Rotations w, x, y, z, of any length but 0."""
        ...

    @property
    def scales(self) -> Float[Tensor, "n 3"]:
        """Standard deviations along the own axes, world units."""
        ...

    @property
    def opacities(self) -> Float[Tensor, " n"]:
        """Opacities, 0 .. 1."""
        ...

    @property
    def harmonics(self) -> tuple[Float[Tensor, "n 1 3"], Float[Tensor, "n functions 3"]]:
        """Coefficients of degree 0, and of the higher degrees."""
        ...

    @property
    def degree(self) -> int:
        """Degree of the harmonics, 0 .. 3."""
        ...

    def degree_at(self, step: int, every: int = 1000) -> int:
        """Degree of the harmonics in use at a step."""
        ...

    def rows(self) -> Rows:
        """Raw values of all, detached."""
        ...

    def to_cloud(self) -> GaussianCloud:
        """Return a copy on the host, as files hold them."""
        ...

    def groups(self) -> dict[str, Mapping[str, Tensor]]:
        """Parameter groups, for `run.track(groups=...)`."""
        ...
