"""What the objective returns for each micro-batch of rays, and what a run records about the rays of a step."""

from collections.abc import Sequence
from dataclasses import dataclass

from fieldwatch import Step, StepOutput
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule

POSES_EVERY = 10
"""Steps between two records of how far the poses have moved."""


@dataclass(frozen=True, kw_only=True)
class NormalsStepOutput(StepOutput):
    """Loss terms of a micro-batch, and how its rays were rendered; with several ranks, those of all of them.

    Attributes:
        rays: number of rays rendered; fewer than drawn where the bound on samples took effect.
        samples: number of samples blended.
        filled: rays in the mask without samples in the occupancy grid, which got stratified ones.
        starved: share of the rays in the mask that the occupancy grid gave no samples.
    """

    rays: int
    samples: int
    filled: int
    starved: float


@dataclass(frozen=True, kw_only=True)
class RayStatistics:
    """The rays of a step: sums over its micro-batches.

    Attributes:
        rays: number of rays rendered.
        samples: number of samples blended.
        filled: rays in the mask that got stratified samples.
        starved: share of the rays in the mask without samples, as a mean over the micro-batches.
    """

    rays: int
    samples: int
    filled: int
    starved: float

    @classmethod
    def of(cls, outputs: Sequence[NormalsStepOutput]) -> "RayStatistics":
        """Sum up the outputs of a step."""
        return cls(
            rays=sum(output.rays for output in outputs),
            samples=sum(output.samples for output in outputs),
            filled=sum(output.filled for output in outputs),
            starved=sum(output.starved for output in outputs) / max(len(outputs), 1),
        )


def record_statistics(step: Step, plan: NormalsSchedule, model: NormalsModel, rays: RayStatistics) -> None:
    """Record the rays of a step, the occupancy grid, the sharpness, and now and then how far poses have moved."""
    step.record(
        {
            "Statistics/samples_per_ray": rays.samples / max(rays.rays, 1),
            "Statistics/rays": rays.rays,
            "Statistics/filled_rays": rays.filled,
            "Statistics/starved_share": rays.starved,
            "Statistics/step_size": plan.march_step(step.index),
            "Statistics/occupied_frac": model.grid.occupied_fraction,
            "Statistics/s": model.deviation.value,
        }
    )
    if model.poses.learned_parameters() and step.every(POSES_EVERY):
        rotation, position = model.poses.changes().unbind()
        step.record({"Statistics/pose_change_rotation": rotation, "Statistics/pose_change_position": position})
