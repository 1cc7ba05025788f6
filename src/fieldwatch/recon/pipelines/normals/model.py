"""Trainable parts of a normals run: signed distance field, surface sharpness, occupancy grid and poses."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.poses import Poses
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.render import Cells, Deviation, HashEncoding, HashSdf, OccupancyConfig, OccupancyGrid


class NormalsModel(nn.Module):
    """The field and everything it is rendered with, in one module, so that a single ``.to`` moves all of it.

    Args:
        config: settings of the run.
        poses: initial poses of the training views, ``world_from_camera``.

    Attributes:
        sdf: signed distance field.
        deviation: sharpness of the surface.
        grid: occupancy grid of cells that may contain the surface.
        poses: poses of the training views.
    """

    def __init__(self, config: NormalsConfig, poses: Float[Tensor, "views 4 4"]) -> None:
        super().__init__()
        options = config.sdf
        rendering = config.rendering
        encoding = HashEncoding(
            levels=options.levels,
            base_resolution=options.base_resolution,
            finest_resolution=options.finest_resolution,
            table_bits=options.table_bits,
            features_per_level=options.features_per_level,
        )
        self.sdf = HashSdf(encoding=encoding, hidden=options.hidden, layers=options.layers, radius=options.radius)
        # The bounds of s: below 1 the surface is wider than the scene, above the maximum it falls between samples.
        self.deviation = Deviation(
            initial=rendering.first_sharpness, lowest=1.0, highest=max(rendering.most_sharpness, 1.0)
        )
        # A scheduled sharpness is set by `set_sharpness` and must not receive gradients.
        self.deviation.requires_grad_(rendering.sharpness == "learned")
        self.grid = OccupancyGrid(
            OccupancyConfig(
                cells=Cells(resolution=rendering.grid_resolution),
                sharpness=rendering.grid_sharpness,
                threshold=rendering.grid_threshold,
                every=rendering.grid_every,
                warmup=rendering.grid_warmup,
                chunk=rendering.chunk,
            )
        )
        self.poses = Poses(poses, config.poses)

    @property
    def sharpness(self) -> float:
        """Sharpness s of the surface, as a host float (synchronizes with the device)."""
        return self.deviation().item()

    @torch.no_grad()
    def set_sharpness(self, inverse_deviation: float) -> None:
        """Set a scheduled sharpness s; the parameter stores it, so that checkpoints and renders include it."""
        # The parameter is v of s = exp(10 v), as in NeuS.
        stored = torch.as_tensor(inverse_deviation).log() / 10
        self.deviation.parameter.fill_(stored.item())

    def groups(self) -> dict[str, Any]:
        """Return the learned parameters by group name, as recorded."""
        # The hash table is a separate group, because its Adam settings and learning rate differ.
        network = [*self.sdf.hidden.parameters(), *self.sdf.last.parameters()]
        groups: dict[str, Any] = {"table": [self.sdf.encoding.table], "network": network}
        if self.deviation.parameter.requires_grad:
            groups["deviation"] = [self.deviation.parameter]
        if self.poses.learned_parameters():
            groups["poses"] = self.poses.learned_parameters()
        return groups


def first_model(config: NormalsConfig, scene: NormalsScene) -> NormalsModel:
    """Create the initial model: a sphere and the starting poses."""
    return NormalsModel(config, scene.starting_poses[list(scene.train)]).to(scene.device)
