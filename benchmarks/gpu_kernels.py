"""Compile every GPU kernel for every architecture, without a GPU; print what it takes, and times on paper.

python benchmarks/gpu_kernels.py                                     # 40 s of processor time
python benchmarks/gpu_kernels.py --write                             # ... into docs/gpu_kernels.md
python benchmarks/gpu_kernels.py --paper                             # only the times on paper
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fieldwatch.recon.render.gpu.compilation import SOURCES, compiled, nvrtc_version

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gpu_kernels.md"
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""From GeForce RTX 20 to RTX 50, with the A100, H100 and B200 between them."""
REGISTERS = 64
"""Registers per thread with which four blocks of 256 threads fit on a multiprocessor."""
SHARED = 16 << 10
"""Bytes of shared memory with which six blocks fit on a multiprocessor of 100 KB."""
MORE = {
    "project_forward": (96, 0, 16),  # a Gaussian's matrices; one or two numbers spill on two architectures
    "project_backward": (152, 0, 0),  # as above, with their gradients: three blocks of 128 threads fit
    "blend_backward": (REGISTERS, 27 << 10, 0),  # a tile's gradients, and eight Gaussians' weights in each pixel
    # A sample's Gaussian and each of its neighbors, with their gradients: four blocks of 128 threads fit.
    "surface_exponents": (128, 0, 0),
    "surface_sums": (128, 0, 0),
    # Blocks of 64 or 32 threads, whose points have all their inputs, and gradients by them, in shared memory.
    "sdf_16": (80, SHARED, 0),
    "sdf_64": (80, 20 << 10, 0),
    "sdf_backward_16": (144, 28 << 10, 0),
    "sdf_backward_64": (144, 42 << 10, 0),
    # A block per view, and a thread per view: double precision, and too few to fill a multiprocessor.
    "place_rays_backward": (80, SHARED, 0),
    "move_poses_backward": (96, SHARED, 0),
}
"""Kernels that take more registers, shared memory or spilled bytes: their limits, and why."""
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class KernelResources:
    """What a kernel takes, as the assembler reports it.

    Attributes:
        file: its source.
        kernel: its name.
        architecture: for which it was compiled.
        registers: registers per thread.
        shared: shared memory per block in bytes.
        stack: local memory per thread in bytes; variables that do not fit into registers, and indexed arrays.
        spills: bytes stored to and loaded from local memory for want of registers.
    """

    file: str
    kernel: str
    architecture: str
    registers: int
    shared: int
    stack: int
    spills: int


def sources() -> list[Path]:
    """Return the sources of all kernels."""
    return sorted(SOURCES.glob("*.cu"))


def all_resources(paths: Iterable[Path], architectures: Iterable[str] = ARCHITECTURES) -> list[KernelResources]:
    """Compile sources for architectures and return what each kernel takes."""
    jobs = [(path, architecture) for path in paths for architecture in architectures]
    # The compiler runs outside of Python's lock.
    with ThreadPoolExecutor(2) as pool:
        return [found for several in pool.map(lambda job: list(_resources(*job)), jobs) for found in several]


def _resources(path: Path, architecture: str) -> Iterator[KernelResources]:
    _, log = compiled(path, architecture, "--ptxas-options=-v")
    for part in re.split(r"(?=Compiling entry function)", log)[1:]:
        entry, spills, used, shared = (pattern.search(part) for pattern in (_ENTRY, _SPILLS, _USED, _SHARED))
        if entry is None or spills is None or used is None:
            raise ValueError(f"the assembler reported something else than expected: {part}")
        stack, stores, loads = map(int, spills.groups())
        shared_bytes = int(shared[1]) if shared else 0
        yield KernelResources(path.name, entry[1], architecture, int(used[1]), shared_bytes, stack, stores + loads)


def limits(kernel: str) -> tuple[int, int, int]:
    """Return the most registers per thread, bytes of shared memory per block, and spilled bytes of a kernel."""
    return MORE.get(kernel, (REGISTERS, SHARED, 0))


