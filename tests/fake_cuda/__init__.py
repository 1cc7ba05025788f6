"""A pretended CUDA device: tensors report ``cuda:0``, hold values, and are computed on the CPU.

    with FakeCuda() as cuda:
        train(device="cuda")
    cuda.ledger.waits       # what the host waited for, with the line of the project that caused it
    cuda.ledger.launches    # kernels that would have been launched, by operation

The device refuses what CUDA refuses: tensors of two devices in one operation, a generator of the wrong device,
`numpy()` of a tensor on the device. It counts what CUDA waits for, what it launches, and what it adds in no
fixed order. It needs torch's CPU build and a C++ compiler, but neither a driver nor a GPU.

It cannot show what kernels compute, the caching allocator, overlap and speed, NCCL, or cuDNN's choice of algorithms.
"""

from fake_cuda.device import FakeCuda
from fake_cuda.ledger import Ledger
from fake_cuda.tensors import DeviceTensor

__all__ = ["DeviceTensor", "FakeCuda", "Ledger"]
