"""What growth wants to know of each Gaussian: how strongly the image pulls at it, and how large it was drawn."""

import torch
from torch import Tensor

from fieldwatch.render.splats.drawing import Splatted
from fieldwatch.render.splats.view import View


class ScreenTally:
    """Gradients of the places on the image, summed over steps, for adaptive density control (Kerbl 2023, section 5.2).

    The gradient is taken in normalised device coordinates, as the thresholds of 3DGS are: pixels times half the size.

    Args:
        count: Gaussians.
        device: where the sums are kept.

    Attributes:
        pulls: sum over steps of the gradient's length, one per Gaussian.
        sightings: steps in which each Gaussian was visible.
        radii: largest radius so far, pixels.
    """

    def __init__(self, count: int, device: torch.device | str = "cpu") -> None:
        self.pulls = torch.zeros(count, device=device)
        self.sightings = torch.zeros(count, device=device)
        self.radii = torch.zeros(count, device=device)

    @torch.no_grad()
    def add(self, drawn: Splatted, view: View) -> None:
        """Add what one step showed; call it after backward. A gradient that is not finite counts as not seen.

        Raises:
            ValueError: no gradient reached the places on the image.
        """
        gradient = drawn.means2d.grad if drawn.magnitudes is None else drawn.magnitudes
        if gradient is None:
            raise ValueError("no gradient reached means2d: call add after backward, with means that require gradients")
        half = gradient.new_tensor([view.width / 2, view.height / 2])
        pulls = torch.linalg.vector_norm(gradient * half, dim=-1)
        finite = torch.isfinite(pulls)
        self.pulls.index_add_(0, drawn.ids, torch.where(finite, pulls, 0.0))
        self.sightings.index_add_(0, drawn.ids, finite.to(drawn.radii.dtype))
        self.radii.index_copy_(0, drawn.ids, torch.maximum(self.radii[drawn.ids], drawn.radii))

    def mean_pull(self) -> Tensor:
        """Mean length of the gradient over the steps in which each Gaussian was visible; 0 for the never seen."""
        return self.pulls / self.sightings.clamp_min(1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums, for a checkpoint."""
        return {"pulls": self.pulls, "sightings": self.sightings, "radii": self.radii}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over the sums of a checkpoint, whatever their number of Gaussians."""
        self.pulls, self.sightings, self.radii = (state[name] for name in ("pulls", "sightings", "radii"))