def table(found: Iterable[KernelResources]) -> str:
    """Return a table in Markdown: the most that each kernel takes on any architecture, and its limits."""
    rows = ["| kernel | registers (limit) | shared memory, bytes (limit) | spilled bytes (limit) | stack, bytes |"]
    rows.append("|---|---:|---:|---:|---:|")
    by_kernel: dict[tuple[str, str], list[KernelResources]] = {}
    for one in found:
        by_kernel.setdefault((one.file, one.kernel), []).append(one)
    for (file, kernel), several in sorted(by_kernel.items()):
        most = [max(getattr(one, name) for one in several) for name in ("registers", "shared", "spills", "stack")]
        bounded = [f"{value:,} ({limit:,})" for value, limit in zip(most, limits(kernel), strict=False)]
        rows.append(f"| `{file}` `{kernel}` | {' | '.join(bounded)} | {most[-1]:,} |")
    return "\n".join(rows)


@dataclass(frozen=True)
class PaperCard:
    """A GPU by its data sheet.

    Attributes:
        name: product.
        bandwidth: of its memory in GB/s.
        flops: single precision in TFLOP/s.
        double: double precision, as a fraction of that.
    """

    name: str
    bandwidth: float
    flops: float
    double: float


CARDS = (
    PaperCard("RTX 3060", 360, 12.7, 1 / 64),
    PaperCard("RTX 4090", 1008, 82.6, 1 / 64),
    PaperCard("H100", 3350, 66.9, 1 / 2),
)
BANDWIDTH_REACHED = 0.6
"""Share of the bandwidth that a kernel with regular access is assumed to reach."""
FLOPS_REACHED = 0.3
"""Share of the peak that a kernel with branches, exponentials and shared memory is assumed to reach."""
GAUSSIANS = 1_000_000
VISIBLE = 500_000
PAIRS = 2_000_000
PIXELS = 1600 * 1064
CHANNELS = 9
COEFFICIENTS = 15
SEEN = 0.5  # of a tile: pixels between the first and the last one in which a Gaussian of the tile is seen
SAMPLES = GAUSSIANS // 4
NEIGHBORS = 16
FLOATS = 59  # per Gaussian: parameters with harmonics of degree 3
VIEWS = 20
RAYS = VIEWS * 512
CANDIDATES = 502  # strides along a ray: four sections of 1e-3 each, on a chord of 2
STRIDES = 20  # of them, in occupied cells
SECTIONS = 40  # of a ray, close enough to the surface
KEPT = 30  # of them, visible
LEVELS = 8
FEATURES = 2 * LEVELS
CORNERS = 8 * FEATURES  # numbers of the table that a point reads
HIDDEN = 64
TABLE = 2 * 190_000  # numbers of the table: rows of all levels with `--table-bits 15`, and two features
CELLS = 128**3

Costs = dict[str, tuple[float, float, float]]
"""Bytes moved, and operations in single and in double precision, per kernel."""


