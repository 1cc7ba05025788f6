"""Initialization of the model that a run starts from."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch import InputError
from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.geometry import near_cameras
from fieldwatch.recon.pipelines.splats.config import SplatsConfig, fill_points, growth_cap, prune_below
from fieldwatch.recon.pipelines.splats.densification import prune_opacity
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.filling import Filling, fill_gaps
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.pipelines.splats.hull import VisualHull
from fieldwatch.recon.pipelines.splats.mip_filter import MipFilter
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.support import training_pixels

RANDOM_COUNT = 20_000
"""Number of Gaussians at random positions for scenes without a point cloud."""

# Rejection sampling inside the silhouettes: two million positions at most.
_ROUNDS = 32
_POSITIONS_PER_ROUND = 1 << 16
_MIN_INSIDE = 100  # fewer suggest that poses and photos do not match

PIXELS_PER_FILLED = 80
"""Number of pixels of training photos for each added point: most pixels are for surface with known points."""
GAP = 0.03
"""Minimum distance of an added point to the nearest known point, as a fraction of a photo's longer side."""


def initial_model(config: SplatsConfig, scene: Scene) -> SplatModel:
    """Return the initial model: loaded Gaussians, Gaussians at the points, or Gaussians at random positions.

    Raises:
        ValueError: There are too few points, or no Gaussian survives the prune.
    """
    gaussians = (_from_photos(config, scene) if scene.cloud is None else Gaussians.from_cloud(scene.cloud)).to(
        scene.device
    )
    # Before the 3D filter is created, which has one width per Gaussian.
    if scene.cloud is not None and config.prune_on_load:
        prune_opacity(gaussians, prune_below(config))
    learnable = config.surface.beta == "learnable"
    # A learned thickness starts at the mean over all Gaussians; mode "average" uses the mean over neighbors.
    thickness = gaussians.scales.detach().amin(1).mean()
    return SplatModel(
        gaussians,
        scene.background,
        mip=MipFilter(scene.training_views, gaussians.means) if config.mip else None,
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
        # At least two: initial scales are distances between neighbors.
        # No point cloud: start from random positions.
        count = max(RANDOM_COUNT if cap is None else min(RANDOM_COUNT, cap), 2)
        # With a fixed background, training does not use alpha, so neither does the initialization.
        hull = VisualHull([]) if config.transparency == "background" else VisualHull.of(photos)
        if len(hull):
            positions = sample_inside(hull, count, *target_box(photos))
            return Gaussians.from_points(positions, torch.rand(len(positions), 3), degree=config.degree)
        return Gaussians.in_box(count, *target_box(photos), degree=config.degree)
    points = photos.points
    colors = photos.colors
    if fill_points(config):
        count = min(fill_points(config), training_pixels(photos) // PIXELS_PER_FILLED)
        added, added_colors = fill_gaps(photos, Filling(count=count, gap=GAP), backdrop=scene.backdrop)
        points = torch.cat([points, added])
        colors = torch.cat([colors, added_colors])
    # A point cloud larger than the cap is subsampled: Gaussians above the cap would never be removed again.
    if cap is not None and len(points) > cap:
        chosen = torch.randperm(len(points))[:cap]
        points = points[chosen]
        colors = colors[chosen]
    return Gaussians.from_points(points, colors, degree=config.degree)


def sample_inside(
    hull: VisualHull, count: int, low: Float[Tensor, "3"], high: Float[Tensor, "3"]
) -> Float[Tensor, "positions 3"]:
    """Sample positions in the part of a box that is inside the silhouettes of transparent photos.

    Args:
        hull: visual hull of the photos.
        count: number of positions; fewer are returned if the object fills only a small part of the box.
        low: corner of the box with the smallest coordinates, world units.
        high: opposite corner.

    Raises:
        InputError: Hardly any position in the box is inside the silhouettes.
    """
    # Rejection sampling: the hull has no closed form.
    accepted = list[Tensor]()
    left = count
    for _ in range(_ROUNDS):
        positions = low + (high - low) * torch.rand(_POSITIONS_PER_ROUND, 3)
        inside = positions[torch.from_numpy(hull.covers(positions.double().numpy()))][:left]
        accepted.append(inside)
        left -= len(inside)
        if not left:
            break
    if count - left < min(count, _MIN_INSIDE):
        raise InputError(
            f"expected at least {min(count, _MIN_INSIDE)} of {_ROUNDS * _POSITIONS_PER_ROUND} sampled positions inside "
            f"the silhouettes of {len(hull)} transparent photos, got {count - left}: check that the poses match the "
            "photos and that alpha is 255 on the object, or use --transparency background, which ignores alpha"
        )
    return torch.cat(accepted)


def target_box(photos: PhotoSet) -> tuple[Float[Tensor, "3"], Float[Tensor, "3"]]:
    """Return two opposite corners of a box around the point that the training cameras look at.

    The point minimizes the squared distances to all optical axes. The box extends half the mean camera distance in each
    direction.
    """
    cameras = near_cameras([photos.cameras[i] for i in photos.train])
    positions = torch.stack([camera.position.double() for camera in cameras])
    axes = torch.stack([camera.forward.double() for camera in cameras])
    # Projections onto the planes perpendicular to the axes; the ridge keeps the system solvable for parallel axes.
    across = torch.eye(3, dtype=torch.float64) - axes[:, :, None] * axes[:, None, :]
    system = across.sum(0) + 1e-6 * torch.eye(3, dtype=torch.float64)
    middle = torch.linalg.solve(system, (across @ positions[:, :, None]).sum(0)[:, 0])
    reach = 0.5 * (positions - middle).norm(dim=1).mean().clamp_min(1e-3)
    return (middle - reach).float(), (middle + reach).float()
