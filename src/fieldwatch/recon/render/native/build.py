"""Compilation of the C sources in this folder into the user's cache, once per content and set of flags.

A wheel carries libraries that were compiled before, for machines on which this fails.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

SOURCES = Path(__file__).parent
CARRIED = SOURCES / "libraries"
"""Folder of the libraries that a wheel carries: `scripts/prebuild.py` fills it; a clone has none."""
FLAGS = [
    *("-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-Wno-psabi"),
]
"""Compiler flags, without `-ffast-math`.

That flag assumes that NaN never occurs, but a NaN must fail a bounds check. At link time it would flush denormals to
zero in the whole process. The kernels are vectorized explicitly, so it would not make them faster.

`-ffp-contract=fast` is the default of gcc. clang given it would ignore the pragma that keeps multiplications apart from
additions where values must be rounded as torch rounds them."""
_COMPILERS = ("cc", "gcc", "clang")
_ONE_THREAD = "one-thread"
_PATIENCE = 300  # time limit of the compiler in seconds; it usually takes two


class NativeUnavailable(RuntimeError):  # noqa: N818  named after the state that the pipelines report
    """The native kernels could not be built or loaded; the message has the cause and what to install."""


class CompilerRefused(NativeUnavailable):
    """The compiler could not build the native kernels with these flags."""


def flags(*, parallel: bool = True) -> list[str]:
    """Return the compiler flags for this machine, with AVX2 and FMA if the processor supports them.

    Args:
        parallel: use OpenMP. The kernels compute the same without it, in one thread.
    """
    return [*FLAGS, *(["-fopenmp"] if parallel else []), *(["-march=x86-64-v3"] if has_avx2() else [])]


def has_avx2() -> bool:
    """Return whether the processor has AVX2 and FMA (x86-64-v3)."""
    # torch knows what the processor supports; parsing /proc/cpuinfo would not work on every system.
    return platform.machine() in {"x86_64", "AMD64"} and torch.backends.cpu.get_cpu_capability().startswith("AVX")


def cache_folder() -> Path:
    """Return the folder of the built libraries: `fieldwatch/native` in `$XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fieldwatch" / "native"


def built() -> Path:
    """Return the path of the shared library, and compile it unless the cache has one of the same sources and flags.

    A compiler without OpenMP, such as that of macOS, builds kernels that use one thread, see `is_parallel`. If nothing
    can be compiled, the library that the wheel carries is used, which has one thread, too.

    Several processes may build at the same time: each writes to a separate file and renames it, so no process loads an
    incomplete library.

    Raises:
        NativeUnavailable: there is no compiler, the compiler failed, or the cache is not writable; and this
            installation carries no library for this machine.
    """
    digest = _digest()
    several = cache_folder() / f"kernels-{digest}.so"
    one = cache_folder() / f"{_ONE_THREAD}-{digest}.so"
    for kept in (several, one):
        if kept.exists():
            return kept
    try:
        return _compiled(several, one)
    except NativeUnavailable:
        carried = CARRIED / carried_name(sys.platform, platform.machine(), wide=has_avx2())
        if not carried.exists():
            raise
        return carried


def carried_name(system: str, machine: str, *, wide: bool) -> str:
    """Return the file name of the library that a wheel carries for a kind of machine.

    Args:
        system: as `sys.platform` names it.
        machine: as `platform.machine` names it.
        wide: whether the processor has AVX2 and FMA.
    """
    # The digest of the sources keeps a library of other sources from being loaded.
    return f"{_ONE_THREAD}-{kind_of_machine(system, machine, wide=wide)}-{_digest_of_sources(SOURCES)}.so"


def kind_of_machine(system: str, machine: str, *, wide: bool) -> str:
    """Return a name such as ``linux-x86_64-v3``; the arguments are those of `carried_name`."""
    return f"{system}-{machine}{'-v3' if wide else ''}"


def is_carried(library: Path) -> bool:
    """Return whether a library that `built` returned came with the installation."""
    return library.parent == CARRIED


def is_parallel(library: Path) -> bool:
    """Return whether a library that `built` returned uses several threads."""
    return not library.name.startswith(_ONE_THREAD)


def _digest() -> str:
    words = [platform.machine(), sys.platform, *flags(), _digest_of_sources(SOURCES)]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:20]


@cache
def _digest_of_sources(folder: Path) -> str:
    digest = hashlib.sha256()
    # Names are part of the digest, so that renaming or moving a file rebuilds too.
    for source in sorted(folder.glob("*.[ch]")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:20]


def _compiled(several: Path, one: Path) -> Path:
    """Compile with OpenMP, or without it if the compiler has none; return the library that was built."""
    try:
        _compile(several, flags())
    except CompilerRefused as with_openmp:
        try:
            _compile(one, flags(parallel=False))
        except CompilerRefused:
            raise with_openmp from None
        return one
    return several


def _compiler() -> list[str]:
    requested = os.environ.get("CC")
    candidates = [shlex.split(requested)] if requested else [[name] for name in _COMPILERS]
    available = [words for words in candidates if words and shutil.which(words[0])]
    if not available:
        tried = requested or ", ".join(_COMPILERS)
        raise NativeUnavailable(f"no C compiler found (tried {tried}): install gcc or clang, or set $CC")
    return available[0]


def _compile(library: Path, words: list[str]) -> None:
    command = _compiler()
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent, prefix="building-") as folder:
            draft = Path(folder) / library.name
            _run([*command, *words, *sources, "-o", str(draft), "-lm"])
            # A rename within one folder is atomic: a concurrent process never loads half a library.
            draft.replace(library)
    except OSError as error:
        raise NativeUnavailable(
            f"cannot build the native kernels in {library.parent}: {error}; set XDG_CACHE_HOME to a writable folder"
        ) from error


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)  # noqa: S603  the system's compiler on our own sources
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailable(f"{command[0]} did not build the native kernels within {_PATIENCE} seconds") from error
    if result.returncode != 0:
        # Compilers repeat themselves: the first lines have the cause.
        output = "\n".join(result.stderr.strip().splitlines()[:5]) or "nothing"
        raise CompilerRefused(
            f"{command[0]} could not build the native kernels (exit status {result.returncode}); its output: {output}"
        )
