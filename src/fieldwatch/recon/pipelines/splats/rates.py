"""Learning rates of the Gaussians' parameters, and their optimizer."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch import InputError
from fieldwatch.recon.optimizers import Adam
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.render import VisibleAdam, visible_adam_problem
from fieldwatch.recon.render.splats import splat_kernels_problem


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Learning rates of the Gaussians' parameters; the defaults are those of 3DGS (Kerbl 2023) and SuGaR.

    Attributes:
        means: learning rate of the means at step 0, as a fraction of the scene's extent.
        means_final: learning rate of the means from step `decay_steps` on, as a fraction of the scene's extent.
        decay_steps: number of steps over which the learning rate of the means decays exponentially.
        log_scales: learning rate of the log scales.
        quaternions: learning rate of the quaternions.
        opacity_logits: learning rate of the opacity logits.
        constant: learning rate of the SH coefficients of degree 0.
        rest: learning rate of the SH coefficients of degree 1 and above.
        fall: final fraction of all learning rates except that of the means; the decay is exponential, 1 disables it.
        fall_from: step at which this decay starts.
        fall_steps: number of steps over which it takes place.

    Raises:
        InputError: A learning rate or a number of steps is not positive.
    """

    means: float = 1.6e-4
    means_final: float = 1.6e-6
    decay_steps: int = 30_000
    log_scales: float = 5e-3
    quaternions: float = 1e-3
    opacity_logits: float = 5e-2
    constant: float = 2.5e-3
    rest: float = 1.25e-4
    fall: float = 1.0
    fall_from: int = 0
    fall_steps: int = 30_000

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name, value in vars(self).items():
            if name != "fall_from" and not 0 < value < math.inf:
                raise InputError(f"Rates.{name} must be finite and greater than 0, got {value}")

    def means_at(self, step: int, extent: float) -> float:
        """Return the learning rate of the means at a step (0-based), in world units for the given extent."""
        progress = min(max(step / self.decay_steps, 0.0), 1.0)
        # Interpolated in the logarithm, as in 3DGS.
        return extent * math.exp((1 - progress) * math.log(self.means) + progress * math.log(self.means_final))

    def apply(self, optimizer: Optimizer, step: int, extent: float) -> float:
        """Set the learning rates for this step and return that of the means."""
        rate = self.means_at(step, extent)
        share = self.fall ** min(max((step - self.fall_from) / self.fall_steps, 0.0), 1.0)
        # Groups are named after the parameters, see `make_optimizer`.
        for group in optimizer.param_groups:
            name = str(group.get("name"))
            group["lr"] = rate if name == "means" else share * getattr(self, name)
        return rate


def make_optimizer(gaussians: Gaussians, rates: Rates, extent: float, *, visible_only: bool = True) -> Optimizer:
    """Return an Adam optimizer with one named group per parameter, registered with the Gaussians.

    The optimizer's parameters and state are updated whenever Gaussians are added or removed.

    Args:
        gaussians: Gaussians to optimize, already on their device.
        rates: learning rates.
        extent: extent of the scene, world units.
        visible_only: update only the visible rows (set `optimizer.visible` before each step). On a GPU without our own
            kernels, all rows are updated.
    """
    groups: list[dict[str, list[Tensor] | float | str]] = [
        {
            "params": [parameter],
            "name": name,
            "lr": rates.means_at(0, extent) if name == "means" else getattr(rates, name),
        }
        for name, parameter in gaussians.named_parameters()
        # At SH degree 0, `rest` is empty.
        if parameter.numel()
    ]
    # eps 1e-15 as in 3DGS: with a loss averaged over pixels, gradients are small compared with the default 1e-8.
    on_cpu = gaussians.means.device.type == "cpu"
    if visible_only and visible_only_on(gaussians.means.device):
        optimizer = VisibleAdam(groups, betas=(0.9, 0.999), eps=1e-15)
    else:
        optimizer = Adam(groups, betas=(0.9, 0.999), eps=1e-15, fused=not on_cpu)
    gaussians.stepped_by(optimizer)
    return optimizer


def visible_only_on(device: torch.device) -> bool:
    """Return whether only the visible Gaussians are updated on a device: on a GPU if our own kernels work."""
    return device.type != "cuda" or (splat_kernels_problem() is None and visible_adam_problem() is None)
