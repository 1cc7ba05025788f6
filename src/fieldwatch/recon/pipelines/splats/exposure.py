"""Exposure of each photo, as an affine map of colours that is learned beside the Gaussians.

A camera that sets exposure and white balance by itself shows one surface in many colours. Gaussians that have to
explain this paint it into harmonics and haze. With a map per photo (Kerbl 2024, hierarchical 3DGS) they need not.

What a picture of a held-out photo is worth must then be said with its exposure, which training never saw:

1. as is: the mean exposure, which is identity; the picture as drawn, without `Exposures`.
2. neighbours: `Exposures.between`, the mean of the maps of the photos just before and after. No pixel is looked at.
3. fitted: `cross_fitted`, a map by least squares. No pixel is changed by a map that was fitted with it.
"""

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fieldwatch import InputError
from fieldwatch.recon.render import VisibleAdam

RIDGE = 1e-3
"""Ridge of the fitted maps, towards identity: the mean square error per pixel that a departure of 1 costs."""
TILE = 32
"""Pixels of the sides of the tiles by which `cross_fitted` divides an image."""


@dataclass(frozen=True, kw_only=True)
class ExposureRates:
    """Learning rate of the maps: falls from `first` to `last`, evenly in its logarithm.

    Attributes:
        first: at step 0.
        last: at step `decay_steps` and after.
        decay_steps: over which it falls; the run's steps.

    Raises:
        InputError: a rate or a number of steps that is not above 0.
    """

    first: float = 5e-3
    last: float = 5e-4
    decay_steps: int = 30_000

    def __post_init__(self) -> None:
        """Refuse rates that train nothing."""
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise InputError(f"the exposures' {name} is {value}: wanted is a finite number above 0")

    def at(self, step: int) -> float:
        """Rate at a step, 0-based."""
        progress = min(max(step / self.decay_steps, 0.0), 1.0)
        return math.exp((1 - progress) * math.log(self.first) + progress * math.log(self.last))

    def apply(self, optimizer: VisibleAdam, step: int, *indices: int) -> float:
        """Set the rate for this step and the photos whose maps it steps; return the rate."""
        rate = self.at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.visible = torch.tensor(sorted(set(indices)), device=optimizer.param_groups[0]["params"][0].device)
        return rate


class Exposures(nn.Module):
    """One affine map of colours per training photo; their mean is identity at all times, so that colours do not drift.

    Args:
        names: of the training photos, in the order in which they were taken: that is how neighbours are found.

    Attributes:
        raw: the maps before their mean is taken off; the parameter.

    Raises:
        ValueError: no names, or names that are not ascending (photos are sorted by name).
    """

    raw: nn.Parameter

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        if not self.names or any(name >= later for name, later in zip(self.names, self.names[1:], strict=False)):
            raise ValueError(
                f"exposures are for one photo or more with ascending names, each once; got {len(self.names)}: "
                f"{', '.join(self.names[:4]) or 'none'}"
            )
        self.raw = nn.Parameter(identity().repeat(len(self.names), 1, 1))

    def __len__(self) -> int:
        return len(self.names)

    def maps(self) -> Float[Tensor, "photos 3 4"]:
        """All maps, detached, around identity: columns of red, green, blue, and an offset; rows are what comes out."""
        raw = self.raw.detach()
        return raw - raw.mean(0) + identity(raw)

    def map_of(self, index: int) -> Float[Tensor, "3 4"]:
        """The map of one training photo. A gradient reaches this photo's parameters, and those of no other."""
        if not 0 <= index < len(self):
            raise ValueError(
                f"the exposure of photo {index} was asked for, there are {len(self)}: count training photos only, "
                "from 0"
            )
        raw = self.raw.detach()
        # The mean is taken off at every use rather than held at 0 by the optimizer, which steps one map at a time.
        return self.raw[index] - raw.mean(0) + identity(raw)

    def forward(self, image: Float[Tensor, "height width 3"], index: int) -> Float[Tensor, "height width 3"]:
        """Show an image as a training photo was exposed: `exposures(image, index)`."""
        return exposed(image, self.map_of(index))

    def between(self, name: str) -> Float[Tensor, "3 4"]:
        """Guess the map of a photo that was not trained on: the mean of those just before and after it by name.

        Cameras that set their exposure by themselves do so slowly; before the first and after the last photo it is
        the map of that one alone.
        """
        after = bisect(self.names, name)
        # bisect ends behind a photo of this very name, which is not its own neighbour.
        before = after - 1 - (after > 0 and self.names[after - 1] == name)
        near = [index for index in (before, after) if 0 <= index < len(self)]
        return self.maps()[near or [0]].mean(0)


