"""Exposure compensation: an affine color transform per photo that is learned together with the Gaussians.

With automatic exposure and white balance, a surface has a different color in each photo. Without compensation,
Gaussians reproduce this by view-dependent color and haze; a transform per photo (Kerbl 2024, hierarchical 3DGS)
prevents that.

Held-out photos have no learned transform, so their quality can be measured in three ways:

1. as rendered: without `Exposures`, that is, with the identity, the mean of all transforms.
2. neighbors: with `Exposures.between`, the mean transform of the photos before and after. No held-out pixel is used.
3. fitted: with `cross_fitted`, a least-squares transform. No pixel is changed by a transform that was fitted to it.
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
from fieldwatch.recon.transfers import upload

RIDGE = 1e-3
"""Ridge of fitted transforms toward the identity, as the mean squared error per pixel that a deviation of 1 costs."""
TILE = 32
"""Side of the tiles of `cross_fitted`, pixels."""


@dataclass(frozen=True, kw_only=True)
class ExposureRates:
    """Learning rate of the color transforms, with exponential decay from `first` to `last`.

    Attributes:
        first: learning rate at step 0.
        last: learning rate from step `decay_steps` on.
        decay_steps: number of steps over which it decays.

    Raises:
        InputError: A learning rate or the number of steps is not positive.
    """

    first: float = 5e-3
    last: float = 5e-4
    decay_steps: int = 30_000

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise InputError(f"ExposureRates.{name} must be a finite number above 0, got {value}")

    def at(self, step: int) -> float:
        """Return the learning rate at a step, 0-based."""
        progress = min(max(step / self.decay_steps, 0.0), 1.0)
        return math.exp((1 - progress) * math.log(self.first) + progress * math.log(self.last))

    def apply(self, optimizer: VisibleAdam, step: int, *indices: int) -> float:
        """Set the learning rate of this step and the photos whose transforms are updated; return the learning rate."""
        rate = self.at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        # Unique and sorted, since a photo may occur in a batch more than once.
        optimizer.visible = upload(sorted(set(indices)), optimizer.param_groups[0]["params"][0].device)
        return rate


class Exposures(nn.Module):
    """One affine color transform per training photo. Their mean is always the identity, so that colors do not drift.

    Args:
        names: names of the training photos, ascending; this order determines neighbors.

    Attributes:
        raw: learned transforms before their mean is subtracted, shape (photos, 3, 4).

    Raises:
        ValueError: There are no names, or they are not ascending.
    """

    raw: nn.Parameter

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        if not self.names or any(name >= later for name, later in zip(self.names, self.names[1:], strict=False)):
            raise ValueError(
                f"exposures require at least one photo and unique, ascending names, got {len(self.names)} names: "
                f"{', '.join(self.names[:4]) or 'none'}"
            )
        self.raw = nn.Parameter(identity().repeat(len(self.names), 1, 1))

    def __len__(self) -> int:
        return len(self.names)

    def maps(self) -> Float[Tensor, "photos 3 4"]:
        """Return all transforms, detached: rows are output channels, columns are red, green, blue and an offset."""
        raw = self.raw.detach()
        return raw - raw.mean(0) + identity(raw)

    def map_of(self, index: int) -> Float[Tensor, "3 4"]:
        """Return the transform of a training photo; gradients reach only this photo's parameters."""
        if not 0 <= index < len(self):
            raise ValueError(
                f"there is no exposure of photo {index}: expected an index among the training photos, from 0 to "
                f"{len(self) - 1}"
            )
        raw = self.raw.detach()
        # Subtract the mean at every use: the optimizer updates one transform at a time and cannot keep the mean at 0.
        return self.raw[index] - raw.mean(0) + identity(raw)

    def forward(self, image: Float[Tensor, "height width 3"], index: int) -> Float[Tensor, "height width 3"]:
        """Apply the transform of a training photo to an image: `exposures(image, index)`."""
        return exposed(image, self.map_of(index))

    def between(self, name: str) -> Float[Tensor, "3 4"]:
        """Estimate the transform of a held-out photo as the mean of those before and after it by name.

        Automatic exposure changes slowly between photos. Before the first and after the last photo, the estimate is the
        transform of that photo.
        """
        after = bisect(self.names, name)
        # If the name itself is present, bisect returns the index after it; a photo is not its own neighbor.
        before = after - 1 - (after > 0 and self.names[after - 1] == name)
        # Missing at the ends: the name is before the first or after the last photo.
        near = [index for index in (before, after) if 0 <= index < len(self)]
        return self.maps()[near or [0]].mean(0)


