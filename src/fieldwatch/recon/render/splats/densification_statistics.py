"""Densification statistics: view-space gradients and rendered sizes of the Gaussians."""

import torch
from torch import Tensor

from fieldwatch.recon.render.splats.rasterization import RenderOutput
from fieldwatch.recon.render.splats.small_kernels import add_statistics
from fieldwatch.recon.render.splats.view import View
from fieldwatch.recon.transfers import constant


class DensificationStatistics:
    """View-space gradients summed over steps, for adaptive density control (Kerbl 2023, section 5.2).

    Gradients are in normalized device coordinates, like the thresholds of 3DGS: per pixel, times half the image size.

    Args:
        count: number of Gaussians.
        device: device of the sums.

    Attributes:
        gradients: sum of the gradient norms over steps, per Gaussian.
        counts: number of steps in which each Gaussian was visible.
        radii: largest radius so far in pixels, per Gaussian.
    """

    def __init__(self, count: int, device: torch.device | str = "cpu") -> None:
        self.gradients = torch.zeros(count, device=device)
        self.counts = torch.zeros(count, device=device)
        self.radii = torch.zeros(count, device=device)

    @torch.no_grad()
    def add(self, output: RenderOutput, view: View) -> None:
        """Add the statistics of a step; call it after backward. A non-finite gradient counts as not visible.

        Raises:
            ValueError: `means2d` has no gradient.
        """
        gradient = output.means2d.grad if output.absgrad is None else output.absgrad
        if gradient is None:
            raise ValueError("no gradient reached means2d: call add after backward, with means that require gradients")
        # From pixels to normalized device coordinates, which are 2 units wide.
        size = (view.width / 2, view.height / 2)
        if output.visible is not None and gradient.is_cuda:
            sums = (self.gradients, self.counts, self.radii)
            add_statistics(gradient, size, output.visible, output.radii, sums=sums)
            return
        half = constant(size, gradient)
        # Norm per view first, then the sum: opposite gradients of different views must not cancel.
        norms = torch.linalg.vector_norm(gradient * half, dim=-1)
        finite = torch.isfinite(norms)
        if output.visible is not None:
            # `ids` are all rows: nothing has to be selected.
            finite &= output.visible
            self.gradients += torch.where(finite, norms, 0.0)
            self.counts += finite
            torch.maximum(self.radii, output.radii, out=self.radii)
            return
        # Each id occurs once: reading and writing rows repeats to the bit on a GPU, unlike adding with atomics.
        ids = output.ids
        self.gradients.index_copy_(0, ids, self.gradients[ids] + torch.where(finite, norms, 0.0))
        self.counts.index_copy_(0, ids, self.counts[ids] + finite.to(output.radii.dtype))
        self.radii.index_copy_(0, ids, torch.maximum(self.radii[ids], output.radii))

    def mean_gradient(self) -> Tensor:
        """Return the mean gradient norm over the steps in which each Gaussian was visible; 0 if it never was."""
        return self.gradients / self.counts.clamp_min(1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums for a checkpoint."""
        # The keys must not change: checkpoints of earlier versions have them.
        return {"pulls": self.gradients, "sightings": self.counts, "radii": self.radii}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the sums from a checkpoint, for any number of Gaussians."""
        self.gradients, self.counts, self.radii = (state[name] for name in ("pulls", "sightings", "radii"))
