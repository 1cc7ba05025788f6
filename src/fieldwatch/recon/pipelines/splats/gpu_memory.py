"""Memory that a splats training needs on a GPU, and how many Gaussians fit into it.

A model of what tensors hold, for our own kernels. `tests/fake_cuda/test_gpu_memory.py` compares it with trainings on
the pretended GPU; no real one has been measured yet, so the presets leave a fifth of the memory free.
"""

GIB = 1 << 30
USABLE = 0.8
"""Fraction of a GPU's memory that the presets plan with: the rest is for CUDA's context, the desktop and fragments."""
_NUMBER = 4
_STATE = 4  # a parameter, its gradient and Adam's two moments
_STATISTICS = 40  # bytes per Gaussian: statistics of densification, visibility
_PROJECTED = 100  # bytes per Gaussian: channels, position, shape and opacity in the image
_PAIR = 100  # bytes per pair of Gaussian and tile: key, order, a row of gradients, and a quarter of spare room
_PIXEL = 130  # bytes per pixel: rendered maps, what SSIM and the depth-normal term keep for their gradients
PAIRS_PER_GAUSSIAN = 8.0
"""Tiles of 16 x 16 pixels that a Gaussian covers on average; an assumption, since it depends on the scene."""


def peak_memory(*, gaussians: int, pixels: int, degree: int = 3, pairs: int | None = None) -> int:
    """Return the most memory that a step or a densification needs, in bytes.

    Args:
        gaussians: number of Gaussians, after the densification.
        pixels: number of pixels of a photo.
        degree: maximum SH degree.
        pairs: number of pairs of Gaussian and tile; None assumes `PAIRS_PER_GAUSSIAN`.
    """
    pairs = round(PAIRS_PER_GAUSSIAN * gaussians) if pairs is None else pairs
    step = gaussians * _bytes_per_gaussian(degree) + pixels * _PIXEL + pairs * _PAIR
    # Parameters and moments are copied into longer tensors; gradients are gone by then.
    densification = 2 * gaussians * (_STATE - 1) * _NUMBER * _numbers(degree)
    return max(step, densification)


def most_gaussians(memory: int, *, pixels: int, degree: int = 3) -> int:
    """Return how many Gaussians fit into a GPU's memory, rounded down to 100,000; 0 if the photos alone do not fit.

    Args:
        memory: memory of the GPU, in bytes.
        pixels: number of pixels of a photo.
        degree: maximum SH degree.
    """
    free = USABLE * memory - pixels * _PIXEL
    in_step = _bytes_per_gaussian(degree) + PAIRS_PER_GAUSSIAN * _PAIR
    in_densification = 2 * (_STATE - 1) * _NUMBER * _numbers(degree)
    return max(int(free / max(in_step, in_densification) / 100_000) * 100_000, 0)


def _numbers(degree: int) -> int:
    """Return the number of parameters of a Gaussian: mean, scales, quaternion, opacity, SH coefficients."""
    return 3 + 3 + 4 + 1 + 3 * (degree + 1) ** 2


def _bytes_per_gaussian(degree: int) -> int:
    return _STATE * _NUMBER * _numbers(degree) + _STATISTICS + _PROJECTED
