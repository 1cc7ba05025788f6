"""Output of the objective for each micro-batch of rays, and the ray statistics that a run records."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int32
from torch import Tensor

from fieldwatch import Step, StepOutput
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule
from fieldwatch.recon.render.sdf_gpu import (
    FAULTS,
    FILLED,
    KEPT_RAYS,
    MASKED,
    SECTIONS,
    STARVED,
    raise_device_faults,
    step_numbers,
)

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
        counts: counts on the GPU that replace these numbers, at the places of `recon.render.sdf_gpu`.
    """

    rays: int
    samples: int
    filled: int
    starved: float
    counts: Int32[Tensor, "7"] | None = None


@dataclass(frozen=True, kw_only=True)
class RayStatistics:
    """Ray statistics of a step, summed over its micro-batches.

    Attributes:
        rays: number of rays rendered.
        samples: number of samples blended.
        filled: number of rays in the mask that were given stratified samples.
        starved: fraction of the rays in the mask without samples, averaged over the micro-batches.
        counts: counts of the micro-batches on the GPU that replace these numbers.
    """

    rays: int
    samples: int
    filled: int
    starved: float
    counts: Int32[Tensor, "batches 7"] | None = None

    @classmethod
    def of(cls, outputs: Sequence[NormalsStepOutput]) -> "RayStatistics":
        """Aggregate the outputs of a step."""
        counts = [output.counts for output in outputs if output.counts is not None]
        if counts:
            together = torch.stack(counts) if len(counts) > 1 else counts[0][None]
            return cls(rays=0, samples=0, filled=0, starved=0.0, counts=together)
        return cls(
            rays=sum(output.rays for output in outputs),
            samples=sum(output.samples for output in outputs),
            filled=sum(output.filled for output in outputs),
            starved=sum(output.starved for output in outputs) / max(len(outputs), 1),
        )

    @classmethod
    def of_counts(cls, counts: Sequence[Sequence[int]]) -> "RayStatistics":
        """Aggregate counts of micro-batches that were read from a GPU.

        Raises:
            ValueError: rays were not finite, or samples outside the box of the field.
        """
        for row in counts:
            raise_device_faults(row[FAULTS])
        starved = [row[STARVED] / max(row[MASKED], 1) for row in counts]
        return cls(
            rays=sum(row[KEPT_RAYS] for row in counts),
            samples=sum(row[SECTIONS] for row in counts),
            filled=sum(row[FILLED] for row in counts),
            starved=sum(starved) / max(len(starved), 1),
        )

    def recorded(self) -> dict[str, float | Tensor]:
        """Return the values to record, without a read from the device."""
        if self.counts is None:
            rays, samples, filled, starved = self.rays, self.samples, self.filled, self.starved
            per_ray = samples / max(rays, 1)
        else:
            per_ray, rays, filled, starved = step_numbers(self.counts)
        return {
            "Statistics/samples_per_ray": per_ray,
            "Statistics/rays": rays,
            "Statistics/filled_rays": filled,
            "Statistics/starved_share": starved,
        }


def record_statistics(step: Step, plan: NormalsSchedule, model: NormalsModel, rays: RayStatistics) -> None:
    """Record the statistics of rays, occupancy grid and sharpness and, every `POSES_EVERY` steps, the pose changes."""
    step.record(
        {
            **rays.recorded(),
            "Statistics/step_size": plan.march_step(step.index),
            "Statistics/occupied_frac": model.grid.occupied_fraction,
            # Device tensors are recorded without a sync; the writer reads them later.
            "Statistics/s": model.deviation.value,
        }
    )
    if model.poses.learned_parameters() and step.every(POSES_EVERY):
        rotation, position = model.poses.changes().unbind()
        step.record({"Statistics/pose_change_rotation": rotation, "Statistics/pose_change_position": position})
