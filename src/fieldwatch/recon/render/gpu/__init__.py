"""GPU kernels of one source: compiled by NVRTC at first use for the GPU at hand, and emulated on a CPU by the tests."""

from fieldwatch.recon.render.gpu.kernels import KernelFile
from fieldwatch.recon.render.gpu.launcher import KernelsUnavailable, Launcher, kernels_problem

__all__ = ["KernelFile", "KernelsUnavailable", "Launcher", "kernels_problem"]
