"""The cost of a splats training step on a CPU: the rasterizer, the parts of the step, and the instruments.

    python benchmarks/splats_cpu.py                  # one thread and two, about four minutes
    python benchmarks/splats_cpu.py --threads 1 --steps 60

The rasterizer and the whole image are compared with the torch reference, in the same process (splats_kernels.py has
more sizes, stage by stage). Training steps are those of the pipeline between two densifications, on the built-in scene
with the given number of points: photo, projection, harmonics, blending, L1 and SSIM, backward, densification
statistics, Adam on the visible rows. Figures are medians per step: processor time of the thread with one thread, wall
time with more. The cost of the instruments (journal, TensorBoard, log, rules, gradient norms and all tags of the
pipeline) is measured by the processor time of the whole process, in pairs of blocks with and without them.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from fieldwatch.recon.pipelines.splats.config import Regularization
from fieldwatch.recon.render import VisibleAdam, image_similarity, image_similarity_reference, native_available
from fieldwatch.recon.render.splats.native import NATIVE
from fieldwatch.recon.render.splats.reference import REFERENCE
from splats_kernels import cells, least, rasterizer, there_and_back
from splats_kernels import scene as random_gaussians
from splats_steps import BLOCK, Laps, Steps, recorded

TARGETS = {(5_000, 128): (75, "23-27"), (20_000, 256): (30, "17")}
"""Steps per second to beat on two cores (kernels.md): 3DGS alone, and with SuGaR's 8192 samples x 16 neighbors."""
PARTS = ("data", "render", "loss", "zero_grad", "backward", "statistics", "optimizer")
KINDS: dict[Regularization, str] = {
    "none": "3DGS",
    "planar": "planar depth and normals",
    "density": "density terms",
    "dn_consistency": "depth-normal and density terms",
    "sdf": "SDF terms",
}


def clock_of(threads: int) -> Callable[[], float]:
    """Return processor time for one thread, or wall time for several."""
    return time.thread_time if threads == 1 else time.perf_counter


def drawing(count: int, size: int, repeats: int) -> None:
    """Print the times of native kernels and reference, forward and backward."""
    at = random_gaussians(count, size)
    stages = {
        "rasterizer alone": tuple(rasterizer(stages, at, n) for stages, n in ((NATIVE, repeats), (REFERENCE, 3))),
        "whole image": tuple(
            there_and_back(lambda: at.whole(backend), at.parameters, n)  # noqa: B023  called at once
            for backend, n in (("native", repeats), ("reference", 3))
        ),
    }
    print(f"\n| {count:,} @ {size}, ms forward / backward | native | torch reference | ratio | goal |")
    print("|---|---:|---:|---:|---:|")
    for name, (ours, theirs) in stages.items():
        ratio = (theirs.sum() / ours.sum()).item()
        print(f"| {name} | {cells(ours)} | {cells(theirs)} | {ratio:.0f}x | >= 20x |", flush=True)


def timed(steps: Steps, count: int, threads: int) -> tuple[float, dict[str, float]]:
    """Return the median milliseconds of a whole step and of its parts."""
    laps = Laps(clock_of(threads))
    for number in range(count + 10):
        if number == 10:
            laps.seconds.clear()
        with laps.span("whole"):
            steps.take(laps.span)
    parts = laps.milliseconds()
    return parts.pop("whole"), parts


def whole_steps(count: int, threads: int) -> None:
    """Print the steps per second, and the time of each part."""
    print("\n| 3DGS step | steps/s | goal (2 cores) | " + " | ".join(f"{part}, ms" for part in PARTS) + " |")
    print("|---|---:|---:|" + "---:|" * len(PARTS))
    for (gaussians, size), (wanted, _) in TARGETS.items():
        whole, parts = timed(Steps(gaussians, size), count, threads)
        row = " | ".join(f"{parts[part]:.2f}" for part in PARTS)
        print(f"| {gaussians:,} @ {size} | {1e3 / whole:.0f} | {wanted} | {row} |", flush=True)