def of_splats() -> Costs:
    """Return the costs of a planar step of a large scene."""
    n, v, p, x, c = GAUSSIANS, VISIBLE, PAIRS, PIXELS, CHANNELS
    harmonics = 12 * (1 + COEFFICIENTS)
    pair = 8 + 4 + 28 + 4 * c  # position, owner, shape, channels
    row = 4 * (c + 8)
    maps = 4 * (3 + 1 + 1 + 3)  # color, alpha, depth, normals
    values = 3 * x  # of an image
    blocks = x / 256
    return {
        "shapes_forward": (n * 32, 4 * 10 * n, 0),
        "project_forward": (n * (44 + 37 + 4 * c) + v * harmonics, 700 * v, 0),
        "cumsum (torch)": (n * 12, 0, 0),
        # The room for pairs is filled, and the absolute gradients are 0.
        "list_pairs": (n * (12 + 8) + v * 28 + 1.25 * p * 12, 150 * v, 0),
        "sort (torch)": (1.25 * p * 2 * 16 * 8, 0, 0),
        "tile_starts": (8 * 21 * x / 256, 0, 0),
        "blend_forward": (p * pair + x * (maps + 8), p * 256 * (20 + 2 * c), 0),
        "depth_normals_forward": (x * 20, 60 * x, 0),
        "depth_normals_mean": (8 * blocks, 0, 2 * blocks),
        "similarity_forward": (values * 4 * (2 * 2.6 + 3), values * (2.6 * 11 * 12 + 88 + 30), 0),
        "similarity_means": (3 * 4 * values / 256, 3 * values / 256, 0),
        "similarity_backward": (values * 4 * (3 * 2.6 + 3), values * (2.6 * 11 * 6 + 66), 0),
        "depth_normals_backward": (x * 40, 350 * x, 0),
        "blend_backward": (p * (pair + row) + x * (maps + 8), p * 256 * (30 + 4 * c + SEEN * 10 * (c + 8)), 0),
        "gather_gradients": (p * row + n * (row + 12), p * (c + 8), 0),
        "project_backward": (n * (44 + row + 44 + harmonics) + v * harmonics, 1500 * v, 0),
        "flatness_sums": (n * 13, 5 * n, 0),
        "flatness_mean": (8 * n / 128, 0, 2 * n / 128),
        "flatness_backward": (n * 25, 10 * n, 0),
        "shapes_backward": (n * 48, 4 * 3 * n, 0),
        "add_statistics": (n * (8 + 1 + 4 + 24), 10 * n, 0),
        "adam_visible, once for six": (v * FLOATS * 28 + n * FLOATS, v * FLOATS * 12, 0),
    }


def of_surface_samples() -> Costs:
    """Return the costs that `-r sdf` adds to a step of splats."""
    n, x, s = GAUSSIANS, PIXELS, SAMPLES
    met = s * (1 + NEIGHBORS)  # Gaussians that samples read: their own and its neighbors
    drawn = s * (8 + 12)
    compared = 150 * met
    both = compared + 300 * met
    blocks = s / 128
    return {
        "surface_candidates": (n * 46 + x * 8, 150 * n, 0),
        "cumsum, sort (torch)": (n * 9 + 1.25 * s * 2 * 8 * 8, 0, 0),
        "surface_forward": (drawn + met * 48, compared, 0),
        "surface_means": (40 * blocks, 0, 10 * blocks),
        "zeros, two (torch)": (n * (11 * 8 + 4 * 4) + x * 12, 0, 0),
        "surface_exponents": (drawn + met * (48 + 16), both, 0),
        "surface_sums": (drawn + met * (48 + 16 + 11 * 16), both, 0),
        "surface_gradients": (n * (11 * 8 + 4 * 4 + 16 + 44) + x * 20, 60 * n, 0),
    }


def of_field(features: int, *, points: float, sloped: bool) -> tuple[float, float, float]:
    """Return the costs of the values of a field, and of its gradients."""
    corners, inputs = 8 * features, 3 + features
    passes = 2 if sloped else 1  # features are interpolated again for the gradient
    moved = points * (12 + 4 * corners * passes + (16 if sloped else 4))
    return moved, points * passes * (35 * features + 2 * inputs * HIDDEN + 20 * HIDDEN), 0


def of_field_backward(features: int, *, points: float, to_points: bool) -> tuple[float, float, float]:
    """Return the costs of the field's gradients, without the sums of table and network."""
    corners, inputs = 8 * features, 3 + features
    passes = 2 if to_points else 1
    # 32-bit maxima of the rows, two features each, are read and written.
    moved = points * (12 + 16 + 4 * corners * passes + 8 * corners / 2 + 8 * features + (12 if to_points else 0))
    return moved, points * (35 * features * passes + 12 * inputs * HIDDEN + 40 * HIDDEN + 15 * corners), 0


