"""Colors of photos: how bright each is, and whether a plain background surrounds the object, as in renders."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from fieldwatch.cli.kit import DataFinding
from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.data.photos import PhotoFiles, border_pixels, read_reduced

MOST_PHOTOS = 40
"""Number of photos, evenly spaced over the set, that are looked at; of small sets up to twice as many."""
_BRIGHTNESS_SIDE = 96  # longer side at which brightness is measured, pixels
# Width of the border as a fraction of the shorter side, and the least fraction of it that a plain background covers: an
# object may reach over the border. Overexposed skies are white; nothing in ordinary photos is as black as a render.
_BORDER, _PLAIN_BLACK, _PLAIN_WHITE = 0.03, 0.35, 0.6
# Values of 255 up to which a pixel is black, and from which it is white; JPEG adds noise of a few values.
_BLACK, _WHITE = 12, 243
_MOST_OF_ALL = 0.8


@dataclass(frozen=True, kw_only=True)
class PhotoColors:
    """Colors of a photo.

    Attributes:
        stops: mean brightness in stops relative to white; minus infinity if it is black.
        border: ``"black"`` or ``"white"`` if that covers its border; None for others.
    """

    stops: float
    border: str | None


def sample_colors(photos: PhotoSet) -> dict[int, PhotoColors]:
    """Return the colors of at most about forty photos by index, evenly spaced over the set; each is read once."""
    chosen = range(0, len(photos), max(len(photos) // MOST_PHOTOS, 1))
    return {index: _colors(reduced_pixels(photos, index)) for index in chosen}


def background_findings(
    photos: PhotoSet, colors: Mapping[int, PhotoColors], background: Float[Tensor, "3"]
) -> Iterator[DataFinding]:
    """Compare the borders of photos with the background color of the training.

    Photos with an alpha channel or a mask say themselves what belongs to the scene, so they are not compared.

    Args:
        photos: photos of the scene.
        colors: colors of some of them, from `sample_colors`.
        background: background color of the training, RGB in [0, 1]; one that is neither black nor white is that of
            the photos, and is not compared.
    """
    chosen = {(0.0, 0.0, 0.0): "black", (1.0, 1.0, 1.0): "white"}.get(tuple(background.tolist()))
    if chosen is None:
        return
    borders = Counter(each.border for index, each in colors.items() if each.border and not _is_cut_out(photos, index))
    color, count = next(iter(borders.most_common(1)), ("", 0))
    if color != chosen and count and count >= _MOST_OF_ALL * len(colors):
        yield DataFinding(
            name="background",
            severity="warning",
            message=(
                f"{count} of {len(colors)} checked photos have a plain {color} background, but that of the training "
                f"is {chosen}: Gaussians must cover all of it."
            ),
            remedy=f"Train with --background {color}, or give the photos an alpha channel.",
        )


def _is_cut_out(photos: PhotoSet, index: int) -> bool:
    """Return whether a photo has a mask or an alpha channel; decodes it only if it may have one."""
    if not (photos.masked or photos.transparent):
        return False
    photo = photos[index]
    return photo.mask is not None or photo.alpha is not None


def _colors(image: UInt8[Tensor, "height width 3"]) -> PhotoColors:
    step = max(max(image.shape[:2]) // _BRIGHTNESS_SIDE, 1)
    mean = float(image[::step, ::step].float().mean()) / 255
    border = border_pixels(image, max(round(_BORDER * min(image.shape[:2])), 1))
    return PhotoColors(stops=math.log2(mean) if mean > 0.5 / 255 else -math.inf, border=_plain_color(border))


def _plain_color(border: UInt8[Tensor, "n 3"]) -> str | None:
    if _share(border <= _BLACK) >= _PLAIN_BLACK:
        return "black"
    return "white" if _share(border >= _WHITE) >= _PLAIN_WHITE else None


def _share(channels: Bool[Tensor, "n 3"]) -> float:
    """Return the fraction of pixels for which a condition holds in all channels."""
    return float(channels.all(-1).float().mean())


def reduced_pixels(photos: PhotoSet, index: int) -> UInt8[Tensor, "height width 3"]:
    """Return a photo for its colors alone, without the cost of decoding all of its pixels where that is possible."""
    if isinstance(photos.read, PhotoFiles) and not photos.transparent:
        return read_reduced(photos.read.files[index].path, 4 * _BRIGHTNESS_SIDE)
    return photos[index].image
