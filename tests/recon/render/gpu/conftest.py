"""The pretended device, for tests of the kernels."""

from fake_cuda.conftest import fake_cuda

__all__ = ["fake_cuda"]
