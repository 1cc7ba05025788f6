"""How fast each kind of parameter learns."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch import InputError
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.render import VisibleAdam


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Learning rates of 3DGS (Kerbl 2023; the same in SuGaR).

    Attributes:
        means: at step 0, in shares of the scene's extent.
        means_final: at step `decay_steps` and after, in shares of the extent.
        decay_steps: over which the rate of the means falls, evenly in its logarithm.
        log_scales: constant.
        quaternions: constant.
        opacity_logits: constant.
        constant: of the harmonics of degree 0, constant.
        rest: of the other harmonics, constant.
        fall: share of themselves to which all but the means' fall, evenly in the logarithm; 1 keeps them constant.
        fall_from: step at which the fall begins.
        fall_steps: over which they fall.

    Raises:
        InputError: a rate or a number of steps that is not above 0.
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
        """Refuse rates that train nothing."""
        for name, value in vars(self).items():
            if name != "fall_from" and not 0 < value < math.inf:
                raise InputError(f"the learning rate's {name} is {value}: wanted is a finite number above 0")

    def means_at(self, step: int, extent: float) -> float:
        """Rate of the means at a step, 0-based, in world units of a scene with this extent."""
        progress = min(max(step / self.decay_steps, 0.0), 1.0)
        return extent * math.exp((1 - progress) * math.log(self.means) + progress * math.log(self.means_final))

    def apply(self, optimizer: Optimizer, step: int, extent: float) -> float:
        """Set the rates for this step, and return that of the means."""
        rate = self.means_at(step, extent)
        share = self.fall ** min(max((step - self.fall_from) / self.fall_steps, 0.0), 1.0)
        for group in optimizer.param_groups:
            name = str(group.get("name"))
            group["lr"] = rate if name == "means" else share * getattr(self, name)
        return rate


def make_optimizer(gaussians: Gaussians, rates: Rates, extent: float, *, visible_only: bool = True) -> Optimizer:
    """Make Adam with one named group per kind of parameter, and have it follow the Gaussians as they come and go.

    Args:
        gaussians: what it steps; on their device already.
        rates: learning rates.
        extent: of the scene, world units.
        visible_only: on a CPU, step only the rows that were seen (set `optimizer.visible` before each step).
    """
    groups: list[dict[str, list[Tensor] | float | str]] = [
        {
            "params": [parameter],
            "name": name,
            "lr": rates.means_at(0, extent) if name == "means" else getattr(rates, name),
        }
        for name, parameter in gaussians.named_parameters()
        # Harmonics of degree 0 leave `rest` empty.
        if parameter.numel()
    ]
    # The eps below is 3DGS's: a loss that is a mean over pixels has gradients that are small against the usual 1e-8.
    on_cpu = gaussians.means.device.type == "cpu"
    if visible_only and on_cpu:
        optimizer = VisibleAdam(groups, betas=(0.9, 0.999), eps=1e-15)
    else:
        optimizer = torch.optim.Adam(groups, betas=(0.9, 0.999), eps=1e-15, fused=not on_cpu)
    gaussians.stepped_by(optimizer)
    return optimizer
