"""The gradients of a step: looks along its rays, graph by graph, and goes backward from what they saw."""

from collections.abc import Sequence
from dataclasses import dataclass

from fieldwatch import Parts, Step
from fieldwatch.pipelines.normals.batches import RayBatch, RaySource
from fieldwatch.pipelines.normals.config import NormalsConfig
from fieldwatch.pipelines.normals.instruments import Instruments
from fieldwatch.pipelines.normals.learning import Learning
from fieldwatch.pipelines.normals.model import NormalsModel
from fieldwatch.pipelines.normals.objective import MeanTerms, ray_terms
from fieldwatch.pipelines.normals.ray_budget import RayBudget
from fieldwatch.pipelines.normals.rendering import render
from fieldwatch.pipelines.normals.scene import Scene
from fieldwatch.pipelines.normals.view_terms import ViewTerms


@dataclass(frozen=True)
class Gradients:
    """Looks along the rays of a step, and goes backward from what they saw, graph by graph.

    Attributes:
        config: settings.
        scene: what is trained on.
        model: what is trained.
        learning: lets go of the gradients before.
        source: draws where along each ray its samples begin.
        budget: bounds the samples of a graph.
        view_terms: the terms that look at several views.
        instruments: are shown every graph.
    """

    config: NormalsConfig
    scene: Scene
    model: NormalsModel
    learning: Learning
    source: RaySource
    budget: RayBudget
    view_terms: ViewTerms
    instruments: Instruments

    def of(self, step: Step, batches: Sequence[RayBatch], parts: Parts) -> MeanTerms:
        """Make the gradients of a step, each batch of rays in so many graphs; return the means of its terms."""
        config, model, plan = self.config, self.model, self.scene.plan
        weights, march = plan.weights(step.index), plan.march_step(step.index)
        most, mean = self.budget.most_of(parts.count), MeanTerms(len(batches))
        self.learning.zero_grad()
        self.instruments.begin()
        for batch in batches:
            for some in batch.split(parts.count):  # the graph of these rays is the only one alive
                with step.span("render"):
                    rendered = render(model, some, march, config.rendering, self.source, most)
                    seen = some.first(rendered.kept)
                with step.span("loss"):
                    terms = ray_terms(weights, seen, rendered, model.poses(), config.terms)
                    terms |= self.view_terms.terms(weights, model, seen, rendered)
                with step.span("backward"):
                    mean.backward(terms, len(some) / len(batch))
                self.instruments.look(seen, rendered)
                del rendered, terms
        return mean
