"""Samples along rays on a GPU, in lists whose lengths are on the device (`gpu/sdf_march.cu`)."""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from fieldwatch.recon.render.gpu import KernelFile

MARCH = KernelFile("sdf_march.cu")
RAY_THREADS = 32
"""Threads of a block of kernels with a thread per ray."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceSamples:
    """Sections of rays in lists with room for more, whose lengths are on the device.

    Section s extends from end ``first_end[s]`` to the next one; adjacent sections share an end.

    Attributes:
        ray_sums: running sums, over the rays, of the numbers of their sections and of their ends.
        section_ray: ray of each section, in ascending order.
        first_end: end at which each section starts.
        end_ray: ray of each end.
        end_section: section that starts at each end; -1 if none does.
        distance: distance of each end along its ray.
        points: the ends in space.
    """

    ray_sums: Int32[Tensor, "2 rays"]
    section_ray: Int32[Tensor, " section_room"]
    first_end: Int32[Tensor, " section_room"]
    end_ray: Int32[Tensor, " end_room"]
    end_section: Int32[Tensor, " end_room"]
    distance: Float[Tensor, " end_room"]
    points: Float[Tensor, "end_room 3"]

    @property
    def sections(self) -> Int32[Tensor, "1"]:
        """Number of sections."""
        return self.ray_sums[0, -1:]

    @property
    def ends(self) -> Int32[Tensor, "1"]:
        """Number of ends."""
        return self.ray_sums[1, -1:]

    @classmethod
    def with_room(cls, ray_sums: Tensor, sections: int, ends: int) -> "DeviceSamples":
        """Return empty lists."""

        def whole(size: int) -> Tensor:
            return torch.empty(size, dtype=torch.int32, device=ray_sums.device)

        def numbers(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=ray_sums.device)

        return cls(
            ray_sums=ray_sums,
            section_ray=whole(sections),
            first_end=whole(sections),
            end_ray=whole(ends),
            end_section=whole(ends),
            distance=numbers(ends),
            points=numbers(ends, 3),
        )

    def at(self, origins: Float[Tensor, "rays 3"], directions: Float[Tensor, "rays 3"]) -> "DeviceSamples":
        """Return the samples with points from which gradients flow to the rays."""
        if not origins.requires_grad and not directions.requires_grad:
            return self
        return replace(self, points=cast("Tensor", _Points.apply(origins, directions, self)))


class _Points(torch.autograd.Function):
    """Points along rays, whose gradients are added ray by ray."""

    @staticmethod
    def forward(ctx: Any, origins: Tensor, directions: Tensor, samples: DeviceSamples) -> Tensor:
        ctx.save_for_backward(samples.ray_sums, samples.distance)
        ctx.like = torch.empty_like(origins), torch.empty_like(directions)
        return samples.points.view_as(samples.points)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ray_sums, distance = ctx.saved_tensors
        by_origins, by_directions = ctx.like
        rays = len(by_origins)
        given = (ray_sums[1], distance, gradients[0].contiguous())
        MARCH.launch("march_points_backward", -(-rays // RAY_THREADS), rays, *given, by_origins, by_directions)
        return by_origins, by_directions, None
