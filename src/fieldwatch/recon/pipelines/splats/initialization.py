"""The Gaussians that a run begins with."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch import InputError
from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.geometry import near_cameras
from fieldwatch.recon.pipelines.splats.config import SplatsConfig, growth_cap, prune_below
from fieldwatch.recon.pipelines.splats.densification import prune_opacity
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.filling import Filling, fill_gaps
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.pipelines.splats.hull import VisualHull
from fieldwatch.recon.pipelines.splats.mip_filter import SharpestDetail
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene

SCATTERED = 20_000
"""Gaussians of random places for scenes without points."""

# of places that are tried
_ROUNDS = 32
_ROUND = 1 << 16
_FEWEST = 100  # places inside the silhouettes: with fewer of two million, poses and photos hardly belong together

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
        count = max(SCATTERED if cap is None else min(SCATTERED, cap), 2)
        hull = VisualHull.of(photos) if config.transparency == "random" else VisualHull([])
        if len(hull):
            places = places_inside(hull, count, *looked_at(photos))
            return Gaussians.from_points(places, torch.rand(len(places), 3), degree=config.degree)
        return Gaussians.in_box(count, *looked_at(photos), degree=config.degree)
    points = photos.points
    colours = photos.colours
    if config.growth_options.fill_points:
        more, shades = fill_gaps(photos, Filling(count=config.growth_options.fill_points, gap=GAP))
        points = torch.cat([points, more])
        colours = torch.cat([colours, shades])
    if cap is not None and len(points) > cap:
        kept = torch.randperm(len(points))[:cap]
        points = points[kept]
        colours = colours[kept]
    return Gaussians.from_points(points, colours, degree=config.degree)


def places_inside(
    hull: VisualHull, count: int, low: Float[Tensor, "3"], high: Float[Tensor, "3"]
) -> Float[Tensor, "places 3"]:
    """Scatter places over the part of a box that lies inside the silhouettes of transparent photos.

    Args:
        hull: of the photos.
        count: how many places are wanted; fewer are returned where the object fills little of the box.
        low: corner of the box, world units.
        high: the opposite corner.

    Raises:
        InputError: hardly any place of the box does.
    """
    found = list[Tensor]()
    left = count
    for _ in range(_ROUNDS):
        places = low + (high - low) * torch.rand(_ROUND, 3)
        inside = places[torch.from_numpy(hull.covers(places.double().numpy()))][:left]
        found.append(inside)
        left -= len(inside)
        if not left:
            break
    if count - left < min(count, _FEWEST):
        raise InputError(
            f"only {count - left} of {_ROUNDS * _ROUND} places around what the cameras look at lie inside the "
            f"silhouettes of {len(hull)} transparent photos, expected {min(count, _FEWEST)} or more: check that the "
            "poses belong to the photos and that alpha is 255 on the object; --transparency background does not use "
            "alpha"
        )
    return torch.cat(found)


def looked_at(photos: PhotoSet) -> tuple[Float[Tensor, "3"], Float[Tensor, "3"]]:
    """Return two corners of the box around the point that the training cameras look at, half as far as they stand.

    The point is the one nearest to all optical axes, by least squares.
    """
    cameras = near_cameras([photos.cameras[i] for i in photos.train])
    places = torch.stack([camera.position.double() for camera in cameras])
    axes = torch.stack([camera.forward.double() for camera in cameras])
    across = torch.eye(3, dtype=torch.float64) - axes[:, :, None] * axes[:, None, :]
    system = across.sum(0) + 1e-6 * torch.eye(3, dtype=torch.float64)
    middle = torch.linalg.solve(system, (across @ places[:, :, None]).sum(0)[:, 0])
    reach = 0.5 * (places - middle).norm(dim=1).mean().clamp_min(1e-3)
    return (middle - reach).float(), (middle + reach).float()
