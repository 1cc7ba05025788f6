"""Optimizers of a run: Adam for the Gaussians, the exposures and the surface thickness, with their learning rates."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from fieldwatch import Terms
from fieldwatch.recon.optimizers import Adam
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.exposure import ExposureRates, make_exposure_optimizer
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.rates import Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.schedule import Plan
from fieldwatch.recon.render import VisibleAdam
from fieldwatch.recon.render.splats import VisibleRows

EXPOSURES_FALL = 0.1
"""Final fraction of the exposures' learning rate."""


class SplatOptimizers:
    """All optimizers of a run and their learning rates.

    Args:
        config: settings of the run.
        scene: scene with its extent and schedule.
        model: model to optimize, already on its device.
    """

    def __init__(self, config: SplatsConfig, scene: Scene, model: SplatModel) -> None:
        self.rates = rates_of(config, scene.plan)
        self.gaussians = make_optimizer(model.gaussians, self.rates, scene.extent)
        first = config.rates.lr_exposures
        steps = scene.plan.total
        self._exposure_rates = ExposureRates(first=first, last=EXPOSURES_FALL * first, decay_steps=steps)
        maps = model.exposures
        self._exposures = None if maps is None else make_exposure_optimizer(maps, self._exposure_rates)
        beta = model.log_beta
        # Fused on a GPU: the kernel then skips a refused update by itself.
        self._beta = None if beta is None else Adam([beta], lr=config.rates.lr_beta, fused=beta.is_cuda or None)
        self._extent = scene.extent

    def set_rates(self, step: int, photos: Sequence[int], visible: VisibleRows) -> float:
        """Set learning rates and visible rows for the update of a step.

        Args:
            step: current step, 0-based.
            photos: indices of the step's photos among the training photos.
            visible: the Gaussians that are visible in them.

        Returns:
            The learning rate of the means, world units.
        """
        if isinstance(self.gaussians, VisibleAdam):
            # Plain Adam would keep moving rows that are not visible in this step, by their momentum.
            self.gaussians.visible = visible
        if self._exposures is not None:
            self._exposure_rates.apply(self._exposures, step, *photos)
        return self.rates.apply(self.gaussians, step, self._extent)

    def active(self, terms: Terms) -> tuple[Optimizer, ...]:
        """Return the optimizers that take part in this update: the thickness only if a density term acts."""
        # Other terms give the thickness no gradient.
        beta = self._beta if "sdf_density" in terms or "sdf_estimation" in terms else None
        return tuple(each for each in (self.gaussians, self._exposures, beta) if each is not None)

    def checkpoint_items(self) -> dict[str, Any]:
        """Return the optimizers as checkpoint items, for `run.track`."""
        items = {"optimizer": self.gaussians, "exposure_optimizer": self._exposures, "beta_optimizer": self._beta}
        return {name: item for name, item in items.items() if item is not None}


def rates_of(config: SplatsConfig, plan: Plan) -> Rates:
    """Return the learning rates of a config, with iterations converted to steps."""
    options = config.rates
    decay_steps = plan.total if options.lr_iterations is None else max(round(options.lr_iterations * plan.scale), 1)
    # The decay of `lr_fall` covers the second half of the steps of this run.
    half = (plan.first + plan.total) // 2
    factor = options.lr_factor
    return Rates(
        means=factor * options.lr_means,
        means_final=options.lr_means_final,
        decay_steps=decay_steps,
        log_scales=factor * options.lr_scales,
        quaternions=factor * options.lr_quaternions,
        opacity_logits=factor * options.lr_opacities,
        constant=factor * options.lr_constant,
        rest=factor * options.lr_rest,
        fall=options.lr_fall,
        fall_from=half,
        fall_steps=max(plan.total - half, 1),
    )
