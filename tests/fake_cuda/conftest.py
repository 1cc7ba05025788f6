"""The pretended device as a fixture."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from fake_cuda import DeviceTensor, FakeCuda
from fake_cuda.ledger import Ledger


class _Types(type):
    def __call__(cls, value: object) -> type:
        return torch.Tensor if isinstance(value, DeviceTensor) else type(value)

    def __instancecheck__(cls, value: object) -> bool:  # annotation checks ask it
        return isinstance(value, type)


class _Type(metaclass=_Types):
    """In place of `type`: a tensor of the device is a plain tensor."""


@contextmanager
def stored_as_tensors() -> Iterator[None]:
    """Let checkpoints store tensors of the device, which are a subclass only here."""
    from fieldwatch.checkpoint import array  # noqa: PLC0415  after the hook of the annotation checks

    with mock.patch.object(array, "type", _Type, create=True):
        yield


@contextmanager
def pretended_gpu() -> Iterator[FakeCuda]:
    """Enter the device for code of fieldwatch, of which nothing remembers the device afterwards."""
    from fake_cuda.emulator import SANITIZED, Emulator  # noqa: PLC0415  after the hook of the annotation checks
    from fieldwatch.measure import out_of_memory  # noqa: PLC0415
    from fieldwatch.recon.render.gpu import launcher  # noqa: PLC0415

    with ExitStack() as stack:
        # One notifier per process is attached to torch, once; that of other tests must not be attached to this device.
        notifier = out_of_memory.OutOfMemoryNotifier()
        stack.enter_context(mock.patch.object(out_of_memory, "_NOTIFIER", notifier))
        stack.enter_context(stored_as_tensors())
        device = stack.enter_context(FakeCuda())
        # Set by benchmarks/sanitized_kernels.py.
        sanitized = bool(os.environ.get("FIELDWATCH_SANITIZED_KERNELS"))
        device.emulator = Emulator(options=SANITIZED if sanitized else ())
        stack.enter_context(mock.patch.object(launcher, "LAUNCHER", device.emulator))
        yield device


_VERDICTS: dict[tuple[str, int], str | None] = {}


def share_trials(device: Any) -> Any:
    """Let trainings on several devices share the trials of kernels, which take longer than their steps."""
    if isinstance(device, FakeCuda):
        device.emulator.verdicts = _VERDICTS
    return device


class RealCuda:
    """The GPU of this machine, for `make test-gpu`; nothing is counted."""

    counts = False

    def __init__(self) -> None:
        self.ledger = Ledger()


@pytest.fixture
def fake_cuda(request) -> Iterator[FakeCuda | RealCuda]:
    """The pretended device, entered; the real one if FIELDWATCH_TEST_GPU is set."""
    if os.environ.get("FIELDWATCH_TEST_GPU"):
        if request.node.get_closest_marker("pretended"):
            pytest.skip("only the pretended GPU counts and refuses")
        if not torch.cuda.is_available():
            pytest.fail("FIELDWATCH_TEST_GPU is set, but torch sees no GPU")
        yield RealCuda()
        return
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the device guard")
    with pretended_gpu() as device:
        yield device
