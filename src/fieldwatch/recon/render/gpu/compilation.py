"""Compilation of kernels with NVRTC, a library that comes with torch's CUDA build, and the cache of what it made.

NVRTC needs neither a CUDA toolkit nor a GPU. It is called through ctypes: every CUDA build of torch brings the library,
only some bring Python bindings for it.
"""

import ctypes
import functools
import hashlib
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fieldwatch.recon.render.native.build import cache_folder

SOURCES = Path(__file__).parent
"""Folder of the sources and their headers."""
OPTIONS = ("--std=c++17", "--define-macro=NDEBUG")
"""Options of the compiler besides the architecture; no fast math, so that NaN stays NaN."""
_DIGEST = hashlib.sha256().digest_size
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll")


class KernelsUnavailable(RuntimeError):  # noqa: N818  named after the state that the pipelines report
    """GPU kernels could not be compiled, loaded or launched; the message has the cause and what to do."""


def compiled(path: Path, architecture: str, *options: str) -> tuple[bytes, str]:
    """Compile a source for a GPU architecture, such as ``sm_89``.

    Args:
        path: the ``.cu`` file; it may include headers of its folder and of this one.
        architecture: architecture of the GPU.
        options: more options of NVRTC.

    Returns:
        the cubin, and the log of the compiler.

    Raises:
        KernelsUnavailable: NVRTC is missing, or refused the source or the architecture.
    """
    nvrtc = _nvrtc()
    headers = _headers(path)
    program = ctypes.c_void_p()
    contents = (ctypes.c_char_p * len(headers))(*headers.values())
    names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
    _checked(
        nvrtc,
        "nvrtcCreateProgram",
        *(ctypes.byref(program), path.read_bytes(), path.name.encode(), len(headers), contents, names),
    )
    try:
        words = [f"--gpu-architecture={architecture}", *OPTIONS, *options]
        given = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
        code = nvrtc.nvrtcCompileProgram(program, len(words), given)
        log = _text(nvrtc, program, "ProgramLog").decode(errors="replace").strip("\0\n ")
        if code != 0:
            first = "\n".join(log.splitlines()[:5])
            raise KernelsUnavailable(f"NVRTC cannot compile {path.name} for {architecture} ({_reason(code)}): {first}")
        return _text(nvrtc, program, "CUBIN"), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def cubin(path: Path, architecture: str, *options: str, announce: Callable[[str], None] = lambda _: None) -> bytes:
    """Return the cubin of a source, from the user's cache or compiled anew.

    Processes may compile at the same time: each writes to a separate file and renames it. A cached file that is damaged
    is compiled again.

    Args:
        path: the ``.cu`` file.
        architecture: architecture of the GPU, such as ``sm_89``.
        options: more options of NVRTC.
        announce: is called with a line of text before a compilation.

    Raises:
        KernelsUnavailable: NVRTC is missing, or refused the source or the architecture.
    """
    kept = cache_folder().parent / "gpu" / f"{path.stem}-{architecture}-{_key(path, architecture, options)}.cubin"
    found = _read(kept)
    if found is not None:
        return found
    announce(f"compiling GPU kernels ({path.name}) for {architecture}, once; they are kept in {kept.parent}")
    began = time.perf_counter()
    image, _ = compiled(path, architecture, *options)
    _keep(image, kept)
    announce(f"compiled {path.name} in {time.perf_counter() - began:.1f} s")
    return image


def nvrtc_version() -> tuple[int, int]:
    """Return the CUDA version of the NVRTC library.

    Raises:
        KernelsUnavailable: NVRTC is missing.
    """
    major = ctypes.c_int()
    minor = ctypes.c_int()
    _checked(_nvrtc(), "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _key(path: Path, architecture: str, options: tuple[str, ...]) -> str:
    digest = hashlib.sha256(" ".join([architecture, *OPTIONS, *options, *map(str, nvrtc_version())]).encode())
    for name, content in (*_headers(path).items(), (path.name, path.read_bytes())):
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:20]


def _headers(path: Path) -> dict[str, bytes]:
    """Return the headers that a source may include: those beside it, and those of this folder."""
    folders = dict.fromkeys((SOURCES, path.parent))
    return {header.name: header.read_bytes() for folder in folders for header in sorted(folder.glob("*.h"))}


def _read(kept: Path) -> bytes | None:
    try:
        content = kept.read_bytes()
    except OSError:  # missing, or a folder that cannot be read: writing to it says what is wrong
        return None
    image = content[:-_DIGEST]
    return image if hashlib.sha256(image).digest() == content[-_DIGEST:] else None


def _keep(image: bytes, kept: Path) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="compiling-") as folder:
            draft = Path(folder) / kept.name
            draft.write_bytes(image + hashlib.sha256(image).digest())
            # A rename within one file system is atomic: a concurrent process never reads half a file.
            draft.replace(kept)
    except OSError as error:
        raise KernelsUnavailable(
            f"cannot keep the compiled GPU kernels in {kept.parent}: {error}; set XDG_CACHE_HOME to a writable folder"
        ) from error


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    for candidate in _candidates():
        try:
            # NVRTC opens this library by its name; it finds one that is loaded already.
            if Path(candidate).is_absolute():
                for builtins in Path(candidate).parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(builtins))
            return _declared(ctypes.CDLL(candidate))
        except OSError:
            continue
    raise KernelsUnavailable(
        "no NVRTC library found, which compiles the GPU kernels: install torch's CUDA build, or pip install "
        "nvidia-cuda-nvrtc of torch's CUDA version"
    )


def _candidates() -> list[str]:
    """Return paths and names of the library: that of torch's own CUDA version first."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    found = [path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*")]
    bundled = Path(torch.__file__).parent / "lib"
    found += [*bundled.glob("libnvrtc-*.so.*"), *bundled.glob("libnvrtc.so.*"), *bundled.glob("nvrtc64_*_0.dll")]
    found = [path for path in found if "builtins" not in path.name and ".alt." not in path.name]
    wanted = (torch.version.cuda or "").split(".")[0]
    found.sort(key=lambda path: (not path.name.endswith(f".{wanted}"), path.name))
    return [*(str(path) for path in found), *_NAMES]


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    # Without declared types, ctypes passes addresses as 32 bits.
    pointer = ctypes.c_void_p
    size = ctypes.POINTER(ctypes.c_size_t)
    library.nvrtcCreateProgram.argtypes = [pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, pointer, pointer]
    library.nvrtcCompileProgram.argtypes = [pointer, ctypes.c_int, pointer]
    for what in ("ProgramLog", "CUBIN"):
        getattr(library, f"nvrtcGet{what}Size").argtypes = [pointer, size]
        getattr(library, f"nvrtcGet{what}").argtypes = [pointer, ctypes.c_char_p]
    return library


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _checked(nvrtc, f"nvrtcGet{what}Size", program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    _checked(nvrtc, f"nvrtcGet{what}", program, content)
    return content.raw


def _checked(nvrtc: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(nvrtc, name)(*arguments)
    if code != 0:
        raise KernelsUnavailable(f"{name} of NVRTC failed: {_reason(code)}")


def _reason(code: int) -> str:
    return _nvrtc().nvrtcGetErrorString(code).decode()
