"""Background that photos show: by their alpha channel, or as plain surroundings of an object."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.geometry import TargetBall
from fieldwatch.recon.pipelines.splats.hull import PhotoMask, VisualHull, mask_of_photo
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.surroundings import Surroundings, plain_surroundings

_LEAST_LEFT = 0.5  # fraction of the light of the Gaussians in the ball that the surroundings must leave


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoBackground:
    """Background that the training photos show.

    Attributes:
        photos: the photos.
        hull: hull of what is not background.
        surroundings: plain surroundings; None if there are none.
    """

    photos: PhotoSet
    hull: VisualHull
    surroundings: Surroundings | None = None

    @classmethod
    def of(cls, photos: PhotoSet, model: SplatModel, ball: TargetBall | None) -> Self:
        """Find the background of photos.

        Args:
            photos: photos.
            model: trained Gaussians.
            ball: the ball that the cameras look at; None looks for no plain surroundings.
        """
        by_alpha = cls(photos=photos, hull=VisualHull.of(photos))
        surroundings = None if ball is None else plain_surroundings(photos, ball)
        if ball is None or surroundings is None:
            return by_alpha
        cameras = [photos.cameras[index] for index in photos.train]
        backgrounds = (
            surroundings.in_photo(index, camera.height, camera.width)
            for index, camera in zip(photos.train, cameras, strict=True)
        )
        hull = VisualHull.of_backgrounds(cameras, backgrounds)
        # The color may be that of the object itself: then little of what the cameras look at would be left.
        if _left_in_ball(model, hull, ball) < _LEAST_LEFT:
            return by_alpha
        return cls(photos=photos, hull=hull, surroundings=surroundings)

    def mask_of(self, number: int) -> PhotoMask:
        """Return the informative pixels of a training photo, given its index among the training photos."""
        if self.surroundings is None:
            return mask_of_photo(self.photos, number)
        index = self.photos.train[number]
        camera = self.photos.cameras[index]
        return PhotoMask(solid=~self.surroundings.in_photo(index, camera.height, camera.width))

    def notes(self, carved: int) -> list[str]:
        """Return what was found, for the user.

        Args:
            carved: number of opaque Gaussians outside the hull.
        """
        if self.surroundings is not None:
            red, green, blue = (round(255 * float(value)) for value in self.surroundings.color)
            color = f"RGB ({red}, {green}, {blue})"
            note = f"plain surroundings of one color, {color}, are left out with {carved} opaque Gaussians: photos do "
            return [note + "not tell how far away they are; --surroundings keep meshes them"]
        if not carved:
            return []
        return [f"{carved} opaque Gaussians are skipped: the {len(self.hull)} transparent photos show background there"]


@torch.no_grad()
def _left_in_ball(model: SplatModel, hull: VisualHull, ball: TargetBall) -> float:
    """Return the fraction of the opacity within a ball that is inside a hull; 1 if there is none."""
    means = model.gaussians.means.detach().cpu().double()
    opacities = model.shapes()[1].detach().cpu().double().numpy()
    inside = ((means - ball.center.cpu()).norm(dim=-1) <= ball.radius).numpy()
    if not inside.any():
        return 1.0
    weights = opacities[inside]
    return float(np.average(~hull.outside(means.numpy()[inside]), weights=weights))
