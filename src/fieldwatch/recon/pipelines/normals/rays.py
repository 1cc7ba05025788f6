"""Rays of a micro-batch, and the split of a step's rays into micro-batches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from fieldwatch import Terms
from fieldwatch.recon.pipelines.normals.batches import RayBatch, RaySource
from fieldwatch.recon.pipelines.normals.config import TermOptions
from fieldwatch.recon.pipelines.normals.objective import depth_term, view_losses
from fieldwatch.recon.pipelines.normals.rendering import RenderedDistances, RenderedRays
from fieldwatch.recon.pipelines.normals.step_output import NormalsStepOutput
from fieldwatch.recon.render import PackedSamples


class Rays:
    """Rays of a micro-batch, all rendered by this process.

    Args:
        batch: the rays.
        source: generator of the random numbers that place their samples.

    Attributes:
        batch: the rays.
        amounts: by term, the amount that its value is a mean over, if recorded; needed by several ranks only.
        shared: whether other processes render other rays of the micro-batch.
    """

    shared = False

    def __init__(self, batch: RayBatch, source: RaySource) -> None:
        self.batch = batch
        self.amounts: dict[str, Tensor | int] = {}
        self._source = source

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Draw offsets of the samples of the first ``rays`` rays, in steps."""
        return self._source.jitter(rays)

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Draw positions of stratified samples within their strata for the first ``rays`` rays."""
        return self._source.noise(rays, columns)

    def jitter_and_noise(self, rays: int, columns: int) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays columns"]]:
        """Draw both at once."""
        return self._source.jitter_and_noise(rays, columns)

    def limited(self, samples: PackedSamples, most: int) -> PackedSamples:  # noqa: ARG002  for the multi-rank subclass
        """Return the samples unchanged: with one process, marching has already limited them."""
        return samples

    def rendered_by_all(self, rendered: RenderedRays) -> tuple[RayBatch, RenderedRays | RenderedDistances]:
        """Return the rays that all ranks rendered, and their rendering results."""
        return rendered.rendered_of(self.batch), rendered

    def depth_term(self, rendered: RenderedRays, options: TermOptions) -> Float[Tensor, ""]:
        """Return the depth term, whose scales are fitted to whole views."""
        # The multi-rank subclass overrides `rendered_by_all`, so this covers all ranks' rays there.
        return depth_term(*self.rendered_by_all(rendered), options)

    def losses(
        self,
        weights: Mapping[str, float],
        rendered: RenderedRays,
        poses: Float[Tensor, "views 4 4"],
        options: TermOptions,
    ) -> Float[Tensor, " batch_views"] | None:
        """Return the loss of each view; None if the views of a micro-batch are split."""
        count = self.batch.view_count
        rendered_batch = self.batch.first(rendered.ray_count)
        if not count:
            return None
        return view_losses(weights, rendered_batch, rendered, poses=poses, options=options, views=count)

    def output(
        self,
        terms: Terms,
        rendered: RenderedRays,
        options: TermOptions,  # noqa: ARG002  for the multi-rank subclass
        losses: Float[Tensor, " views"] | None = None,
    ) -> NormalsStepOutput:
        """Return the result of the objective for these rays.

        Args:
            terms: terms as means over the rays rendered here.
            rendered: rendering results.
            options: how the terms were computed.
            losses: loss of each view, as `losses` returns it.
        """
        return NormalsStepOutput(
            terms=terms,
            sample_loss=losses,
            rays=rendered.ray_count,
            samples=len(rendered.samples) if isinstance(rendered.samples, PackedSamples) else 0,
            filled=rendered.filled,
            starved=rendered.starved,
            counts=None if rendered.device is None else rendered.device.counts,
        )


class RaySplit:
    """Splits the rays of a step into micro-batches, as the ``split`` argument of ``step.backward``.

    A step has one batch of rays per autograd graph (`views_per_graph`), and all batches have equal weight. After an
    out-of-memory error each batch is split further, weighted by the number of rays. For ``undo``, its state is that of
    the random numbers.

    Args:
        source: generator of the random numbers that place samples.
    """

    def __init__(self, source: RaySource) -> None:
        self.source = source

    def __call__(self, batches: Sequence[RayBatch], count: int) -> Iterator[tuple[Rays, float]]:
        """Yield the rays of each micro-batch with its fraction of the step.

        Args:
            batches: batches of a step.
            count: approximate number of micro-batches per batch.
        """
        for batch in batches:
            for piece in batch.split(count):
                # Its fraction of the batch times the batch's fraction of the step; these sum to 1 over a step.
                yield self.rays(piece), len(piece) / len(batch) / len(batches)

    def rays(self, piece: RayBatch) -> Rays:
        """Return the rays of a micro-batch."""
        return Rays(piece, self.source)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random numbers."""
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the random numbers before a retry of the step."""
        self.source.load_state_dict(state)
