"""Time the parts of rendering a signed distance field in native kernels and in plain torch, forward and backward.

python benchmarks/sdf_rendering.py --threads 1 2

Each figure is the minimum processor time of several runs that alternate with those of the compared code. The scene is a
sphere in a grid of 128^3 cells with 512 rays, as in a training step on normal maps.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fieldwatch.recon.render import (
    BoundedRays,
    Cells,
    Composited,
    PackedSamples,
    Sections,
    composite,
    composite_sections,
    native_available,
    points_along,
    section_alpha,
    section_opacities,
    transmittance,
)
from fieldwatch.recon.render.sdf.alpha import section_alpha_reference
from fieldwatch.recon.render.sdf.compositing import composite_reference
from fieldwatch.recon.render.sdf.marching import OccupancyMaps, build_maps, build_maps_reference, march, march_reference

RADIUS = 0.6
BAND = 0.04  # of occupied cells around the sphere
SHARPNESS = 60.0
STEPS = (0.0117, 0.003, 0.001)
CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Rays toward a sphere, and the grid around it."""

    cells: Cells
    occupied: Tensor
    maps: OccupancyMaps
    rays: BoundedRays
    jitter: Tensor


def scene(count: int) -> Scene:
    """Return rays from all directions, most of which hit the sphere."""
    torch.manual_seed(0)
    cells = Cells(resolution=128)
    distance = cells.centers(torch.arange(cells.count)).norm(dim=-1).view(128, 128, 128) - RADIUS
    origins = torch.randn(count, 3)
    origins = 3 * origins / origins.norm(dim=-1, keepdim=True)
    directions = 0.4 * torch.randn(count, 3) - origins
    rays = BoundedRays.in_sphere(origins, directions / directions.norm(dim=-1, keepdim=True), 0.999)
    occupied = distance.abs() < BAND
    return Scene(cells=cells, occupied=occupied, maps=build_maps(occupied), rays=rays, jitter=torch.rand(count))


@dataclass(frozen=True, kw_only=True)
class Known:
    """Return samples, and the values of a field at their ends."""

    samples: PackedSamples
    sections: Sections
    values: Tensor
    gradients: Tensor
    sharpness: Tensor

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """Return the tensors that get a gradient."""
        return self.values, self.gradients, self.sharpness

    def whole(self) -> Composited:
        """Blend in one pass."""
        return composite_sections(self.values, self.sharpness, self.samples, self.sections, self.gradients)

    def in_parts(self, *, native: bool) -> Composited:
        """Blend by opacities and means of ends."""
        alpha_of, blend = (section_alpha, composite) if native else (section_alpha_reference, composite_reference)
        start, end = (self.values.index_select(0, at) for at in self.sections[2:])
        means = 0.5 * sum(self.gradients.index_select(0, at) for at in self.sections[2:])
        samples = self.samples
        alpha = alpha_of(start, end, self.sharpness)
        return blend(alpha, samples.ray_index, samples.n_rays, samples.midpoints, means)


def known(at: Scene, step: float) -> Known:
    """Sample through the grid, and return the sphere at the ends of the samples, slightly shifted."""
    samples = march(at.cells, at.maps, at.rays, step, jitter=at.jitter, max_samples=None, chunk=CHUNK)
    sections = samples.sections()
    points = points_along(at.rays, sections.distances, sections.ray_index)
    radius = points.norm(dim=-1)
    values = radius - RADIUS + 0.002 * torch.randn_like(radius)
    return Known(
        samples=samples,
        sections=sections,
        values=values.requires_grad_(),
        gradients=(points / radius[:, None]).requires_grad_(),
        sharpness=torch.tensor(SHARPNESS, requires_grad=True),
    )


def least(runs: list[Callable[[], object]], repeats: int) -> list[float]:
    """Return the milliseconds of processor time of the fastest run of each function, in turns."""
    times = [float("inf")] * len(runs)
    for _ in range(repeats + 1):
        for place, run in enumerate(runs):
            began = time.process_time()
            run()
            times[place] = min(times[place], 1e3 * (time.process_time() - began))
    return times


def backward(blend: Callable[[], Composited], leaves: tuple[Tensor, ...]) -> Callable[[], object]:
    """Return gradients of opacity, depth and normals."""
    out = blend()
    outputs = (out.opacity, out.depth, *out.values)
    pulls = [torch.randn_like(part) for part in outputs]
    return lambda: torch.autograd.grad(outputs, leaves, pulls, retain_graph=True)


def row(name: str, size: str, times: list[float]) -> None:
    """Format one line of the table; the middle one of three figures is computed in parts."""
    ratio = times[-1] / times[0]
    parts = f"{times[1]:.2f}" if len(times) == 3 else "-"
    print(f"| {name} | {size} | {times[0]:.2f} | {parts} | {times[-1]:.2f} | {ratio:.1f}x |", flush=True)


def marching(at: Scene, repeats: int) -> None:
    """Return the rows of the grid's maps and of marching."""
    row("maps", "128^3", least([lambda: build_maps(at.occupied), lambda: build_maps_reference(at.occupied)], repeats))
    for step in STEPS:
        how = {"jitter": at.jitter, "max_samples": None, "chunk": CHUNK}
        runs = [
            lambda of=of, step=step, how=how: of(at.cells, at.maps, at.rays, step, **how)
            for of in (march, march_reference)
        ]
        row("march", f"{len(runs[0]()):,}", least(runs, repeats))


def blending(at: Scene, step: float, repeats: int) -> None:
    """Return the rows of opacities and blending."""
    this = known(at, step)
    size = f"{len(this.samples):,}"
    ways = [this.whole, lambda: this.in_parts(native=True), lambda: this.in_parts(native=False)]
    row("blend, forward", size, least(list(ways), repeats))
    row("blend, backward", size, least([backward(way, this.leaves) for way in ways], repeats))
    values = this.values.detach()
    sections = this.sections
    samples = this.samples

    def alpha(of: Callable[..., Tensor]) -> Tensor:
        return of(values[sections.start], values[sections.end], SHARPNESS)

    def native() -> Tensor:
        return transmittance(alpha(section_alpha), samples.ray_index, samples.n_rays)

    def plain() -> Tensor:
        opacity = alpha(section_alpha_reference)
        return composite_reference(opacity, samples.ray_index, samples.n_rays, samples.midpoints).weights

    row("light", size, least([lambda: section_opacities(values, SHARPNESS, samples, sections), native, plain], repeats))


def main() -> None:
    """Print a table for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rays", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    there, reason = native_available()
    if not there:
        raise SystemExit(reason)
    at = scene(options.rays)
    for threads in options.threads:
        torch.set_num_threads(threads)
        print(f"\n{threads} thread{'s' * (threads > 1)}, {options.rays} rays, ms of processor time\n")
        print("| part | samples | native | native, in parts | torch | ratio |\n|---|---|---|---|---|---|")
        marching(at, options.repeats)
        for step in STEPS[:2]:
            blending(at, step, options.repeats)


if __name__ == "__main__":
    main()
