"""Compile every GPU kernel for every architecture, without a GPU, and print registers, shared memory and spills.

python benchmarks/gpu_kernels.py
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fieldwatch.recon.render.gpu.compilation import SOURCES, compiled

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""From GeForce RTX 20 to RTX 50, with the A100, H100 and B200 between them."""
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


def table(found: Iterable[KernelResources]) -> str:
    """Return a table in Markdown: the most that each kernel takes on any architecture."""
    rows = ["| kernel | registers | shared memory | stack | spills |", "|---|---:|---:|---:|---:|"]
    by_kernel: dict[tuple[str, str], list[KernelResources]] = {}
    for one in found:
        by_kernel.setdefault((one.file, one.kernel), []).append(one)
    for (file, kernel), several in by_kernel.items():
        most = [max(getattr(one, name) for one in several) for name in ("registers", "shared", "stack", "spills")]
        rows.append(f"| `{file}` `{kernel}` | " + " | ".join(map(str, most)) + " |")
    return "\n".join(rows)


@dataclass(frozen=True)
class PaperCard:
    """A GPU by its data sheet.

    Attributes:
        name: product.
        bandwidth: of its memory in GB/s.
        flops: single precision in TFLOP/s.
    """

    name: str
    bandwidth: float
    flops: float


CARDS = (PaperCard("RTX 3060", 360, 12.7), PaperCard("RTX 4090", 1008, 82.6), PaperCard("H100", 3350, 66.9))
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


def paper_costs() -> dict[str, tuple[float, float]]:
    """Return bytes moved and floating-point operations per kernel, for a planar step of a large scene."""
    n, v, p, x, c = GAUSSIANS, VISIBLE, PAIRS, PIXELS, CHANNELS
    harmonics = 12 * (1 + COEFFICIENTS)
    pair = 8 + 4 + 28 + 4 * c  # position, owner, shape, channels
    row = 4 * (c + 8)
    maps = 4 * (3 + 1 + 1 + 3)  # color, alpha, depth, normals
    values = 3 * x  # of an image
    return {
        "project_forward": (n * (44 + 37 + 4 * c) + v * harmonics, 700 * v),
        "cumsum (torch)": (n * 12, 0),
        "list_pairs": (n * 12 + v * 28 + p * 12, 150 * v),
        "sort (torch)": (1.25 * p * 2 * 16 * 8, 0),
        "tile_starts": (8 * 21 * x / 256, 0),
        "blend_forward": (p * pair + x * (maps + 8), p * 256 * (20 + 2 * c)),
        "depth_normals_forward": (x * 20, 60 * x),
        "similarity_forward": (values * 4 * (2 * 2.6 + 3), values * (2.6 * 11 * 12 + 88 + 30)),
        "similarity_backward": (values * 4 * (3 * 2.6 + 3), values * (2.6 * 11 * 6 + 66)),
        "depth_normals_backward": (x * 40, 350 * x),
        "blend_backward": (p * (pair + row) + x * (maps + 8), p * 256 * (30 + 4 * c + SEEN * 10 * (c + 8))),
        "gather_gradients": (p * row + n * (row + 12), p * (c + 8)),
        "project_backward": (n * (44 + row + 44 + harmonics) + v * harmonics, 1500 * v),
        "adam_visible, six": (v * FLOATS * 28 + n * FLOATS, v * FLOATS * 12),
    }


def paper_costs_of_samples() -> dict[str, tuple[float, float]]:
    """Return bytes moved and floating-point operations of the kernels of `-r sdf`, if nothing is found in a cache."""
    n, x, s = GAUSSIANS, PIXELS, SAMPLES
    met = s * (1 + NEIGHBORS)  # Gaussians that samples read: their own and its neighbors
    drawn = s * (8 + 12)
    compared = 150 * met
    both = compared + 300 * met
    return {
        "surface_candidates": (n * 46 + x * 8, 150 * n),
        "cumsum, sort (torch)": (n * 9 + 1.25 * s * 2 * 8 * 8, 0),
        "surface_forward": (drawn + met * 48, compared),
        "zeros, two (torch)": (n * (11 * 8 + 4 * 4) + x * 12, 0),
        "surface_exponents": (drawn + met * (48 + 16), both),
        "surface_sums": (drawn + met * (48 + 16 + 11 * 16), both),
        "surface_gradients": (n * (11 * 8 + 4 * 4 + 16 + 44) + x * 20, 60 * n),
    }


def roofline(costs: dict[str, tuple[float, float]]) -> str:
    """Return a table in Markdown: the longer one of moving the bytes and computing, per kernel and card, in ms."""
    names = " | ".join(f"{card.name}, ms" for card in CARDS)
    rows = [f"| kernel | MB | GFLOP | {names} |", "|---|---:|---:|" + "---:|" * len(CARDS)]
    totals = [0.0] * len(CARDS)
    for kernel, (moved, computed) in costs.items():
        times = [
            1e3
            * max(moved / (BANDWIDTH_REACHED * card.bandwidth * 1e9), computed / (FLOPS_REACHED * card.flops * 1e12))
            for card in CARDS
        ]
        totals = [total + time for total, time in zip(totals, times, strict=True)]
        columns = " | ".join(f"{time:.2f}" for time in times)
        rows.append(f"| `{kernel}` | {moved / 1e6:.0f} | {computed / 1e9:.1f} | {columns} |")
    return "\n".join([*rows, "| all | | | " + " | ".join(f"{total:.1f}" for total in totals) + " |"])


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Compile every GPU kernel, and print what it takes.")
    parser.add_argument("--architecture", nargs="+", default=list(ARCHITECTURES))
    print(table(all_resources(sources(), parser.parse_args().architecture)))
    print(
        f"\nOn paper, not measured: {GAUSSIANS:,} Gaussians, {VISIBLE:,} visible, {PAIRS:,} pairs, {PIXELS:,} pixels\n"
    )
    print(roofline(paper_costs()))
    print(f"\nIn addition with -r sdf: {SAMPLES:,} samples with {NEIGHBORS} neighbors\n")
    print(roofline(paper_costs_of_samples()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
