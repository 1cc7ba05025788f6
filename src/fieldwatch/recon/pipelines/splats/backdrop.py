"""Color of a plain backdrop, such as a wall, a screen or a light tent that surrounds the object in every photo."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.data.photos import border_pixels

TOLERANCE = 16 / 255
"""Difference of a color channel from the backdrop's up to which a pixel shows the backdrop."""
_PLAIN = 0.9
"""Fraction of a photo's border that must show one color, and fraction of the photos with the same one."""
_BORDER = 0.02  # width of the border, as a fraction of the longer side
_MOST_PHOTOS = 24  # number of photos that are decoded


def plain_backdrop(photos: PhotoSet) -> Float[Tensor, "3"] | None:
    """Return the color that surrounds the object in nearly all training photos, RGB in [0, 1]; None if there is none.

    A backdrop has no texture, so that no point of the reconstruction lies on it. On a turntable it even turns along
    with the cameras. No surface in space explains it, but the background color does. Photos with alpha or masks define
    the object themselves, and have no backdrop.

    Args:
        photos: photos of the scene; some of them are decoded, and cached for the training.
    """
    if photos.transparent or photos.masked:
        return None
    colors: list[Tensor] = []
    chosen = photos.train[:: -(-len(photos.train) // _MOST_PHOTOS)]
    for index in chosen:
        image = photos[index].image.float() / 255
        border = border_pixels(image, max(round(_BORDER * max(image.shape[:2])), 1))
        color = border.median(0).values
        if float(shows_backdrop(border, color).float().mean()) >= _PLAIN:
            colors.append(color)
    if len(colors) < max(_PLAIN * len(chosen), 1):
        return None
    found = torch.stack(colors)
    color = found.median(0).values
    return color if float(shows_backdrop(found, color).float().mean()) >= _PLAIN else None


def shows_backdrop(colors: Float[Tensor, "*n 3"], backdrop: Float[Tensor, "3"]) -> Bool[Tensor, "*n"]:
    """Return a mask of the colors (RGB in [0, 1]) that are those of the backdrop."""
    return ((colors - backdrop.to(colors)).abs() <= TOLERANCE).all(-1)
