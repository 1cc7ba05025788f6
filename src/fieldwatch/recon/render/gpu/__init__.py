"""GPU kernels of one source: compiled by NVRTC at first use for the GPU at hand, and emulated on a CPU by the tests."""

from fieldwatch.recon.render.gpu.compilation import KernelsUnavailable
from fieldwatch.recon.render.gpu.kernels import KernelFile, kernels_problem
from fieldwatch.recon.render.gpu.signatures import MOST_LISTED

__all__ = ["MOST_LISTED", "KernelFile", "KernelsUnavailable", "kernels_problem"]
