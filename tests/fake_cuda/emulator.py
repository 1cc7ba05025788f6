"""Kernels of the pretended device: their sources compiled for the CPU, run in several orders of blocks and threads."""

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fake_cuda.tensors import STATE, use_memory
from fieldwatch.recon.render.gpu.compilation import SOURCES

FORWARD, REVERSE, SHUFFLED = 0, 1, 7
"""Orders of blocks and threads; any number from 2 is the seed of a random order."""
_FLAGS = "-x c++ -std=c++17 -O2 -ffp-contract=off -Wall -Wextra -Werror -Wno-maybe-uninitialized -fPIC -shared".split()
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-ftrivial-auto-var-init=pattern")
"""Flags that stop at an access beyond a tensor or an array; shared memory begins with senseless numbers."""


class Emulator:
    """Launcher of kernels on the pretended device.

    Attributes:
        order: order of blocks and threads.
        verdicts: what `kernels_problem` found.
    """

    def __init__(self, order: int = FORWARD, options: tuple[str, ...] = ()) -> None:
        self.order = order
        self.verdicts: dict[tuple[str, int], str | None] = {}
        self._options = options

    def address(self, tensor: Any) -> int:
        """Return the address of the values of a tensor."""
        return tensor.values.data_ptr()

    def launch(
        self, source: Path, options: tuple[str, ...], kernel: Any, blocks: int, values: Sequence[Any], _: torch.device
    ) -> None:
        """Run a kernel on the memory of its tensors, and count it as a launch."""
        if STATE.capture is not None:
            raise NotImplementedError("a kernel of our own in a capture of the pretended device")
        use_memory()
        STATE.ledger.launch(kernel.name)
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        function = getattr(_library(source, (*options, *self._options)), f"run_{kernel.name}")
        function(ctypes.c_int(blocks), ctypes.c_uint64(self.order), addresses)


@functools.cache
def _library(source: Path, options: tuple[str, ...]) -> ctypes.CDLL:
    """Compile a source, once per content and flags."""
    flags = [*_FLAGS, *options, f"-I{SOURCES}"]
    contents = [
        path.read_bytes() for path in (source, *sorted(SOURCES.glob("*.h")), *sorted(source.parent.glob("*.h")))
    ]
    key = hashlib.sha256(b"\0".join([" ".join(flags).encode(), *contents])).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"emulated-{source.stem}-{os.getuid()}-{key}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["g++", *flags, str(source), "-o", str(made)], check=True)
        made.replace(library)  # another worker may have been faster: both are the same
    return ctypes.CDLL(str(library))
