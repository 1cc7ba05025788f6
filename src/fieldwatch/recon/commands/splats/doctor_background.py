"""Check of photos with a plain background, such as renders of an object, against the background of the training."""

from collections import Counter
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.cli.kit import DataFinding
from fieldwatch.recon.commands.splats.doctor_photos import reduced_pixels
from fieldwatch.recon.data import PhotoSet

_MOST_PHOTOS = 40
# Width of the border as a fraction of the shorter side, and the least fraction of it that a plain background covers: an
# object may reach over the border. Overexposed skies are white; nothing in ordinary photos is as black as a render.
_BORDER, _PLAIN_BLACK, _PLAIN_WHITE = 0.03, 0.35, 0.6
# Values of 255 up to which a pixel is black, and from which it is white; JPEG adds noise of a few values.
_BLACK, _WHITE = 12, 243
_MOST_OF_ALL = 0.8


def background_findings(photos: PhotoSet, background: Float[Tensor, "3"]) -> Iterator[DataFinding]:
    """Compare the border of at most about forty photos with the background color of the training.

    Photos with an alpha channel or a mask say themselves what belongs to the scene, so they are not compared.

    Args:
        photos: photos of the scene.
        background: background color of the training, RGB in [0, 1]; one that is neither black nor white is that of
            the photos, and is not compared.
    """
    chosen = {(0.0, 0.0, 0.0): "black", (1.0, 1.0, 1.0): "white"}.get(tuple(background.tolist()))
    if chosen is None:
        return
    indices = range(0, len(photos), max(len(photos) // _MOST_PHOTOS, 1))
    borders = Counter(border_color(photos, index) for index in indices)
    color, count = borders.most_common(1)[0]
    if color is not None and color != chosen and count >= _MOST_OF_ALL * len(indices):
        yield DataFinding(
            name="background",
            severity="warning",
            message=(
                f"{count} of {len(indices)} checked photos have a plain {color} background, but that of the training "
                f"is {chosen}: Gaussians must cover all of it."
            ),
            remedy=f"Train with --background {color}, or give the photos an alpha channel.",
        )


def border_color(photos: PhotoSet, index: int) -> str | None:
    """Return ``"black"`` or ``"white"`` for a photo with such a background; None for others and for masked ones."""
    if photos.masked or photos.transparent:
        photo = photos[index]
        if photo.mask is not None or photo.alpha is not None:
            return None
    border = _border(reduced_pixels(photos, index))
    if _share(border <= _BLACK) >= _PLAIN_BLACK:
        return "black"
    return "white" if _share(border >= _WHITE) >= _PLAIN_WHITE else None


def _border(image: Tensor) -> Tensor:
    """Return the pixels ``[n, 3]`` along the four sides of an image ``[height, width, 3]``."""
    width = max(round(_BORDER * min(image.shape[:2])), 1)
    sides = (image[:width], image[-width:], image[width:-width, :width], image[width:-width, -width:])
    return torch.cat([side.reshape(-1, 3) for side in sides])


def _share(channels: Tensor) -> float:
    """Return the fraction of pixels ``[n, 3]`` for which a condition holds in all channels."""
    return float(channels.all(-1).float().mean())
