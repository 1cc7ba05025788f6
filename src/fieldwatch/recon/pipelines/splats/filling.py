"""Additional points in gaps of the reconstruction: bare walls, blurred backgrounds, surfaces that few photos show.

Structure from motion finds points only on texture. A gap has to be covered by large, blurred Gaussians from around it,
which densification refines last. A point at a guessed depth, in the color of a photo, avoids that.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from scipy.spatial import KDTree
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.data import Photo, PhotoSet
from fieldwatch.recon.geometry import Camera, transform_points
from fieldwatch.recon.pipelines.splats.backdrop import shows_backdrop

_MIN_DEPTH = 1e-3  # fraction of the scene's extent; points nearer to the camera are not used as known depths
_TRIES = 4  # pixels sampled per requested point
_MOST_DISTANCES = 1 << 26  # distances that are computed at once (256 MiB); for more, a tree is faster and smaller
_MARGIN = 0.1  # fraction of the longer side by which known points may project outside the photo


@dataclass(frozen=True, kw_only=True)
class Filling:
    """Settings of gap filling.

    Attributes:
        count: maximum number of added points; fewer are added if the gaps are small.
        gap: minimum distance of a pixel in a gap to the nearest known point, as a fraction of the photo's longer side.
        neighbors: number of nearest known points on the photo whose median depth a new point gets.
        spread: standard deviation of random noise on the logarithm of the depth.

    Raises:
        InputError: A setting is out of bounds.
    """

    count: int = 5000
    gap: float = 0.04
    neighbors: int = 8
    spread: float = 0.1

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not (self.count >= 0 and 0 < self.gap < math.inf and self.neighbors >= 1 and 0 <= self.spread < math.inf):
            raise InputError(
                "gap filling requires count >= 0, gap > 0, neighbors >= 1 and spread >= 0, all finite, got "
                f"count {self.count}, gap {self.gap}, neighbors {self.neighbors}, spread {self.spread}"
            )


def fill_gaps(
    photos: PhotoSet,
    filling: Filling,
    *,
    backdrop: Float[Tensor, "3"] | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "added 3"], UInt8[Tensor, "added 3"]]:
    """Return points for the gaps of a reconstruction, from the training photos only.

    Sampled pixels that are far from all known points are unprojected at the median depth of the nearest known points,
    in the color of the photo. Masked and transparent pixels and those of a plain backdrop are skipped.

    Args:
        photos: photos of the scene; each training photo is decoded once.
        filling: settings of gap filling.
        backdrop: color of a plain backdrop, RGB in [0, 1]; None if there is none.
        generator: CPU generator; None uses torch's default.

    Returns:
        Points in world units and their colors; empty if there are no known points.
    """
    # More tries than points, because most pixels are near a known point.
    per_photo = math.ceil(_TRIES * filling.count / len(photos.train))
    filled = [_in_gaps(photos[index], photos, filling, per_photo, backdrop, generator) for index in photos.train]
    points, colors = (torch.cat(parts) for parts in zip(*filled, strict=True))
    # A random subset, or all points would be from the first photos.
    chosen = torch.randperm(len(points), generator=generator)[: filling.count]
    return points[chosen], colors[chosen]


def _in_gaps(  # noqa: PLR0913, PLR0917  the arguments of `fill_gaps` for one photo
    photo: Photo,
    photos: PhotoSet,
    filling: Filling,
    count: int,
    backdrop: Float[Tensor, "3"] | None,
    generator: torch.Generator | None,
) -> tuple[Float[Tensor, "found 3"], UInt8[Tensor, "found 3"]]:
    camera = photo.camera
    known, depths = _projected(photos.points, camera, photos.extent)
    # Continuous positions, in pixels.
    pixels = torch.rand(count, 2, generator=generator) * torch.tensor([camera.width, camera.height])
    noise = torch.randn(count, generator=generator)
    columns, rows = pixels.long().unbind(1)
    # Return only after sampling, so that the random numbers of later photos do not depend on this one.
    if not len(known) or not count:
        return photos.points.new_zeros(0, 3), photo.image.new_zeros(0, 3)
    distances, nearest = _nearest(pixels, known, min(filling.neighbors, len(known)))
    empty = distances[:, 0] > filling.gap * max(camera.width, camera.height)
    empty &= _usable(photo, rows, columns)
    if backdrop is not None:
        empty &= ~shows_backdrop(photo.image[rows, columns].float() / 255, backdrop)
    # Median, because the mean of foreground and background depths would be on neither.
    guessed_depths = depths[nearest[empty]].median(1).values * (filling.spread * noise[empty]).exp()
    return _unprojected(pixels[empty], guessed_depths, camera), photo.image[rows[empty], columns[empty]]


def _nearest(
    pixels: Float[Tensor, "n 2"], known: Float[Tensor, "m 2"], count: int
) -> tuple[Float[Tensor, "n count"], Int64[Tensor, "n count"]]:
    """Return distances and rows of the nearest known points, the nearest first."""
    if len(pixels) * len(known) <= _MOST_DISTANCES:
        return torch.cdist(pixels, known).topk(count, largest=False)
    distances, rows = KDTree(known.numpy()).query(pixels.numpy(), count)
    # For one neighbor, scipy drops the dimension.
    shape = (len(pixels), count)
    return torch.from_numpy(distances).float().reshape(shape), torch.from_numpy(rows).reshape(shape)


def _projected(
    points: Float[Tensor, "n 3"], camera: Camera, extent: float
) -> tuple[Float[Tensor, "inside 2"], Float[Tensor, " inside"]]:
    """Return pixel positions and depths of the known points that project into a photo or just outside it."""
    local = transform_points(camera.camera_from_world.to(points), points)
    local = local[local[:, 2] > _MIN_DEPTH * extent]
    lens = local.new_tensor([[camera.fx, camera.fy], [camera.cx, camera.cy]])
    pixels = local[:, :2] / local[:, 2:] * lens[0] + lens[1]
    size = pixels.new_tensor([camera.width, camera.height])
    margin = _MARGIN * size.max()
    inside = ((pixels > -margin) & (pixels < size + margin)).all(1)
    return pixels[inside], local[inside, 2]


def _usable(photo: Photo, rows: Tensor, columns: Tensor) -> Bool[Tensor, " n"]:
    usable = torch.ones(len(rows), dtype=torch.bool)
    for part in (photo.mask, photo.alpha):
        # Only fully opaque, unmasked pixels: at soft edges, the color is mixed with the background.
        if part is not None:
            usable &= part[rows, columns] == 255
    return usable


def _unprojected(pixels: Float[Tensor, "n 2"], depths: Float[Tensor, " n"], camera: Camera) -> Float[Tensor, "n 3"]:
    lens = pixels.new_tensor([[camera.fx, camera.fy], [camera.cx, camera.cy]])
    directions = (pixels - lens[1]) / lens[0]
    local = torch.cat([directions, torch.ones_like(directions[:, :1])], 1) * depths[:, None]
    return transform_points(camera.world_from_camera.to(local), local)
