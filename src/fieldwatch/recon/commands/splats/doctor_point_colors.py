"""Checks of what photos show where they observe points: white balance and exposure, dark corners, masked points."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from fieldwatch.cli.kit import DataFinding
from fieldwatch.recon.commands.splats.doctor_reprojection import Observed, in_picture
from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.geometry import Camera

COLOR_OF_PHOTOS = "color of photos"
"""Name of the check of white balance and exposure."""
# Smallest number of points by which a photo is judged, and of photos by which a set is.
_LEAST, _LEAST_PHOTOS = 12, 4
# Largest number of photos that are decoded.
_MAX_DECODED = 100
# Factors between photos that are more than reflections make (1.03 in real photos), and that spoil a training.
_MAX_TINT, _SPOILT_TINT = 1.25, 1.6
_MAX_BRIGHTNESS, _SPOILT_BRIGHTNESS = 1.5, 2.0
# Share of the brightness of the middle that a corner has to keep.
_LEAST_CORNER, _SPOILT_CORNER = 0.6, 0.5
# Share of the observed points that masks hide: objects in front of a background that is masked hide up to half.
_MOST_HIDDEN = 0.65
# Smallest color value, 0 to 255, whose ratio is known.
_DARK = 16
# Largest value of a mask that hides a pixel, and number of masks that are read.
_BLACK, _MOST_MASKS = 127, 40
# Spread of the squared distances from the middle below which corners are not seen.
_NO_CORNERS = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class PointColors:
    """What a photo shows where it observes points, relative to the colors of the points.

    Attributes:
        tint: logarithms of the ratios of red and blue to green.
        brightness: logarithms of the ratio of green.
        away: squared distance from the middle of the photo, 1 in its corners.
    """

    tint: Float[Tensor, "n 2"]
    brightness: Float[Tensor, "n"]
    away: Float[Tensor, "n"]


def color_findings(photos: PhotoSet, observed: Sequence[Observed]) -> Iterator[DataFinding]:
    """Compare the colors of the same points in different photos, and in different places of photos.

    Args:
        photos: the photos; at most about a hundred are decoded, evenly spaced.
        observed: their observations.
    """
    by_name = {each.image.name: each for each in observed}
    step = -(-len(photos) // _MAX_DECODED)
    found: dict[str, PointColors] = {}
    for i in range(0, len(photos), step):
        name = photos.names[i]
        colors = _point_colors(photos[i].image, photos.cameras[i], by_name[name]) if name in by_name else None
        if colors is not None:
            found[name] = colors
    if len(found) >= _LEAST_PHOTOS:
        corners = list(_dark_corners(list(found.values())))
        yield from corners
        # Points that are seen in the corners of some photos only make their brightness differ.
        yield from _between_photos(found, brightness=not corners)


def hidden_findings(photos: PhotoSet, observed: Sequence[Observed]) -> Iterator[DataFinding]:
    """Warn of masks that hide most of what the photos observe, as inverted ones do.

    Args:
        photos: the photos; at most about forty masks are read, evenly spaced.
        observed: their observations.
    """
    # Otherwise, photos would be decoded to learn this.
    if not photos.masked:
        return
    by_name = {each.image.name: each for each in observed}
    shares: list[float] = []
    for i in range(0, len(photos), max(len(photos) // _MOST_MASKS, 1)):
        mask = photos[i].mask
        if mask is None or photos.names[i] not in by_name:
            continue
        pixels, inside = _seen(by_name[photos.names[i]], photos.cameras[i], mask.shape[1], mask.shape[0])
        if int(inside.sum()) >= _LEAST:
            column, row = pixels[inside].long().unbind(-1)
            shares.append(float((mask[row, column] <= _BLACK).double().mean()))
    if len(shares) < _LEAST_PHOTOS or sorted(shares)[len(shares) // 2] < _MOST_HIDDEN:
        return
    yield DataFinding(
        name="masks",
        severity="warning",
        message=(
            f"the masks hide {sorted(shares)[len(shares) // 2]:.0%} of the points that a photo observes (median of "
            f"{len(shares)} photos): they keep little of the scene, and may be inverted."
        ),
        remedy="White pixels are used, black ones are not: invert the masks if they mark what is to be ignored, or "
        "leave --masks out.",
    )


def _between_photos(found: dict[str, PointColors], *, brightness: bool) -> Iterator[DataFinding]:
    """Name the photos whose colors are those of another white balance or, if asked for, of another exposure."""
    tints = torch.stack([each.tint.median(dim=0).values for each in found.values()])
    lights = torch.stack([each.brightness.median() for each in found.values()])[:, None]
    tint, light = _range(tints), _range(lights)
    if tint > _MAX_TINT:
        what = f"the ratio of red or blue to green changes by a factor of {tint:.2f}"
        values, certain, kind = tints, tint > _SPOILT_TINT, "white balance"
    elif brightness and light > _MAX_BRIGHTNESS:
        what = f"their brightness changes by a factor of {light:.2f}"
        values, certain, kind = lights, light > _SPOILT_BRIGHTNESS, "exposure"
    else:
        return
    away = (values - values.median(dim=0).values).abs().amax(dim=1)
    names = list(found)
    worst = ", ".join(names[i] for i in away.argsort(descending=True)[:3].tolist())
    yield DataFinding(
        name=COLOR_OF_PHOTOS,
        severity="warning",
        message=(
            f"the same points have other colors in other photos: {what} between {len(found)} photos (most in {worst}), "
            f"as a {kind} that each photo chooses makes it."
        ),
        remedy=f"Train with --exposure True, which learns the colors of each photo, or develop the photos again with "
        f"one fixed {kind}.",
        certain=certain,
    )


def _range(values: Float[Tensor, "photos columns"]) -> float:
    """Return the factor between photos; single photos may differ for other reasons."""
    low, high = torch.quantile(values, torch.tensor([0.1, 0.9], dtype=values.dtype), dim=0)
    return float((high - low).amax().exp())


def _dark_corners(found: Sequence[PointColors]) -> Iterator[DataFinding]:
    """Warn of photos whose corners are darker than their middle, as the lens makes them."""
    away = torch.cat([each.away - each.away.mean() for each in found])
    light = torch.cat([each.brightness - each.brightness.mean() for each in found])
    if float(away.std()) < _NO_CORNERS:
        return
    # The slope of logarithms over the squared distance, without what differs between photos.
    kept = float(((away @ light) / (away @ away)).exp())
    if kept > _LEAST_CORNER:
        return
    yield DataFinding(
        name="dark corners",
        severity="warning",
        message=(
            f"points are darker toward the corners of the photos: a corner has {kept:.0%} of the brightness of the "
            "middle (vignetting of the lens), so the same place has other colors in other photos."
        ),
        remedy="Correct the vignetting when the photos are developed (the profile of the lens), or crop or mask the "
        "corners of the photos.",
        certain=kept < _SPOILT_CORNER,
    )


def _point_colors(image: UInt8[Tensor, "h w 3"], camera: Camera, observed: Observed) -> PointColors | None:
    """Return what a photo shows where it observes points; None if too few of them have a known color."""
    height, width = image.shape[:2]
    pixels, inside = _seen(observed, camera, width, height)
    column, row = pixels[inside].long().unbind(-1)
    seen = image[row, column].double()
    known = observed.colors[inside].double()
    # Channels that are black or clipped have no ratio.
    clear = ((seen >= _DARK) & (seen <= 255 - _DARK) & (known >= _DARK)).all(-1)
    if int(clear.sum()) < _LEAST:
        return None
    ratio = (seen[clear] / known[clear]).log()
    middle = torch.tensor([width, height], dtype=torch.float64) / 2
    places = (pixels[inside][clear].double() - middle) / middle
    return PointColors(
        tint=ratio[:, [0, 2]] - ratio[:, 1:2], brightness=ratio[:, 1], away=places.square().sum(dim=-1) / 2
    )


def _seen(
    observed: Observed, camera: Camera, width: int, height: int
) -> tuple[Float[Tensor, "n 2"], Bool[Tensor, "n"]]:
    """Return where a photo of this size shows the points that it observes, and which of them it contains."""
    pixels, depth = camera.project(observed.points.to(camera.world_from_camera))
    return pixels, in_picture(pixels, depth, width, height)
