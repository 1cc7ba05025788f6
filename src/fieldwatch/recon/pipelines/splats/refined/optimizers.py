"""Optimizers of a refinement, for the mesh and its Gaussians, with their learning rates."""

import math
from typing import Any

from torch.optim import Optimizer

from fieldwatch.recon.optimizers import Adam
from fieldwatch.recon.pipelines.splats.rates import visible_only_on
from fieldwatch.recon.pipelines.splats.refined.binding import PARAMETERS, BoundGaussians
from fieldwatch.recon.pipelines.splats.refined.config import RefineConfig
from fieldwatch.recon.render import VisibleAdam
from fieldwatch.recon.render.splats import VisibleRows

SPATIAL_SCALE = 10.0
"""Factor of SuGaR's spatial scale: 10 extents / sqrt(number of vertices)."""


class RefineOptimizers:
    """Adam for the vertices, and Adam for the Gaussians, which updates only visible rows.

    Args:
        config: settings of the refinement.
        extent: extent of the training cameras, world units.
        gaussians: Gaussians to optimize, already on their device.
    """

    def __init__(self, config: RefineConfig, extent: float, gaussians: BoundGaussians) -> None:
        self._options = config.rates
        self._total = config.iterations
        self._spatial = SPATIAL_SCALE * extent / math.sqrt(len(gaussians.vertices))
        self._constant = {
            "plane_log_scales": config.rates.lr_scales,
            "turns": config.rates.lr_turns,
            "opacity_logits": config.rates.lr_opacities,
            "constant": config.rates.lr_constant,
            "rest": config.rates.lr_rest,
        }
        device = gaussians.vertices.device
        groups = [
            {"params": [gaussians.get_parameter(name)], "name": name, "lr": self._constant[name]}
            for name in PARAMETERS[1:]
            if gaussians.get_parameter(name).numel()
        ]
        # All vertices are updated: normal consistency also moves vertices that the photo does not show.
        # eps as in 3DGS: with a loss averaged over pixels, gradients are small compared with the default 1e-8.
        self.vertices = Adam(
            [{"params": [gaussians.vertices], "name": "vertices"}],
            lr=self._vertices_at(0),
            eps=1e-15,
            fused=device.type != "cpu",
        )
        self.gaussians: Optimizer = (
            VisibleAdam(groups) if visible_only_on(device) else Adam(groups, eps=1e-15, fused=True)
        )

    def set_rates(self, step: int, visible: VisibleRows) -> None:
        """Set the learning rates and visible Gaussians of a step, 0-based."""
        if isinstance(self.gaussians, VisibleAdam):
            self.gaussians.visible = visible
        half = self._total / 2
        share = self._options.lr_fall ** max((step - half) / half, 0.0)
        for group in self.gaussians.param_groups:
            group["lr"] = share * self._constant[group["name"]]
        for group in self.vertices.param_groups:
            group["lr"] = self._vertices_at(step)

    @property
    def both(self) -> tuple[Optimizer, Optimizer]:
        """The two optimizers, for `step.update`."""
        return self.vertices, self.gaussians

    def checkpoint_items(self) -> dict[str, Any]:
        """Return the optimizers as checkpoint items, for `run.track`."""
        return {"mesh_optimizer": self.vertices, "optimizer": self.gaussians}

    def _vertices_at(self, step: int) -> float:
        """Return the learning rate of the vertices, world units."""
        options = self._options
        progress = min(step / (options.lr_steps or self._total), 1.0)
        return self._spatial * options.lr_vertices * (options.lr_vertices_final / options.lr_vertices) ** progress
