"""Results of the views of a step besides gradients: PSNR, the visible Gaussians, densification statistics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fieldwatch import Ranks, StepOutput, Terms
from fieldwatch.recon.pipelines.splats.objective import step_psnr
from fieldwatch.recon.pipelines.splats.scene import PhotoView
from fieldwatch.recon.render import DensificationStatistics, RenderOutput, View


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewOutput(StepOutput):
    """What the objective returns for one view.

    Attributes:
        camera: of the view.
        psnr: of the rendering, dB.
        projected: the rendering without its pixels: the visible Gaussians, and after backward their view-space
            gradients.
    """

    camera: View
    psnr: Float[Tensor, ""]
    projected: RenderOutput

    @classmethod
    def of(cls, terms: Terms, output: RenderOutput, view: PhotoView, *, of_several: bool = False) -> Self:
        """Gather the results of a view.

        Args:
            terms: of its loss.
            output: its rendering.
            view: the photo.
            of_several: the step has other views: the loss of each is recorded, too.
        """
        return cls(
            terms=terms,
            sample_loss=terms.total.detach()[None] if of_several else None,
            camera=view.camera,
            psnr=step_psnr(output, view),
            projected=without_pixels(output),
        )


def without_pixels(output: RenderOutput) -> RenderOutput:
    """Return a rendering without its pixels, which frees their memory; `means2d` still gets its gradient."""
    nothing = output.alpha.new_empty(0, 0)
    return replace(
        output,
        features=nothing[..., None],
        alpha=nothing,
        depth=None,
        normals=None,
        median_depth=None,
        median_ids=None,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSummary:
    """Results of all views of a step.

    Attributes:
        psnr: mean over the views, dB.
        visible: row numbers of the Gaussians that are visible in some view, ascending.
        statistics: densification statistics of this step, summed over the views; None where they are not collected.
    """

    psnr: Float[Tensor, ""]
    visible: Int[Tensor, " visible"]
    statistics: DensificationStatistics | None

    @classmethod
    @torch.no_grad()
    def of(cls, outputs: Sequence[ViewOutput], statistics: DensificationStatistics | None = None) -> Self:
        """Join the results of several views.

        Args:
            outputs: one per view, after backward; each view has the same share of the step.
            statistics: new ones, to which the view-space gradients of the views are added; None collects none.
        """
        if statistics is not None:
            for output in outputs:
                statistics.add(output.projected, output.camera)
            # Backward weighted each view by its share of the step; the thresholds are for unweighted gradients.
            statistics.gradients *= len(outputs)
        first, *further = outputs
        if not further:
            return cls(psnr=first.psnr, visible=first.projected.ids, statistics=statistics)
        return cls(
            psnr=torch.stack([output.psnr for output in outputs]).mean(),
            visible=torch.cat([output.projected.ids for output in outputs]).unique(),
            statistics=statistics,
        )

    @torch.no_grad()
    def over_ranks(self, ranks: Ranks, weight: float, gaussians: int) -> Self:
        """Return the results of the views of all processes, the same on each.

        Args:
            ranks: the processes that train together.
            weight: share of the views that this process rendered.
            gaussians: how many there are.

        Raises:
            RankLost: another process was lost.
        """
        if ranks.alone:
            return self
        visible = self.psnr.new_zeros(gaussians).index_fill_(0, self.visible, 1.0)
        psnr = weight * self.psnr[None]
        if self.statistics is None:
            ranks.sum([psnr, visible])
        else:
            # The processes can only sum: each fills a row of its own, and the maximum is taken over the rows.
            radii = visible.new_zeros(ranks.world, gaussians)
            radii[ranks.rank] = self.statistics.radii
            ranks.sum([psnr, visible, self.statistics.gradients, self.statistics.counts, radii])
            self.statistics.radii = radii.amax(0)
        return replace(self, psnr=psnr[0], visible=visible.nonzero()[:, 0])
