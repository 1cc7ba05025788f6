"""The pretended device as a fixture."""

import shutil
from collections.abc import Iterator

import pytest
import torch

from fake_cuda import DeviceTensor, FakeCuda


@pytest.fixture
def adapted(monkeypatch):
    """Let checkpoints store tensors of the device, which are a subclass only here."""
    from fieldwatch.checkpoint import array  # noqa: PLC0415  after the hook of the annotation checks

    def kind(value: object) -> type:
        return torch.Tensor if isinstance(value, DeviceTensor) else type(value)

    monkeypatch.setattr(array, "type", kind, raising=False)


@pytest.fixture
def fake_cuda(adapted) -> Iterator[FakeCuda]:
    """The pretended device, entered."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the device guard")
    with FakeCuda() as device:
        yield device
