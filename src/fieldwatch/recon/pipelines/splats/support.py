"""Number of Gaussians that the training photos of a scene support."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.geometry import Camera

PIXELS_PER_GAUSSIAN = 10
"""Number of pixels of training photos for each Gaussian: 30 numbers, against 14 to 59 parameters of a Gaussian."""
CLOSE = math.radians(5)
"""Angle at a point between two photos up to which one shows the other's details."""
MOST_CONFIRMED = float(PIXELS_PER_GAUSSIAN)
"""Largest factor by which photos from nearly the same place raise the limit: to one Gaussian for each pixel."""
_POINTS = 256  # points at which angles are measured: their median needs no more


def training_pixels(photos: PhotoSet) -> int:
    """Return the number of pixels of all training photos."""
    cameras = [photos.cameras[index] for index in photos.train]
    return sum(camera.width * camera.height for camera in cameras)


def supported_by(photos: PhotoSet) -> int:
    """Return the number of Gaussians that the training photos can determine.

    A Gaussian that a single photo shows can stand anywhere on the way to the surface. Pixels alone therefore support
    few of them. Photos from nearly the same place, as in a forward-facing capture, show the same details: each detail
    that one of them adds is confirmed by the others, and the limit is raised by their number.
    """
    confirmed = min(confirming_photos(photos), MOST_CONFIRMED)
    return max(int(training_pixels(photos) * confirmed) // PIXELS_PER_GAUSSIAN, 1)


def confirming_photos(photos: PhotoSet) -> float:
    """Return the number of training photos that see a point from within `CLOSE` of one that sees it, that one included.

    The number is the mean over the photos that see a point, and the median over the points. It is 1 without points.
    """
    cameras = [photos.cameras[index] for index in photos.train]
    # Strided instead of random: the limit must be the same on every rank and after a resume.
    points = photos.points[:: -(-len(photos.points) // _POINTS) or 1].double()
    seen = torch.stack([_sees(camera, points) for camera in cameras], dim=1)
    centers = torch.stack([camera.world_from_camera[:3, 3] for camera in cameras]).double()
    numbers = [_mean_close(point, centers[sees]) for point, sees in zip(points, seen, strict=True) if bool(sees.any())]
    return float(torch.tensor(numbers, dtype=torch.float64).median()) if numbers else 1.0


def _sees(camera: Camera, points: Float[Tensor, "n 3"]) -> Tensor:
    """Return a mask of the points inside the picture of a camera; what stands before them is not asked."""
    pixels, depths = camera.project(points.to(camera.world_from_camera))
    inside = (pixels >= 0) & (pixels <= pixels.new_tensor([camera.width, camera.height]))
    return inside.all(-1) & (depths > 0)


def _mean_close(point: Float[Tensor, "3"], centers: Float[Tensor, "cameras 3"]) -> float:
    """Return how many of the cameras, on average, are within `CLOSE` of one of them, seen from a point."""
    directions = torch.nn.functional.normalize(centers - point, dim=1)
    return float((directions @ directions.T > math.cos(CLOSE)).sum(1).double().mean())
