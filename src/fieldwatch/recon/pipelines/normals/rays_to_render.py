"""What rendering asks of rays."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.render import PackedSamples


@runtime_checkable
class RaysToRender(Protocol):
    """Rays and the random numbers that place their samples: a micro-batch, or one rank's part of it."""

    @property
    def batch(self) -> RayBatch:
        """Rays of this process."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other processes render other rays of the micro-batch."""
        ...

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Return offsets of the samples of the first ``rays`` rays, in steps."""
        ...

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Return positions of stratified samples within their strata for the first ``rays`` rays."""
        ...

    def jitter_and_noise(self, rays: int, columns: int) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays columns"]]:
        """Return both, the jitter drawn first."""
        ...

    def limited(self, samples: PackedSamples, most: int) -> PackedSamples:
        """Drop trailing rays that would exceed a number of samples, counted over all ranks."""
        ...
