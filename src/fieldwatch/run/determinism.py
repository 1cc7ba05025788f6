"""Trainings that repeat to the bit on a GPU."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic_algorithms(*, wanted: bool) -> Generator[None]:
    """Let torch use algorithms that repeat to the bit, and refuse operations that have none, inside the block.

    Enter it before the first operation on the GPU, because cuBLAS reads its workspace setting once per process. CPUs
    repeat to the bit without it.
    """
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    # One workspace per stream; with several, cuBLAS may choose another algorithm each time (its documentation, 2.1.4).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
