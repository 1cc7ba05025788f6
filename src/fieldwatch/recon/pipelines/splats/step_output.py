"""What the views of a step give beside their gradients: PSNR, the visible Gaussians, and densification statistics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fieldwatch import Ranks, StepOutput
from fieldwatch.recon.render import DensificationStatistics, RenderOutput, View


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewOutput(StepOutput):
    """What the objective returns for one view.

    Attributes:
        camera: of the view.
        psnr: of the rendering, dB.
        on_screen: the rendering without its maps: the visible Gaussians, and after backward their view-space gradients.
    """

    camera: View
    psnr: Float[Tensor, ""]
    on_screen: RenderOutput


def without_maps(rendered: RenderOutput) -> RenderOutput:
    """Return a rendering without its pixels; where a Gaussian lies on the screen still gets its gradient."""
    nothing = rendered.alpha.new_empty(0, 0)
    return replace(
        rendered,
        features=nothing[..., None],
        alpha=nothing,
        depth=None,
        normals=None,
        median_depth=None,
        median_ids=None,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSummary:
    """What all views of a step showed.

    Attributes:
        psnr: mean over the views, dB.
        visible: numbers of the Gaussians that some view showed, ascending.
        statistics: densification statistics of this step, summed over the views; None where they are not collected.
    """

    psnr: Float[Tensor, ""]
    visible: Int[Tensor, " visible"]
    statistics: DensificationStatistics | None

    @classmethod
    @torch.no_grad()
    def of(cls, outputs: Sequence[ViewOutput], statistics: DensificationStatistics | None = None) -> Self:
        """Join what some views showed.

        Args:
            outputs: one per view, after backward; each view has the same share of the step.
            statistics: new ones, to which the view-space gradients of the views are added; None collects none.
        """
        if statistics is not None:
            for output in outputs:
                statistics.add(output.on_screen, output.camera)
            statistics.gradients *= len(
                outputs
            )  # each went backward by its share of the views: undone, as thresholds want
        first, *further = outputs
        if not further:
            return cls(psnr=first.psnr, visible=first.on_screen.ids, statistics=statistics)
        return cls(
            psnr=torch.stack([output.psnr for output in outputs]).mean(),
            visible=torch.cat([output.on_screen.ids for output in outputs]).unique(),
            statistics=statistics,
        )

    @torch.no_grad()
    def over_ranks(self, ranks: Ranks, weight: float, gaussians: int) -> Self:
        """Return what the views of all processes showed, the same on each.

        Args:
            ranks: the processes that train together.
            weight: share of the views that this process rendered.
            gaussians: how many there are.

        Raises:
            RankLost: another process was lost.
        """
        if ranks.alone:
            return self
        seen = self.psnr.new_zeros(gaussians).index_fill_(0, self.visible, 1.0)
        psnr = weight * self.psnr[None]
        sums = [seen]
        if self.statistics is not None:  # sums know no maximum: each has a row of its own
            rows = seen.new_zeros(ranks.world, gaussians)
            rows[ranks.rank] = self.statistics.radii
            sums += [self.statistics.gradients, self.statistics.counts, rows]
            ranks.sum([psnr, *sums])
            self.statistics.radii = rows.amax(0)
        else:
            ranks.sum([psnr, *sums])
        return replace(self, psnr=psnr[0], visible=seen.nonzero()[:, 0])
