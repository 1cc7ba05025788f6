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


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compile every GPU kernel, and print what it takes.")
    parser.add_argument("--architecture", nargs="+", default=list(ARCHITECTURES))
    print(table(all_resources(sources(), parser.parse_args().architecture)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
