"""The cost of a normals training step on a CPU, compared with plain torch; and quality over time.

    python benchmarks/normals_cpu.py                      # steps per second at 512 rays, one thread and two
    python benchmarks/normals_cpu.py --mesh MESH.obj      # and MAE and Chamfer after 1,000 to 10,000 steps

Both sides run the same step: sampling, marching, blending, terms, backward, Adam. fieldwatch uses native kernels (field
with its gradient, marching, blending). The reference is that of the tests: `hash_encode_reference`, the network by
autograd with a double backward, compositing and marching in plain torch. The field is trained on the built-in object.
Figures are medians of processor time with one thread, and of wall time with more.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from fieldwatch.recon.losses import eikonal_error
from fieldwatch.recon.pipelines.normals.batches import RaySource
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.learning import NormalsOptimizers
from fieldwatch.recon.pipelines.normals.model import NormalsModel, first_model
from fieldwatch.recon.pipelines.normals.objective import depth_term, mask_term, normal_term, staged_terms
from fieldwatch.recon.pipelines.normals.presets import default
from fieldwatch.recon.pipelines.normals.rays import Rays
from fieldwatch.recon.pipelines.normals.rendering import render
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.start import prepare_scene
from fieldwatch.recon.render import hash_encode_reference

WANTED = 5.0
"""Required speedup over the reference."""
WARM = 150
"""Training steps before the measurement, after which there is a surface."""
STEPS = (1000, 2000, 5000, 10_000)
"""About one, two, five and ten minutes on two cores."""


def step_of(config: NormalsConfig, scene: NormalsScene, model: NormalsModel) -> Callable[[int], int]:
    """Return a training step without record, which returns the number of blended samples."""
    learning = NormalsOptimizers(config, model, scene.schedule)
    plan = scene.schedule
    source = RaySource(scene.pixels, config.rays, seed=config.seed)

    def step(index: int) -> int:
        learning.prepare(index)
        model.grid.update(index, model.sdf, model.sharpness)
        (batch,) = source.draw(config.rays.rays)
        rendered = render(model, Rays(batch, source), plan.march_step(index), config.rendering)
        seen = batch.first(rendered.ray_count)
        terms = staged_terms(
            plan.weights(index),
            normal=lambda: normal_term(seen, rendered, model.poses(), config.terms),
            depth=lambda: depth_term(seen, rendered, config.terms),
            mask=lambda: mask_term(seen, rendered, config.terms),
            eikonal=lambda: eikonal_error(rendered.gradients),
        )
        learning.field.zero_grad()
        terms.total.backward()
        learning.field.step()
        return len(rendered.samples)

    return step


def plain_field(model: NormalsModel) -> ExitStack:
    """Evaluate the field in plain torch with a double backward, and everything else without native kernels."""
    sdf = model.sdf
    encoding = sdf.encoding

    def features(points: Tensor) -> Tensor:
        return hash_encode_reference((points + 1) / 2, encoding.table, encoding.lattices, encoding.level_weights())[0]

    def forward(points: Tensor) -> Tensor:
        return sdf.last(sdf._activations(points, features(points))[-1])[:, 0]  # noqa: SLF001  the same network

    def with_gradient(points: Tensor) -> tuple[Tensor, Tensor]:
        places = points.detach().requires_grad_()
        values = forward(places)
        (gradient,) = torch.autograd.grad(values.sum(), places, create_graph=True)
        return values, gradient

    undo = ExitStack()
    undo.enter_context(mock.patch.object(sdf, "forward", forward))
    undo.enter_context(mock.patch.object(sdf, "with_gradient", with_gradient))
    # The kernel that searches for samples has the field in it.
    undo.enter_context(mock.patch.object(sdf, "fits_cpu", return_value=False))
    for module in ("compositing_native", "marching"):
        name = f"fieldwatch.recon.render.sdf.{module}.native_available"
        undo.enter_context(mock.patch(name, return_value=(False, "the reference was asked for")))
    return undo


def median_of(step: Callable[[int], int], index: int, repeats: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Return the median time of a step, and its samples."""
    times = []
    samples = []
    step(index)
    for number in range(repeats):
        began = clock()
        samples.append(step(index + 1 + number))
        times.append(clock() - began)
    return statistics.median(times), statistics.median(samples)


def speed(threads: int, repeats: int) -> None:
    """Print the steps per second of both."""
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    usual = default()
    rays = replace(usual.rays, rays=512, sample_budget=None)
    config = replace(usual, steps=WARM * 4, threads=threads, rays=rays)
    scene = prepare_scene(config)
    torch.manual_seed(0)
    model = first_model(config, scene)
    step = step_of(config, scene, model)
    for index in range(WARM * 2):
        step(index)
    ours, samples = median_of(step, WARM * 2, repeats, clock)
    with plain_field(model):
        reference, _ = median_of(step, WARM * 2 + repeats, 5, clock)
    print(
        f"| {threads} | {config.rays.rays} | {samples:,.0f} | {1 / ours:.1f} | {1 / reference:.2f} "
        f"| {reference / ours:.1f}x | {WANTED:g}x |",
        flush=True,
    )


def quality(mesh: Path) -> None:
    """Print the quality of the surface after several numbers of steps."""
    print("\n| steps of --preset cpu | MAE, degrees | Chamfer, % | seconds |")
    print("|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as made:
        data = f"{made}/maps"
        fieldwatch = [sys.executable, "-m", "fieldwatch"]
        subprocess.run(
            [*fieldwatch, "data", "render-normals", str(mesh), "--out", data], check=True, capture_output=True
        )
        for steps in STEPS:
            words = ["train", "normals", "--data", data, "--preset", "cpu", "--steps", str(steps), "--turntable", "0"]
            began = time.monotonic()
            done = subprocess.run(
                [*fieldwatch, *words, "--out", f"{made}/{steps}", "--json"], check=True, capture_output=True, text=True
            )
            seconds = time.monotonic() - began
            metrics = json.loads(done.stdout)["metrics"]
            cells = f"{metrics['Eval/mae']:.2f} | {metrics['Eval/chamfer_percent']:.4f} | {seconds:.0f}"
            print(f"| {steps:,} | {cells} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=30, help="timed steps")
    parser.add_argument("--mesh", type=Path, help="a closed mesh: also print quality against time (20 minutes)")
    options = parser.parse_args()
    print("| threads | rays | samples | steps/s | reference | ratio | goal |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for threads in options.threads:
        speed(threads, options.repeats)
    if options.mesh is not None:
        quality(options.mesh)


if __name__ == "__main__":
    main()