def kinds_of_steps(count: int, threads: int) -> None:
    """Print the cost of the surface terms."""
    print("\n| step with | Gaussians @ pixels | ms | steps/s | goal (2 cores) | relative to 3DGS |")
    print("|---|---|---:|---:|---:|---:|")
    for (gaussians, size), (alone, surface) in TARGETS.items():
        plain = 0.0
        for kind, label in KINDS.items():
            whole, _ = timed(Steps(gaussians, size, regularization=kind), count, threads)
            plain = plain or whole
            wanted = alone if kind == "none" else "-" if kind == "planar" else surface
            row = f"{whole:.1f} | {1e3 / whole:.0f} | {wanted} | {whole / plain:.2f}x"
            print(f"| {label} | {gaussians:,} @ {size} | {row} |", flush=True)


def around(repeats: int) -> None:
    """Print the times of optimizer and loss, compared with torch's."""
    steps = Steps(20_000, 256)
    shown = steps.gradients(lambda _: nullcontext())
    image = shown.drawn.features.detach().requires_grad_()
    photo = shown.view.image
    parameters = list(steps.gaussians.parameters())
    ours = steps.optimizer
    theirs = torch.optim.Adam(parameters, lr=1e-4, fused=True)
    alike = [
        there_and_back(lambda: tuple(compare(image, photo)), (image,), repeats).sum().item()  # noqa: B023  called at once
        for compare in (image_similarity, image_similarity_reference)
    ]
    adam = [least(ours.step, repeats), least(theirs.step, repeats)]
    seen = len(shown.drawn.ids) / len(steps.gaussians)
    half = VisibleAdam(parameters)
    half.visible = shown.drawn.ids[::2]
    rows = [
        ("L1 and SSIM forward and backward", "depthwise torch", *alike),
        (f"Adam, {seen:.0%} of the rows visible", "torch's fused Adam", *adam),
        (f"Adam, {seen / 2:.0%} of the rows visible", "torch's fused Adam", least(half.step, repeats), adam[1]),
    ]
    print("\n| 20,000 @ 256 | fieldwatch, ms | compared with | ms | ratio |\n|---|---:|---|---:|---:|")
    for name, against, own, other in rows:
        print(f"| {name} | {own:.2f} | {against} | {other:.2f} | {other / own:.1f}x |", flush=True)


def instruments(pairs: int) -> None:
    """Print the cost of recording."""
    print("\n| recording | ms/step without | added ms/step | fraction |\n|---|---:|---:|---:|")
    for gaussians, size in TARGETS:
        off = Steps(gaussians, size)
        on = Steps(gaussians, size)
        spent = {"off": list[float](), "on": list[float]()}
        with tempfile.TemporaryDirectory() as folder:
            run = recorded(on, Path(folder) / "run", (pairs + 1) * BLOCK + 1)
            takes = {"off": lambda: off.take(lambda _: nullcontext()), "on": lambda: next(run)}  # noqa: B023  called at once
            for pair in range(pairs + 1):
                for name, take in takes.items():
                    began = time.process_time()
                    for _ in range(BLOCK):
                        take()
                    if pair:  # the first block of each is a warmup
                        spent[name].append(1e3 * (time.process_time() - began) / BLOCK)
            run.close()
        plain = statistics.median(spent["off"])
        more = statistics.median(b - a for a, b in zip(spent["off"], spent["on"], strict=True))
        print(f"| {gaussians:,} @ {size} | {plain:.2f} | {more:+.2f} | {more / plain:+.1%} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=150, help="of each kind")
    parser.add_argument("--pairs", type=int, default=5, help="of blocks with and without instruments")
    options = parser.parse_args()
    there, reason = native_available()
    if not there:
        raise SystemExit(reason)
    for threads in options.threads:
        torch.set_num_threads(threads)
        print(f"\n**{threads} thread{'s' * (threads > 1)}**")
        drawing(20_000, 256, 15)
        whole_steps(options.steps, threads)
        kinds_of_steps(options.steps, threads)
        around(15)
        instruments(options.pairs)


if __name__ == "__main__":
    main()
