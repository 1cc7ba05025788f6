"""The cost of rendering splats: the native kernels compared with plain torch, stage by stage.

    python benchmarks/splats_kernels.py                      # one and two threads, with the reference
    python benchmarks/splats_kernels.py --threads 1 --no-reference
    python benchmarks/splats_kernels.py --source ../old/src  # the rasterizer alone, compared with another checkout's
    python benchmarks/splats_kernels.py --source 933e0269    # ... or with that of a commit

The scene has random Gaussians in a cube in front of the camera, each a few pixels wide, and 7 channels (color, depth,
normal). Every figure is the minimum of several runs: processor time of the calling thread with one thread, wall time
with more. `whole` is `splat` with spherical harmonics of degree 3, depth and normals, from the parameters to the
gradients.

With `--source`, the kernels of both checkouts run in turn in one process, on one thread, so that both meet the same
load of the machine. Their outputs are compared bit for bit.
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from checkouts import source_of
from fieldwatch.recon.render import (
    View,
    VisibleAdam,
    image_similarity,
    image_similarity_reference,
    native_available,
    rasterize,
)
from fieldwatch.recon.render.native import build, kernels
from fieldwatch.recon.render.splats.native import NATIVE
from fieldwatch.recon.render.splats.stages import (
    GaussianTensors,
    ProjectedGaussians,
    RasterBackend,
    RasterOptions,
    SphericalHarmonics,
)

SIZES = ((5_000, 128), (5_000, 512), (20_000, 256), (50_000, 256), (50_000, 512))
COMPARED = ((5_000, 128), (20_000, 256), (100_000, 512))
"""Sizes that are compared with another checkout."""
EARLIER = {(5_000, 128): "0.45 / 1.3", (5_000, 512): "3.8 / 8.9", (50_000, 256): "3.3 / 14", (50_000, 512): "7.1 / 23"}
"""Forward / backward times of the prototype, rasterizer alone, 7 channels, two cores (ms)."""
LONG = 1.0  # seconds after which one run suffices


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Gaussians as a trainer stores them, and a camera."""

    gaussians: GaussianTensors
    harmonics: SphericalHarmonics
    view: View

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Return everything that gets a gradient."""
        return (*self.gaussians, self.harmonics.dc, self.harmonics.rest)

    def whole(self, backend: str) -> tuple[Tensor, ...]:
        """Render colors, alpha, depth and normals."""
        drawn = rasterize(
            *self.gaussians,
            self.view,
            spherical_harmonics=self.harmonics[:2],
            depth="center",
            normals=True,
            backend=backend,
        )
        return drawn.features, drawn.alpha, drawn.depth, drawn.normals


def scene(count: int, size: int) -> Scene:
    """Return Gaussians in a cube of 2 m, 3 m away; their size decreases with their number."""
    torch.manual_seed(0)
    means = (torch.rand(count, 3) - 0.5) * 2 + torch.tensor([0.0, 0.0, 3.0])
    scales = torch.exp(torch.randn(count, 3) * 0.3) * 1.2 / count**0.5
    parts = (means, torch.randn(count, 4), scales, torch.sigmoid(torch.randn(count) * 2))
    coefficients = (torch.randn(count, 1, 3) * 0.5, torch.randn(count, 15, 3) * 0.1)
    settings = {"fx": float(size), "fy": float(size), "cx": size / 2, "cy": size / 2}
    return Scene(
        gaussians=GaussianTensors(*(part.requires_grad_() for part in parts)),
        harmonics=SphericalHarmonics(*(part.requires_grad_() for part in coefficients), 3),
        view=View(camera_from_world=torch.eye(4), width=size, height=size, **settings),
    )


def least(run: Callable[[], object], repeats: int) -> float:
    """Return the milliseconds of the fastest run."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: list[float] = []
    run()
    while len(times) < repeats and (not times or times[0] < LONG):
        began = clock()
        run()
        times.append(clock() - began)
    return 1e3 * min(times)


def there_and_back(forward: Callable[[], tuple[Tensor, ...]], inputs: tuple[Tensor, ...], repeats: int) -> Tensor:
    """Return the milliseconds of forward and backward."""
    outputs = forward()
    pulls = [torch.randn_like(part) for part in outputs]
    return torch.tensor(
        [
            least(forward, repeats),
            least(lambda: torch.autograd.grad(outputs, inputs, pulls, retain_graph=True), repeats),
        ]
    )


def rasterizer(stages: RasterBackend, at: Scene, repeats: int) -> Tensor:
    """Return the milliseconds of tiles and blending alone."""
    with torch.no_grad():
        seen = stages.project(at.gaussians, at.view, RasterOptions())
    leaves = {name: getattr(seen, name).requires_grad_() for name in ("means2d", "whitening", "alphas")}
    packed = torch.randn(len(seen.ids), 7, requires_grad=True)
    projected: ProjectedGaussians = seen._replace(**leaves)
    return there_and_back(
        lambda: stages.blend(packed, projected, at.view, RasterOptions())[:2], (packed, *leaves.values()), repeats
    )


def other_stages(at: Scene, repeats: int) -> tuple[Tensor, Tensor]:
    """Return the milliseconds of the projection and of the harmonics."""
    seen = NATIVE.project(at.gaussians, at.view, RasterOptions(normals=True))
    ids = seen.ids
    means = at.gaussians.means
    projection = there_and_back(
        lambda: NATIVE.project(at.gaussians, at.view, RasterOptions(normals=True))[1:5], tuple(at.gaussians), repeats
    )
    harmonics = there_and_back(
        lambda: (NATIVE.colors(at.harmonics, means, ids, at.view),), (means, *at.harmonics[:2]), repeats
    )
    return projection, harmonics


