"""Compiles the C sources beside this file, once per content and set of flags, into the user's cache."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCES = Path(__file__).parent
FLAGS = [
    *("-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    *("-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden", "-Wno-psabi"),
]
"""Not `-ffast-math`: it takes NaN for impossible, and a NaN must not pass a bounds check; linked, it flushes denormals
to zero in the whole process. The kernels name their vectors themselves, so it would not make them faster."""
_COMPILERS = ("cc", "gcc", "clang")
_PATIENCE = 300  # seconds for a compiler that takes two


class NativeUnavailable(RuntimeError):  # noqa: N818  says what is, as the pipeline reports it
    """The native kernels could not be built or loaded; the message says why and what to install."""


def flags() -> list[str]:
    """Compiler flags for this machine: AVX2 and FMA where its processor has them."""
    has_avx = platform.machine() in {"x86_64", "AMD64"} and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return [*FLAGS, "-march=x86-64-v3"] if has_avx else FLAGS


def cache_folder() -> Path:
    """Folder of the built libraries, `$XDG_CACHE_HOME/fieldwatch/native` or `~/.cache/fieldwatch/native`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fieldwatch" / "native"


def built() -> Path:
    """Path of the shared library; compiles it when no library of the same sources and flags is in the cache.

    Two processes may build at once: each writes a file of its own and renames it, so that a reader sees a whole one.

    Raises:
        NativeUnavailable: no compiler, the compiler failed, or the cache cannot be written.
    """
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(" ".join([platform.machine(), sys.platform, *flags()]).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    library = cache_folder() / f"kernels-{digest.hexdigest()[:20]}.so"
    if not library.exists():
        _compile([str(source) for source in sources if source.suffix == ".c"], library)
    return library


def _compiler() -> list[str]:
    requested = os.environ.get("CC")
    candidates = [shlex.split(requested)] if requested else [[name] for name in _COMPILERS]
    available = [words for words in candidates if words and shutil.which(words[0])]
    if not available:
        tried = requested or ", ".join(_COMPILERS)
        raise NativeUnavailable(f"no C compiler found (tried {tried}): install gcc or clang, or name one in $CC")
    return available[0]


def _compile(sources: list[str], library: Path) -> None:
    command = _compiler()
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent, prefix="building-") as folder:
            draft = Path(folder) / library.name
            _run([*command, *flags(), *sources, "-o", str(draft), "-lm"])
            # Within one folder a rename is atomic: a concurrent process never loads half a library.
            draft.replace(library)
    except OSError as error:
        raise NativeUnavailable(
            f"cannot build the native kernels in {library.parent}: {error}; set XDG_CACHE_HOME to a writable folder"
        ) from error


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)  # noqa: S603  the system's compiler on our own sources
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailable(f"{command[0]} did not finish the native kernels in {_PATIENCE} seconds") from error
    if result.returncode != 0:
        output = "\n".join(result.stderr.strip().splitlines()[:5]) or "nothing"
        raise NativeUnavailable(
            f"{command[0]} could not build the native kernels (exit status {result.returncode}; it must know "
            f"OpenMP); it said: {output}"
        )
