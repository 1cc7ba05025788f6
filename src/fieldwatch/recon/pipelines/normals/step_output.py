"""Output of the objective for each micro-batch of rays, and the ray statistics that a run records."""

from collections.abc import Sequence
from dataclasses import dataclass

from fieldwatch import Step, StepOutput
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule

POSES_EVERY = 10
"""Steps between records of the pose changes."""


@dataclass(frozen=True, kw_only=True)
class NormalsStepOutput(StepOutput):
    """Loss terms of a micro-batch and statistics of its rays; with several ranks, of all ranks' rays.

    Attributes:
        rays: number of rays rendered; fewer than sampled if the sample bound took effect.
        samples: number of samples blended.
        filled: number of rays in the mask without samples from the occupancy grid, which were given stratified ones.
        starved: fraction of the rays in the mask that the occupancy grid gave no samples.
    """

    rays: int
    samples: int
    filled: int
    starved: float


@dataclass(frozen=True, kw_only=True)
class RayStatistics:
    """Ray statistics of a step, summed over its micro-batches.

    Attributes:
        rays: number of rays rendered.
        samples: number of samples blended.
        filled: number of rays in the mask that were given stratified samples.
        starved: fraction of the rays in the mask without samples, averaged over the micro-batches.
    """

    rays: int
    samples: int
    filled: int
    starved: float

    @classmethod
    def of(cls, outputs: Sequence[NormalsStepOutput]) -> "RayStatistics":
        """Aggregate the outputs of a step."""
        return cls(
            rays=sum(output.rays for output in outputs),
            samples=sum(output.samples for output in outputs),
            filled=sum(output.filled for output in outputs),
            starved=sum(output.starved for output in outputs) / max(len(outputs), 1),
        )


def record_statistics(step: Step, plan: NormalsSchedule, model: NormalsModel, rays: RayStatistics) -> None:
    """Record the statistics of rays, occupancy grid and sharpness and, every `POSES_EVERY` steps, the pose changes."""
    step.record(
        {
            "Statistics/samples_per_ray": rays.samples / max(rays.rays, 1),
            "Statistics/rays": rays.rays,
            "Statistics/filled_rays": rays.filled,
            "Statistics/starved_share": rays.starved,
            "Statistics/step_size": plan.march_step(step.index),
            "Statistics/occupied_frac": model.grid.occupied_fraction,
            # Device tensors are recorded without a sync; the writer reads them later.
            "Statistics/s": model.deviation.value,
        }
    )
    if model.poses.learned_parameters() and step.every(POSES_EVERY):
        rotation, position = model.poses.changes().unbind()
        step.record({"Statistics/pose_change_rotation": rotation, "Statistics/pose_change_position": position})
