"""The Gaussians that a run begins with."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.data import PhotoSet
from fieldwatch.pipelines.splats.config import SplatsConfig, growth_cap, prune_below
from fieldwatch.pipelines.splats.exposure import Exposures
from fieldwatch.pipelines.splats.filling import Filling, fill_gaps
from fieldwatch.pipelines.splats.gaussians import Gaussians
from fieldwatch.pipelines.splats.growth import prune_opacity
from fieldwatch.pipelines.splats.mip import SharpestDetail
from fieldwatch.pipelines.splats.model import SplatModel
from fieldwatch.pipelines.splats.scene import Scene

SCATTERED = 20_000
"""Gaussians of random places for scenes without points."""

GAP = 0.03
"""Distance to the nearest known point, in shares of a photo's longer side, from which on a place is filled."""


def first_model(config: SplatsConfig, scene: Scene) -> SplatModel:
    """Make the model that the first step trains: of loaded Gaussians, of the points, or scattered.

    Raises:
        ValueError: too few points, or nothing left after a prune.
    """
    gaussians = (_from_photos(config, scene) if scene.cloud is None else Gaussians.from_cloud(scene.cloud)).to(
        scene.device
    )
    if scene.cloud is not None and config.prune_on_load:
        prune_opacity(gaussians, prune_below(config))
    learnable = config.surface.beta == "learnable"
    thickness = gaussians.scales.detach().amin(1).mean()
    return SplatModel(
        gaussians,
        scene.background,
        mip=SharpestDetail(scene.training_views, gaussians.means) if config.mip else None,
        exposures=_exposures(scene) if config.exposure else None,
        antialiased=config.antialiased,
        log_beta=nn.Parameter(thickness.log()) if learnable else None,
    )


def _exposures(scene: Scene) -> Exposures:
    return Exposures([scene.photos.names[i] for i in scene.photos.train]).to(scene.device)


def _from_photos(config: SplatsConfig, scene: Scene) -> Gaussians:
    photos = scene.photos
    cap = growth_cap(config)
    if not len(photos.points):
        low, high = looked_at(photos)
        count = SCATTERED if cap is None else min(SCATTERED, cap)
        return Gaussians.in_box(max(count, 2), low, high, degree=config.degree)
    points, colours = photos.points, photos.colours
    if config.growth_options.fill_points:
        more, shades = fill_gaps(photos, Filling(count=config.growth_options.fill_points, gap=GAP))
        points, colours = torch.cat([points, more]), torch.cat([colours, shades])
    if cap is not None and len(points) > cap:
        kept = torch.randperm(len(points))[:cap]
        points, colours = points[kept], colours[kept]
    return Gaussians.from_points(points, colours, degree=config.degree)


def looked_at(photos: PhotoSet) -> tuple[Float[Tensor, "3"], Float[Tensor, "3"]]:
    """Return two corners of the box around the point that the training cameras look at, half as far as they stand.

    The point is the one nearest to all optical axes, by least squares.
    """
    cameras = [photos.cameras[i] for i in photos.train]
    places = torch.stack([camera.position.double() for camera in cameras])
    axes = torch.stack([camera.forward.double() for camera in cameras])
    across = torch.eye(3, dtype=torch.float64) - axes[:, :, None] * axes[:, None, :]
    system = across.sum(0) + 1e-6 * torch.eye(3, dtype=torch.float64)
    middle = torch.linalg.solve(system, (across @ places[:, :, None]).sum(0)[:, 0])
    reach = 0.5 * (places - middle).norm(dim=1).mean().clamp_min(1e-3)
    return (middle - reach).float(), (middle + reach).float()