def make_exposure_optimizer(exposures: Exposures, rates: ExposureRates) -> VisibleAdam:
    """Return an Adam optimizer that updates only the transforms of the photos passed to `rates.apply`.

    Plain Adam would keep moving the transforms of all other photos by their momentum.
    """
    return VisibleAdam([exposures.raw], lr=rates.at(0), betas=(0.9, 0.99))


def identity(like: Tensor | None = None) -> Float[Tensor, "3 4"]:
    """Return the identity transform."""
    return torch.eye(3, 4) if like is None else torch.eye(3, 4, dtype=like.dtype, device=like.device)


def exposed(image: Float[Tensor, "height width 3"], color_map: Float[Tensor, "3 4"]) -> Float[Tensor, "height width 3"]:
    """Apply a color transform to an image, without clamping."""
    return image @ color_map[:, :3].T + color_map[:, 3]


@torch.no_grad()
def fit_color(
    image: Float[Tensor, "height width 3"],
    photo: Float[Tensor, "height width 3"],
    mask: Bool[Tensor, "height width"] | None = None,
) -> Float[Tensor, "3 4"]:
    """Fit the color transform from an image to a photo, by least squares with a ridge toward the identity.

    The ridge (`RIDGE`) determines the coefficients that the colors do not: an image of a single color is fitted by
    small changes of all coefficients, and an empty mask gives the identity.

    Args:
        image: rendered image.
        photo: photo of the same size.
        mask: pixels to fit; None uses all.

    Raises:
        ValueError: Sizes differ, or a pixel to fit is not finite.
    """
    if image.shape != photo.shape or (mask is not None and mask.shape != image.shape[:2]):
        raise ValueError(
            "expected image, photo and mask of the same height and width, got an "
            f"image of shape {tuple(image.shape)}, a photo of shape {tuple(photo.shape)} and a mask of shape "
            f"{None if mask is None else tuple(mask.shape)}"
        )
    chosen = slice(None) if mask is None else mask
    rendered = image[chosen].reshape(-1, 3).double()
    target = photo[chosen].reshape(-1, 3).double()
    if not bool(rendered.isfinite().all() & target.isfinite().all()):
        raise ValueError(
            "cannot fit colors: the image or the photo contains NaN or infinite values; check the Gaussians and the "
            "photo's file, or exclude these pixels by the mask"
        )
    start = identity(rendered)
    design = torch.cat([rendered, torch.ones_like(rendered[:, :1])], 1)
    # Normal equations of the deviation from the identity; the ridge is per pixel, so it scales with their number.
    ridge = RIDGE * max(len(design), 1) * torch.eye(4, dtype=rendered.dtype, device=rendered.device)
    departure = torch.linalg.solve(design.T @ design + ridge, design.T @ (target - design @ start.T))
    return (start + departure.T).to(image)


@torch.no_grad()
def cross_fitted(
    image: Float[Tensor, "height width 3"],
    photo: Float[Tensor, "height width 3"],
    mask: Bool[Tensor, "height width"] | None = None,
) -> Float[Tensor, "height width 3"]:
    """Fit an image's colors to its photo without changing any pixel by a transform that was fitted to it.

    The image is divided like a chessboard into tiles of `TILE` pixels. The transform of the white tiles is fitted to
    the black ones and vice versa. (With a left and a right half, each half may lack colors that only the other one
    has: on the scene snowmiku, such a transform is worse than none.)

    Args:
        image: rendered image.
        photo: photo of the same size.
        mask: pixels to fit; None uses all.

    Raises:
        ValueError: Sizes differ, or a pixel to fit is not finite.
    """
    height, width = image.shape[:2]
    rows = torch.arange(height, device=image.device)
    columns = torch.arange(width, device=image.device)
    # Tiles instead of single pixels: neighboring pixels are nearly equal, so the two halves would not be independent.
    white = (rows[:, None] // TILE + columns // TILE) % 2 == 0
    counted = torch.ones_like(white) if mask is None else mask
    by_black, by_white = (fit_color(image, photo, counted & tiles) for tiles in (~white, white))
    return torch.where(white[..., None], exposed(image, by_black), exposed(image, by_white))
