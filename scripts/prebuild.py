"""Compile the native kernels for the machines that a wheel serves, into the package: for users without a C compiler.

    make wheel                                             # this, and the wheel
    .venv/bin/python scripts/prebuild.py --only linux-x86_64-v3

The compiler is zig's clang (extra `wheel`), which compiles for every system on any of them. It has no OpenMP, so the
kernels use one thread. `x86-64-v4` is left out: the kernels work on eight numbers at once, which AVX2 holds. Windows is
left out, because the toolkit locks files as POSIX systems do.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fieldwatch.recon.render.native.build import CARRIED, FLAGS, SOURCES, carried_name, kind_of_machine


@dataclass(frozen=True, kw_only=True)
class Target:
    """A kind of machine.

    Attributes:
        system: as `sys.platform` names it.
        machine: as `platform.machine` names it.
        wide: whether its processor has AVX2 and FMA.
        triple: the machine in the compiler's words; with the oldest C library that is served.
        processor: the processor in the compiler's words.
    """

    system: str
    machine: str
    triple: str
    processor: str
    wide: bool = False

    @property
    def name(self) -> str:
        """Name for `--only`."""
        return kind_of_machine(self.system, self.machine, wide=self.wide)


TARGETS = (
    Target(system="linux", machine="x86_64", triple="x86_64-linux-gnu.2.28", processor="x86_64_v3", wide=True),
    Target(system="linux", machine="x86_64", triple="x86_64-linux-gnu.2.28", processor="x86_64_v2"),
    Target(system="linux", machine="aarch64", triple="aarch64-linux-gnu.2.28", processor="baseline"),
    Target(system="darwin", machine="arm64", triple="aarch64-macos", processor="apple_m1"),
)
"""Machines for which torch has wheels: for Linux with glibc 2.28 (manylinux_2_28) or newer, and no Macs with Intel."""


def compile_for(target: Target, folder: Path) -> Path:
    """Compile the kernels for a kind of machine, and return the library."""
    library = folder / carried_name(target.system, target.machine, wide=target.wide)
    command = [
        *(sys.executable, "-m", "ziglang", "cc", "-target", target.triple, f"-mcpu={target.processor}"),
        # zig's clang stops a program at what C leaves undefined; and its libraries carry symbols for debugging.
        *(*FLAGS, "-fno-sanitize=undefined", "-Wl,-s"),
        *map(str, sorted(SOURCES.glob("*.c"))),
        *("-o", str(library), "-lm"),
    ]
    subprocess.run(command, check=True)  # noqa: S603  our own sources
    return library


def main() -> None:
    """Compile for all targets, or for some."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=CARRIED, metavar="FOLDER", help="default: the package")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    # Libraries of earlier sources would only make the wheel larger.
    for stale in chosen.out.glob("one-thread-*.so"):
        stale.unlink()
    for target in TARGETS:
        if target.name in chosen.only:
            library = compile_for(target, chosen.out)
            sys.stdout.write(f"{target.name}: {library} ({library.stat().st_size / 1024:.0f} KiB)\n")


if __name__ == "__main__":
    main()
