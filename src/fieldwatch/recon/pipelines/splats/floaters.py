"""Floaters: Gaussians that few photos show, in the empty space around the cameras."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch import Ranks
from fieldwatch.recon.pipelines.splats.contribution import contributions
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.render import View

LEAST_LIGHT = 0.1
"""Contribution from which a photo shows a Gaussian, pixels."""
FEW = 3
"""Number of photos up to which the place of a Gaussian is not confirmed: adjacent photos share their errors."""
NEAR = 0.02
"""Quantile of the depths of a photo's confirmed Gaussians that is the near end of its scene."""
LEAST_CONFIRMED = 50
"""Number of confirmed Gaussians from which a photo has a near end."""
_PAIRS_AT_ONCE = 1 << 23  # Gaussian-camera pairs per chunk: 32 MiB of distances
_MOST_DEPTHS = 1 << 20  # depths per photo whose quantile is taken


@dataclass(frozen=True, kw_only=True, eq=False)
class Sightings:
    """How the photos show each Gaussian.

    Attributes:
        photos: number of photos that show it.
        light: its largest contribution to a photo, pixels.
    """

    photos: Float[Tensor, " n"]
    light: Float[Tensor, " n"]

    @classmethod
    def of_local(cls, model: SplatModel, views: Sequence[View], ranks: Ranks, bands: int = 1) -> Self:
        """Render the training photos of this rank; `over_ranks` adds those of the others."""
        photos = model.gaussians.means.new_zeros(len(model.gaussians))
        light = torch.zeros_like(photos)
        for view in views[ranks.rank :: ranks.world]:
            weights = contributions(model, view, bands)
            photos += weights >= LEAST_LIGHT
            # The maximum over photos: one that shows a Gaussian is enough to keep it.
            light = torch.maximum(light, weights)
        return cls(photos=photos, light=light)

    def over_ranks(self, ranks: Ranks) -> "Sightings":
        """Return the sightings in the photos of all ranks."""
        # The only collective is a sum: each rank fills a separate row, and the maximum is taken over the summed rows.
        rows = self.light.new_zeros(2, ranks.world, len(self.light))
        rows[:, ranks.rank] = torch.stack([self.photos, self.light])
        ranks.sum([rows])
        return Sightings(photos=rows[0].sum(0), light=rows[1].amax(0))


@torch.no_grad()
def floaters(
    means: Float[Tensor, "n 3"], photos: Float[Tensor, " n"], views: Sequence[View], fraction: float
) -> Bool[Tensor, " n"]:
    """Return a mask of the Gaussians that few photos show, closer to a camera than the scene of its photo begins.

    Where more than `FEW` photos show a Gaussian, they determine its place. With fewer, it may hang anywhere on the way
    from these cameras to the surface, also where other cameras stand, and veils every view from there. It counts as a
    floater if its distance to some camera is less than a fraction of the near end of that camera's scene, even if it is
    outside that photo: the next view may be beside it. The near end is the depth at which the photo's confirmed
    Gaussians begin. A photo with hardly any of them removes none.

    Args:
        means: centers, world units.
        photos: number of photos that show each Gaussian.
        views: training cameras.
        fraction: fraction of the near end.
    """
    confirmed = means[photos > FEW]
    ends = torch.stack([_near_end(confirmed, view) for view in views])
    positions = torch.stack([view.position for view in views]).to(means)
    rows = ((photos > 0) & (photos <= FEW)).nonzero()[:, 0]
    size = max(_PAIRS_AT_ONCE // len(views), 1)
    close = [(torch.cdist(means[chunk], positions) < fraction * ends).any(1) for chunk in rows.split(size)]
    return torch.zeros_like(photos, dtype=torch.bool).index_put_((rows,), torch.cat(close))


def _near_end(means: Float[Tensor, "n 3"], view: View) -> Float[Tensor, ""]:
    """Return the near end of the scene in a photo; 0 if there are too few Gaussians in it."""
    # Strided, so that the quantile stays cheap and does not depend on random numbers.
    local = means[:: -(-len(means) // _MOST_DEPTHS) or 1] @ view.rotation.T + view.camera_from_world[:3, 3]
    depth = local[:, 2]
    x = local[:, 0] * view.fx / depth + view.cx
    y = local[:, 1] * view.fy / depth + view.cy
    inside = (depth > view.near) & (x >= 0) & (y >= 0) & (x < view.width) & (y < view.height)
    ordered = torch.where(inside, depth, torch.inf).sort().values
    count = torch.count_nonzero(inside)
    if not len(ordered):
        return means.new_zeros(())
    end = ordered[(NEAR * count).long()]
    return torch.where(count >= LEAST_CONFIRMED, end, 0.0)
