"""Results of a step's views in addition to gradients: PSNR, visible Gaussians, densification statistics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import Ranks, StepOutput, Terms
from fieldwatch.recon.pipelines.splats.objective import step_psnr
from fieldwatch.recon.pipelines.splats.scene import PhotoView
from fieldwatch.recon.render import DensificationStatistics, RenderOutput, View
from fieldwatch.recon.render.splats import VisibleRows, any_visible, fill_visible


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewOutput(StepOutput):
    """Result of the objective for one view.

    Attributes:
        camera: camera of the view.
        psnr: PSNR of the rendering, dB.
        projected: rendering without its pixels: the visible Gaussians and, after backward, their view-space gradients.
    """

    camera: View
    psnr: Float[Tensor, ""]
    projected: RenderOutput

    @classmethod
    def of(
        cls,
        terms: Terms,
        output: RenderOutput,
        view: PhotoView,
        *,
        psnr: Float[Tensor, ""] | None = None,
        of_several: bool = False,
    ) -> Self:
        """Collect the results of a view.

        Args:
            terms: loss terms of the view.
            output: rendering of the view.
            view: photo of the view.
            psnr: PSNR of the rendering if it is known already, dB.
            of_several: whether the step has several views, so that the loss of each is recorded as well.
        """
        return cls(
            terms=terms,
            sample_loss=terms.total.detach()[None] if of_several else None,
            camera=view.camera,
            psnr=step_psnr(output, view) if psnr is None else psnr,
            projected=without_pixels(output),
        )


def without_pixels(output: RenderOutput) -> RenderOutput:
    """Return a rendering without its pixels, which frees their memory; `means2d` still receives its gradient."""
    empty = output.alpha.new_empty(0, 0)
    return replace(
        output,
        features=empty[..., None],
        alpha=empty,
        depth=None,
        normals=None,
        median_depth=None,
        median_ids=None,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSummary:
    """Results of all views of a step.

    Attributes:
        psnr: mean PSNR over the views, dB.
        visible: the Gaussians that are visible in at least one view.
        statistics: densification statistics of this step, summed over the views; None if they are not collected.
    """

    psnr: Float[Tensor, ""]
    visible: VisibleRows
    statistics: DensificationStatistics | None

    @classmethod
    @torch.no_grad()
    def of(cls, outputs: Sequence[ViewOutput], statistics: DensificationStatistics | None = None) -> Self:
        """Combine the results of several views.

        Args:
            outputs: results of the views, after backward; all views have the same weight.
            statistics: statistics to add the views' view-space gradients to, empty ones for several views; None
                collects none.
        """
        if statistics is not None:
            for output in outputs:
                statistics.add(output.projected, output.camera)
            if len(outputs) > 1:
                # Undo the weight 1 / views of each view's loss: densification thresholds are for unweighted gradients.
                statistics.gradients *= len(outputs)
        first, *further = outputs
        if not further:
            return cls(psnr=first.psnr, visible=first.projected.visible_rows, statistics=statistics)
        return cls(
            psnr=torch.stack([output.psnr for output in outputs]).mean(),
            visible=any_visible([output.projected.visible_rows for output in outputs]),
            statistics=statistics,
        )

    @torch.no_grad()
    def over_ranks(self, ranks: Ranks, weight: float, gaussians: int) -> Self:
        """All-reduce the results over the ranks; every rank gets the same.

        Args:
            ranks: ranks of the run.
            weight: fraction of the step's views that this rank rendered.
            gaussians: number of Gaussians.

        Raises:
            RankLost: Another rank was lost.
        """
        if ranks.alone:
            return self
        # As a mask of floats, because only sums over ranks are available: above 0 means visible on some rank.
        visible = fill_visible(self.psnr.new_zeros(gaussians), self.visible, 1.0)
        psnr = weight * self.psnr[None]
        if self.statistics is None:
            ranks.sum([psnr, visible])
        else:
            # The only collective is a sum: each rank fills a separate row, and the maximum is taken over rows.
            radii = visible.new_zeros(ranks.world, gaussians)
            radii[ranks.rank] = self.statistics.radii
            ranks.sum([psnr, visible, self.statistics.gradients, self.statistics.counts, radii])
            self.statistics.radii = radii.amax(0)
        mask = visible > 0
        rows = mask if self.visible.dtype == torch.bool else mask.nonzero()[:, 0]
        return replace(self, psnr=psnr[0], visible=rows)
