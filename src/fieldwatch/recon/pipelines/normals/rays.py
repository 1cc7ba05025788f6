"""The rays of a micro-batch, and how the rays of a step are cut into micro-batches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from fieldwatch import Terms
from fieldwatch.recon.pipelines.normals.batches import RayBatch, RaySource
from fieldwatch.recon.pipelines.normals.config import TermOptions
from fieldwatch.recon.pipelines.normals.objective import depth_term
from fieldwatch.recon.pipelines.normals.rendering import RenderedDistances, RenderedRays
from fieldwatch.recon.pipelines.normals.step_output import NormalsStepOutput
from fieldwatch.recon.render import PackedSamples


class Rays:
    """The rays of a micro-batch, all rendered by this process.

    Args:
        batch: the rays.
        source: draws the random numbers that place their samples.

    Attributes:
        batch: as above.
        amounts: by term, how much its value is a mean over, where a term notes it; only several ranks need it.
    """

    def __init__(self, batch: RayBatch, source: RaySource) -> None:
        self.batch = batch
        self.amounts: dict[str, Tensor | int] = {}
        self._source = source

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Draw shifts of the samples of the first rays, in steps."""
        return self._source.jitter(rays)

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Draw places within parts of the first rays."""
        return self._source.noise(rays, columns)

    def limited(self, samples: PackedSamples, most: int) -> PackedSamples:  # noqa: ARG002  several ranks need it
        """Return the samples as they are: the march has bounded those of one process already."""
        return samples

    def rendered_by_all(self, rendered: RenderedRays) -> tuple[RayBatch, RenderedRays | RenderedDistances]:
        """Return the rays that all ranks rendered, and what they see."""
        return self.batch.first(rendered.ray_count), rendered

    def depth_term(self, rendered: RenderedRays, options: TermOptions) -> Float[Tensor, ""]:
        """Return the depth term, whose scales are those of whole views."""
        return depth_term(*self.rendered_by_all(rendered), options)

    def output(self, terms: Terms, rendered: RenderedRays, options: TermOptions) -> NormalsStepOutput:  # noqa: ARG002  likewise
        """Return what the objective gives for these rays.

        Args:
            terms: means over the rays rendered here.
            rendered: what they see.
            options: how the terms were formed.
        """
        return NormalsStepOutput(
            terms=terms,
            rays=rendered.ray_count,
            samples=len(rendered.samples),
            filled=rendered.filled,
            starved=rendered.starved,
        )


class RaySplit:
    """Cuts the rays of a step into micro-batches: the ``split`` of ``step.backward``.

    A step's rays come in batches, each of so many views that its graph fits into memory (`views_per_graph`). Every
    batch counts alike; after an out-of-memory error each is cut further, and its pieces count by their rays. For
    ``undo``, its state is that of the random numbers.

    Args:
        source: draws the random numbers that place samples.
    """

    def __init__(self, source: RaySource) -> None:
        self.source = source

    def __call__(self, batches: Sequence[RayBatch], count: int) -> Iterator[tuple[Rays, float]]:
        """Yield the rays of one micro-batch after the other, each with its share of the step.

        Args:
            batches: of a step.
            count: micro-batches that each batch is cut into, about.
        """
        for batch in batches:
            for piece in batch.split(count):
                # Its share of its batch, times that of the batch: the shares of a step add up to 1.
                yield self.rays(piece), len(piece) / len(batch) / len(batches)

    def rays(self, piece: RayBatch) -> Rays:
        """Return the rays of a micro-batch."""
        return Rays(piece, self.source)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random numbers."""
        return self.source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the random numbers, so that the step can be repeated."""
        self.source.load_state_dict(state)
