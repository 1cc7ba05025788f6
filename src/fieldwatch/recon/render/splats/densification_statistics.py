"""Densification statistics: the view-space gradients of the Gaussians, and how large they were rendered."""

import torch
from torch import Tensor

from fieldwatch.recon.render.splats.rasterization import RenderOutput
from fieldwatch.recon.render.splats.view import View


class DensificationStatistics:
    """View-space gradients, summed over steps, for adaptive density control (Kerbl 2023, section 5.2).

    The gradient is taken in normalised device coordinates, as the thresholds of 3DGS are: pixels times half the size.

    Args:
        count: Gaussians.
        device: where the sums are kept.

    Attributes:
        gradients: sum over steps of the gradient's length, one per Gaussian.
        counts: steps in which each Gaussian was visible.
        radii: largest radius so far, pixels.
    """

    def __init__(self, count: int, device: torch.device | str = "cpu") -> None:
        self.gradients = torch.zeros(count, device=device)
        self.counts = torch.zeros(count, device=device)
        self.radii = torch.zeros(count, device=device)

    @torch.no_grad()
    def add(self, output: RenderOutput, view: View) -> None:
        """Add what one step showed; call it after backward. A gradient that is not finite counts as not seen.

        Raises:
            ValueError: no gradient reached the places on the image.
        """
        gradient = output.means2d.grad if output.absgrad is None else output.absgrad
        if gradient is None:
            raise ValueError("no gradient reached means2d: call add after backward, with means that require gradients")
        # From pixels to normalized device coordinates, which are 2 units wide.
        half = gradient.new_tensor([view.width / 2, view.height / 2])
        norms = torch.linalg.vector_norm(gradient * half, dim=-1)
        finite = torch.isfinite(norms)
        self.gradients.index_add_(0, output.ids, torch.where(finite, norms, 0.0))
        self.counts.index_add_(0, output.ids, finite.to(output.radii.dtype))
        self.radii.index_copy_(0, output.ids, torch.maximum(self.radii[output.ids], output.radii))

    def mean_gradient(self) -> Tensor:
        """Mean length of the gradient over the steps in which each Gaussian was visible; 0 for the never seen."""
        return self.gradients / self.counts.clamp_min(1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums, for a checkpoint."""
        # The keys are those of earlier versions, which their checkpoints have.
        return {"pulls": self.gradients, "sightings": self.counts, "radii": self.radii}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over the sums of a checkpoint, whatever their number of Gaussians."""
        self.gradients, self.counts, self.radii = (state[name] for name in ("pulls", "sightings", "radii"))