def make_exposure_optimizer(exposures: Exposures, rates: ExposureRates) -> VisibleAdam:
    """Make Adam that steps the map of one photo at a time; `rates.apply` says whose.

    Plain Adam would go on moving the maps of all other photos, by the momentum of their last steps.
    """
    return VisibleAdam([exposures.raw], lr=rates.at(0), betas=(0.9, 0.99))


def identity(like: Tensor | None = None) -> Float[Tensor, "3 4"]:
    """The map that changes no colour."""
    return torch.eye(3, 4) if like is None else torch.eye(3, 4, dtype=like.dtype, device=like.device)


def exposed(
    image: Float[Tensor, "height width 3"], colour_map: Float[Tensor, "3 4"]
) -> Float[Tensor, "height width 3"]:
    """Map the colours of an image; they are not clamped."""
    return image @ colour_map[:, :3].T + colour_map[:, 3]


@torch.no_grad()
def fit_colour(
    image: Float[Tensor, "height width 3"],
    photo: Float[Tensor, "height width 3"],
    mask: Bool[Tensor, "height width"] | None = None,
) -> Float[Tensor, "3 4"]:
    """Fit the map that brings an image closest to a photo, by least squares with a ridge towards identity.

    The ridge (`RIDGE`) decides what the colours leave open: an image of one colour moves to that of the photo by small
    changes of all coefficients, and an empty mask gives identity.

    Args:
        image: as rendered.
        photo: what it should look like, of the same size.
        mask: pixels that count; None for all.

    Raises:
        ValueError: sizes differ, or a pixel that counts is not finite.
    """
    if image.shape != photo.shape or (mask is not None and mask.shape != image.shape[:2]):
        raise ValueError(
            f"colours of an image of shape {tuple(image.shape)} are fitted to a photo of shape {tuple(photo.shape)} "
            f"under a mask of {None if mask is None else tuple(mask.shape)}: all need one height and width"
        )
    chosen = slice(None) if mask is None else mask
    rendered = image[chosen].reshape(-1, 3).double()
    target = photo[chosen].reshape(-1, 3).double()
    if not bool(rendered.isfinite().all() & target.isfinite().all()):
        raise ValueError(
            "colours can not be fitted: the image or the photo holds NaN or infinite values; look for the Gaussians or "
            "the file that made them, or leave those pixels out by the mask"
        )
    start = identity(rendered)
    design = torch.cat([rendered, torch.ones_like(rendered[:, :1])], 1)
    # Normal equations of the departure from identity; times the pixels, so that the ridge is one per pixel.
    ridge = RIDGE * max(len(design), 1) * torch.eye(4, dtype=rendered.dtype, device=rendered.device)
    departure = torch.linalg.solve(design.T @ design + ridge, design.T @ (target - design @ start.T))
    return (start + departure.T).to(image)


@torch.no_grad()
def cross_fitted(
    image: Float[Tensor, "height width 3"],
    photo: Float[Tensor, "height width 3"],
    mask: Bool[Tensor, "height width"] | None = None,
) -> Float[Tensor, "height width 3"]:
    """Correct the colours of an image by its photo, such that no pixel is changed by a map that was fitted with it.

    The image is divided like a chessboard, into tiles of `TILE` pixels; the map for the white tiles is fitted on the
    black ones, and the other way round. (With left and right halves, each half would need colours that only the other
    has: on snowmiku such a map is worse than none.)

    Args:
        image: as rendered.
        photo: what it is compared with, of the same size.
        mask: pixels that count for the fits; None for all.

    Raises:
        ValueError: sizes differ, or a pixel that counts is not finite.
    """
    height, width = image.shape[:2]
    rows = torch.arange(height, device=image.device)
    columns = torch.arange(width, device=image.device)
    white = (rows[:, None] // TILE + columns // TILE) % 2 == 0
    counted = torch.ones_like(white) if mask is None else mask
    by_black, by_white = (fit_colour(image, photo, counted & tiles) for tiles in (~white, white))
    return torch.where(white[..., None], exposed(image, by_black), exposed(image, by_white))
