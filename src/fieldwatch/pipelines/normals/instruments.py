"""What a normals run shows of every step, beside its loss terms."""

from fieldwatch import Step
from fieldwatch.pipelines.normals.batches import RayBatch
from fieldwatch.pipelines.normals.model import NormalsModel
from fieldwatch.pipelines.normals.rendering import Rendered
from fieldwatch.pipelines.normals.scene import Scene

POSES_EVERY = 10
"""Steps between looks at how far poses have moved."""


class Instruments:
    """Gathers what the graphs of a step saw, and records it once.

    Args:
        scene: what is trained on.
        model: what is trained.

    Attributes:
        rays: of the step up to now.
        samples: of those rays.
    """

    def __init__(self, scene: Scene, model: NormalsModel) -> None:
        self._scene, self._model = scene, model
        self.begin()

    def look(self, batch: RayBatch, rendered: Rendered) -> None:
        """Take in what one graph saw."""
        self.take(batch, samples=len(rendered.samples), filled=rendered.filled, starved=rendered.starved)

    def take(self, batch: RayBatch, *, samples: int, filled: int, starved: float) -> None:
        """Take in what one graph saw, on all ranks.

        Args:
            batch: its rays.
            samples: of them.
            filled: rays that the grid gave no samples and that got stratified ones.
            starved: share of the rays in the mask that the grid gave no samples.
        """
        self.rays += len(batch)
        self.samples += samples
        self._filled += filled
        self._starved.append(starved)
        self._views += batch.views.tolist()

    @property
    def starved(self) -> float:
        """Mean share of the rays in the mask that the grid gave no samples."""
        return sum(self._starved) / max(len(self._starved), 1)

    def views(self) -> tuple[str, ...]:
        """Names of the views of the step."""
        names, train = self._scene.maps.names, self._scene.train
        return tuple(names[train[view]] for view in dict.fromkeys(self._views))

    def after_update(self, step: Step) -> None:
        """Record the step's numbers, and begin anew."""
        plan, model = self._scene.plan, self._model
        values = {
            "Statistics/samples_per_ray": self.samples / max(self.rays, 1),
            "Statistics/rays": self.rays,
            "Statistics/filled_rays": self._filled,
            "Statistics/starved_share": self.starved,
            "Statistics/step_size": plan.march_step(step.index),
            "Statistics/occupied_frac": model.grid.occupied_fraction,
            "Statistics/s": model.deviation.value,
        }
        step.record(values)
        if model.poses.learned() and step.every(POSES_EVERY):
            rotation, position = model.poses.changes().unbind()
            step.record({"Statistics/pose_change_rotation": rotation, "Statistics/pose_change_position": position})
        self.begin()

    def begin(self) -> None:
        """Forget what was taken in: a step, or another attempt at it, begins."""
        self.rays = self.samples = self._filled = 0
        self._starved: list[float] = []
        self._views: list[int] = []