def cells(pair: Tensor) -> str:
    """Format forward / backward."""
    return " / ".join(f"{value:.2f}" if value < 100 else f"{value:.0f}" for value in pair.tolist())


def table(threads: int, repeats: int, *, reference: bool) -> None:
    """Print one row per number of Gaussians and image size."""
    torch.set_num_threads(threads)
    print(f"\n{threads} thread{'s' * (threads > 1)}, ms forward / backward\n")
    print("| Gaussians @ pixels | rasterizer | prototype | projection | SH | total | reference, total | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for count, size in SIZES:
        at = scene(count, size)
        whole = there_and_back(lambda: at.whole("native"), at.parameters, repeats)  # noqa: B023  called at once
        alone = rasterizer(NATIVE, at, repeats)
        projection, harmonics = other_stages(at, repeats)
        shown = "-"
        ratio = "-"
        if reference:
            slow = there_and_back(lambda: at.whole("reference"), at.parameters, 3)  # noqa: B023  called at once
            shown = cells(slow)
            ratio = f"{(slow.sum() / whole.sum()).item():.0f}x"
        row = [cells(alone), EARLIER.get((count, size), "-"), cells(projection), cells(harmonics), cells(whole)]
        print(f"| {count:,} @ {size} | " + " | ".join([*row, shown, ratio]) + " |", flush=True)


def around(threads: int, repeats: int) -> None:
    """Print the times of loss and optimizer, which a step needs besides rendering."""
    torch.set_num_threads(threads)
    print("\n| L1 and SSIM, 256 x 256 x 3 | forward | backward |\n|---|---|---|")
    image = torch.rand(256, 256, 3, requires_grad=True)
    photo = torch.rand(256, 256, 3)
    for name, compare in (("native", image_similarity), ("torch, depthwise", image_similarity_reference)):
        pair = there_and_back(lambda: tuple(compare(image, photo)), (image,), repeats)  # noqa: B023  called at once
        print(f"| {name} | " + cells(pair).replace(" / ", " | ") + " |")
    print("\n| Adam, 50,000 Gaussians of 59 parameters | ms |\n|---|---|")
    at = scene(50_000, 256)
    for part in at.parameters:
        part.grad = torch.randn_like(part)
    ours = VisibleAdam(at.parameters)
    for name, ids in (("all visible", None), ("half visible", torch.arange(0, 50_000, 2))):
        ours.visible = ids
        print(f"| fieldwatch, {name} | {least(ours.step, repeats):.2f} |")
    print(f"| torch, fused | {least(torch.optim.Adam(at.parameters, fused=True).step, repeats):.2f} |")


BLENDING = ("fw_rank", "fw_fill", "fw_blend", "fw_blend_backward")
"""Kernels that are compared. A checkout may lack others."""


def library_of(source: Path) -> Callable[[], ctypes.CDLL]:
    """Return a function that returns the kernels of a src folder, whose arguments have to be those of this one."""
    declared = {name: kernels._SIGNATURES[name] for name in BLENDING}  # noqa: SLF001  those of this checkout
    with (
        mock.patch.object(build, "SOURCES", source / "fieldwatch/recon/render/native"),
        mock.patch.object(kernels, "_SIGNATURES", declared),
    ):
        library = kernels._library.__wrapped__()  # noqa: SLF001  a second one, with the declarations of the first
    return lambda: library


def compared(source: Path, rounds: int) -> None:
    """Print the processor time of the rasterizer with the kernels of another checkout, and the ratios."""
    torch.set_num_threads(1)
    libraries = {"other": library_of(source), "this": kernels._library}  # noqa: SLF001  replaced below
    print("| Gaussians @ pixels | other checkout, ms forward / backward | this one | ratio of the sums | bits |")
    print("|---|---|---|---:|---|")
    for count, size in COMPARED:
        at = scene(count, size)
        with torch.no_grad():
            seen = NATIVE.project(at.gaussians, at.view, RasterOptions())
        leaves = {name: getattr(seen, name).requires_grad_() for name in ("means2d", "whitening", "alphas")}
        packed = torch.randn(len(seen.ids), 7, requires_grad=True)
        projected: ProjectedGaussians = seen._replace(**leaves)
        pulls = (torch.randn(size, size, 7), torch.randn(size, size))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in libraries}
        outputs: dict[str, tuple[Tensor, ...]] = {}
        for number in range(rounds):
            for name in sorted(libraries, reverse=bool(number % 2)):
                with mock.patch.object(kernels, "_library", libraries[name]):
                    began = time.thread_time()
                    drawn = NATIVE.blend(packed, projected, at.view, RasterOptions())[:2]
                    between = time.thread_time()
                    gradients = torch.autograd.grad(drawn, (packed, *leaves.values()), pulls)
                    times[name].append((between - began, time.thread_time() - between))
                outputs[name] = (*drawn, *gradients)
        ratio = statistics.median(sum(b) / sum(a) for a, b in zip(times["other"], times["this"], strict=True))
        shown = [cells(1e3 * torch.tensor(times[name]).min(0).values) for name in libraries]
        equal = all(torch.equal(a, b) for a, b in zip(outputs["other"], outputs["this"], strict=True))
        bits = "equal" if equal else "different"
        print(f"| {count:,} @ {size} | {shown[0]} | {shown[1]} | {ratio:.2f} | {bits} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--source", help="src folder of another checkout, or a commit: compare the rasterizer with it")
    options = parser.parse_args()
    there, reason = native_available()
    if not there:
        raise SystemExit(reason)
    if options.source is not None:
        with source_of(options.source) as other:
            compared(other, 3 * options.repeats)
        return
    for threads in options.threads:
        table(threads, options.repeats, reference=not options.no_reference)
        around(threads, options.repeats)


if __name__ == "__main__":
    main()