def of_normals() -> Costs:
    """Return the costs of a graph of `--preset gpu`: twenty views, the finest steps of the schedule, known poses."""
    r, c, f = RAYS, RAYS * CANDIDATES, FEATURES
    strides, sections, kept = RAYS * STRIDES, RAYS * SECTIONS, RAYS * KEPT
    ends, kept_ends = sections + r, kept + r
    room = (VIEWS // 4) * 8 << 16  # sections that there is room for
    shares = 512 * (HIDDEN * (3 + f + 2) + 1)
    return {
        "draw_rays": (r * (16 + 60 + 70), 30 * r, 0),
        "place_rays": (r * (32 + 64 + 44), 60 * r, 0),
        "sharpness_forward": (8, 20, 0),
        "sdf_weights": (4 * 2 * HIDDEN * (f + 4), 3 * HIDDEN * (f + 4), 0),
        "march_flags": (c * (4 + 1) + r * 36, 25 * c, 0),
        "march_strides": (c * 8 + strides * 20, 15 * strides, 0),
        "sdf_16, at strides": of_field(f, points=strides, sloped=False),
        "march_near": (room / 4 * 8 + strides * 24, 5 * strides, 0),
        "march_rays": (r * 40, 0, 0),
        "cumsum, four (torch)": (c * 8 + room / 4 * 16 + r * 16 + room * 16, 0, 0),
        "march_sections": (sections * (24 + 16) + ends * 28 + room * 4, 20 * sections, 0),
        "sdf_16, at ends": of_field(f, points=ends, sloped=False),
        "section_opacities, twice": ((sections + kept) * (12 + 16), 0, 90 * (sections + kept)),
        "march_visible": (sections * (20 + 8) + room * 8, 0, 2 * sections),
        "march_kept": (room * 8 + kept * 24 + kept_ends * 28, 6 * kept_ends, 0),
        "sdf_16, with gradients": of_field(f, points=kept_ends, sloped=True),
        "blend_sections": (kept * (4 + 16 + 32 + 4) + r * 28, 0, 16 * kept),
        "eikonal_sums": (kept_ends * 12, 10 * kept_ends, 2 * kept_ends),
        "ray_terms": (r * 34, 40 * r, 6 * r),
        "view_losses": (r * 34, 40 * r, 6 * r),
        "ray_terms_backward": (r * 50 + kept_ends * 12 + room * 12, 50 * r + 12 * kept_ends, 0),
        "blend_backward": (kept * (4 + 16 + 32 + 4 + 8) + r * 28, 0, 20 * kept),
        "ends_backward": (kept_ends * 80 + room * 16, 10 * kept_ends, 190 * kept_ends),
        "sdf_backward_16": of_field_backward(f, points=kept_ends, to_points=False),
        "zeros (torch)": (TABLE * (8 + 2), 0, 0),
        "sdf_table_sums": (kept_ends * (24 + 8 * f + CORNERS / 2 * 4 + CORNERS * 16), kept_ends * CORNERS * 12, 0),
        "sdf_gradients": (TABLE * (8 + 2 + 4) + shares * 4, 4 * TABLE + shares, 0),
        "sdf_weights_backward": (4 * 3 * HIDDEN * (f + 4), 5 * HIDDEN * (f + 4), 0),
        "adam_visible": (TABLE * 28, 12 * TABLE, 0),
        "march_numbers": (44, 10, 0),
    }


def of_normals_at_times() -> Costs:
    """Return the costs of kernels of normals that only some steps or settings need."""
    r, kept_ends = RAYS, RAYS * (KEPT + 1)
    updated = CELLS / 8
    return {
        "grid_flags": (CELLS * 5, 10 * CELLS, 0),
        "grid_centers": (CELLS * 4 + updated * 16, 10 * updated, 0),
        "sdf_16, at cells": of_field(FEATURES, points=updated, sloped=False),
        "grid_values": (updated * 16, 20 * updated, 0),
        "move_poses": (VIEWS * 152, 0, 250 * VIEWS),
        "move_poses_backward": (VIEWS * 176, 0, 600 * VIEWS),
        "march_points_backward": (kept_ends * 16 + r * 28, 0, 12 * kept_ends),
        "sharpness_backward": (16, 20, 0),
        "place_rays_backward": (VIEWS * r * 8 + r * 60, 0, 36 * r),
        "sdf_64": of_field(64, points=kept_ends, sloped=True),
        "sdf_backward_64": of_field_backward(64, points=kept_ends, to_points=True),
    }


PAPER: dict[str, tuple[tuple[str, ...], Callable[[], Costs]]] = {
    f"Splats, `-r planar`: {GAUSSIANS:,} Gaussians, {VISIBLE:,} visible, {PAIRS:,} pairs of Gaussian and tile, "
    f"{PIXELS:,} pixels": (("splats_project", "splats_blend", "similarity", "depth_normals", "adam"), of_splats),
    f"In addition with `-r sdf`: {SAMPLES:,} samples with {NEIGHBORS} neighbors": (
        ("surface_samples",),
        of_surface_samples,
    ),
    f"Normals, `--preset gpu`: {RAYS:,} rays of {VIEWS} views, {SECTIONS} sections of a ray, {KEPT} visible": (
        (),
        of_normals,
    ),
    "Normals, not in every step: the update of the grid, learned poses, and fields with 64 features": (
        ("sdf_march", "sdf_field", "sdf_rays", "sdf_compositing", "sdf_losses", "sdf_grid"),
        of_normals_at_times,
    ),
}
"""Tables on paper: title, the sources whose kernels stand in it or in one before it, and its costs."""


def roofline(costs: Costs) -> str:
    """Return a table in Markdown: the longest one of moving the bytes and computing, per kernel and card, in ms."""
    names = " | ".join(f"{card.name}, ms" for card in CARDS)
    rows = [f"| kernel | MB | GFLOP | of it double | {names} |", "|---|---:|---:|---:|" + "---:|" * len(CARDS)]
    totals = [0.0] * len(CARDS)
    for kernel, (moved, single, double) in costs.items():
        times = [
            1e3
            * max(
                moved / (BANDWIDTH_REACHED * card.bandwidth * 1e9),
                (single + double / card.double) / (FLOPS_REACHED * card.flops * 1e12),
            )
            for card in CARDS
        ]
        totals = [total + time for total, time in zip(totals, times, strict=True)]
        columns = " | ".join(f"{time:.2f}" for time in times)
        rows.append(
            f"| `{kernel}` | {moved / 1e6:.1f} | {(single + double) / 1e9:.2f} | {double / 1e9:.3f} | {columns} |"
        )
    return "\n".join([*rows, "| all | | | | " + " | ".join(f"{total:.2f}" for total in totals) + " |"])


def on_paper() -> str:
    """Return all tables on paper, with their titles."""
    return "\n\n".join(f"{title}:\n\n{roofline(costs())}" for title, (_, costs) in PAPER.items())


def compiler() -> str:
    """Return the name and version of the compiler."""
    return "Compiler: NVRTC {}.{}".format(*nvrtc_version())


def page(resources: str) -> str:
    """Return docs/gpu_kernels.md."""
    return f"""# GPU kernels in numbers

`python benchmarks/gpu_kernels.py --write` makes this page, without a GPU. A test compares it with the kernels.

## What a kernel takes

The most on any of {len(ARCHITECTURES)} architectures ({", ".join(ARCHITECTURES)}), as the compiler reports it,
and in parentheses the limit that a test holds it to. {compiler()}.

{resources}

## Expected times

**Computed, not measured: no kernel has run on a GPU.** Bytes and operations are counted in the source and divided by
data sheets. A kernel is assumed to reach {BANDWIDTH_REACHED:.0%} of the bandwidth or {FLOPS_REACHED:.0%} of the peak,
and to find nothing in a cache, so these are the longest times that it should take. GeForce cards compute in double
precision at a 64th of their speed, an H100 at half. Launches of a step take the host 0.3 to 0.8 ms more where they are
not hidden behind the kernels. A kernel with a single block (`ray_terms`, `depth_normals_mean`, `surface_means`) takes
some microseconds whatever it moves.

{on_paper()}
"""


def main() -> int:
    """Print the tables, or write the page."""
    parser = argparse.ArgumentParser(description="Compile every GPU kernel, and print what it takes.")
    parser.add_argument("--architecture", nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--paper", action="store_true", help="only the times on paper; compile nothing")
    parser.add_argument("--write", action="store_true", help="write docs/gpu_kernels.md, for all architectures")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(page(table(all_resources(sources()))), "utf-8")
        print(PAGE)
        return 0
    if not options.paper:
        print(f"{table(all_resources(sources(), options.architecture))}\n")
    print(f"On paper, not measured.\n\n{on_paper()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
