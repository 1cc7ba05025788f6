"""What one step's views showed, of all views and of all processes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fieldwatch import Terms
from fieldwatch.pipelines.splats.scene import Shot
from fieldwatch.render import ScreenTally, Splatted
from fieldwatch.run import Ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """What the views of a step showed, and how far they were from their photos; without a graph.

    Attributes:
        terms: of the loss, means over the views.
        losses: total of each view.
        psnr: mean over the views, dB.
        ids: Gaussians that some view showed, ascending.
        tally: what pulled at them on the pictures, summed over the views; None where growth does not look.
    """

    terms: Terms
    losses: Float[Tensor, " views"]
    psnr: Float[Tensor, ""]
    ids: Int[Tensor, " visible"]
    tally: ScreenTally | None

    @classmethod
    @torch.no_grad()
    def of(
        cls, terms: Terms, psnr: Float[Tensor, ""], drawn: Splatted, shot: Shot, tally: ScreenTally | None
    ) -> "Shown":
        """Take down what one view showed, after backward.

        Args:
            terms: of the view.
            psnr: of the picture, dB.
            drawn: the picture.
            shot: the photo.
            tally: where to add what pulled at the Gaussians.
        """
        if tally is not None:
            tally.add(drawn, shot.view)
        kept = Terms(**{name: (weight, value.detach()) for name, (weight, value) in terms.items()})
        return cls(terms=kept, losses=kept.total[None], psnr=psnr, ids=drawn.ids, tally=tally)

    @classmethod
    def joined(cls, views: Sequence["Shown"]) -> "Shown":
        """Return what several views showed, whose terms have the same names and weights, and which share a tally."""
        first = views[0]
        if len(views) == 1:
            return first
        values = {name: torch.stack([view.terms[name].value for view in views]).mean() for name in first.terms}
        return cls(
            terms=Terms(**{name: (first.terms[name].weight, value) for name, value in values.items()}),
            losses=torch.cat([view.losses for view in views]),
            psnr=torch.stack([view.psnr for view in views]).mean(),
            ids=torch.cat([view.ids for view in views]).unique(),
            tally=first.tally,
        )

    @torch.no_grad()
    def of_all(self, ranks: Ranks, weight: float, gaussians: int) -> "Shown":
        """Return what the views of all processes showed, the same on each; `step.update` sees to terms and losses.

        Args:
            ranks: who meets.
            weight: share of the views that this process drew.
            gaussians: how many there are.

        Raises:
            RankLost: another process was lost.
        """
        if ranks.alone:
            return self
        seen = self.psnr.new_zeros(gaussians).index_fill_(0, self.ids, 1.0)
        psnr, sums = weight * self.psnr[None], [seen]
        if self.tally is not None:  # sums know no maximum: each has a row of its own
            rows = seen.new_zeros(ranks.world, gaussians)
            rows[ranks.rank] = self.tally.radii
            sums += [self.tally.pulls, self.tally.sightings, rows]
            ranks.sum([psnr, *sums])
            self.tally.radii = rows.amax(0)
        else:
            ranks.sum([psnr, *sums])
        return replace(self, psnr=psnr[0], ids=seen.nonzero()[:, 0])
