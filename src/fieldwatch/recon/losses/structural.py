"""Structural similarity of images in [0, 1]: SSIM (Wang et al. 2004) and MS-SSIM (Wang, Simoncelli, Bovik 2003)."""

import functools
import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from fieldwatch import InputError

SCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Exponents of the scales, finest first (Wang, Simoncelli, Bovik 2003, section 3.2)."""

# (K1 L)^2 and (K2 L)^2 for a data range of L = 1.
_C1 = 0.01**2
_C2 = 0.03**2
_MIN_FACTOR = 1e-4  # lower bound of a scale's contrast term, whose fractional power is undefined below 0


class _ScaleSimilarity(NamedTuple):
    """SSIM and its contrast-structure factor per image and channel, averaged over all windows."""

    ssim: Float[Tensor, "batch channels"]
    contrast: Float[Tensor, "batch channels"]


@functools.lru_cache(maxsize=32)
def _gaussian(window: int, sigma: float, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " taps"]:
    """Return the weights of a normalized Gaussian window; cached to avoid a host-to-device copy per step."""
    # Computed in Python floats, so that all devices get the same weights.
    weights = [math.exp(-((i - (window - 1) / 2) ** 2) / (2 * sigma**2)) for i in range(window)]
    return torch.tensor([weight / sum(weights) for weight in weights], device=device, dtype=dtype)


@functools.lru_cache(maxsize=32)
def _exponents(levels: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "levels 1 1"]:
    """Return the weights of the finest scales, renormalized to sum 1; cached like `_gaussian`."""
    weights = SCALE_WEIGHTS[:levels]
    return torch.tensor([weight / sum(weights) for weight in weights], device=device, dtype=dtype).view(-1, 1, 1)


def _windowed_mean(maps: Float[Tensor, "maps h w"], taps: Float[Tensor, " taps"]) -> Float[Tensor, "maps h2 w2"]:
    """Return means over all windows that are fully inside, by two one-dimensional convolutions."""
    # As a batch of one-channel images instead of channels, the convolution is 90 times slower on a CPU.
    count = len(maps)
    across = functional.conv2d(maps[None], taps.view(1, 1, 1, -1).expand(count, 1, 1, -1), groups=count)
    return functional.conv2d(across, taps.view(1, 1, -1, 1).expand(count, 1, -1, 1), groups=count)[0]


class _WindowedMean(torch.autograd.Function):
    """`_windowed_mean` with a faster exact gradient: since the window is symmetric, it blurs the padded gradient."""

    @staticmethod
    def forward(maps: Tensor, taps: Tensor) -> Tensor:
        return _windowed_mean(maps, taps)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        del output
        # The operation is linear in the maps, so its gradient needs only the taps.
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        (taps,) = ctx.saved_tensors  # pyright: ignore[reportAttributeAccessIssue] - torch does not declare it
        border = len(taps) - 1
        # Calling `apply` instead of `_windowed_mean` keeps second derivatives possible.
        return _WindowedMean.apply(functional.pad(gradients[0], (border, border, border, border)), taps), None


def _similarity(
    a: Float[Tensor, "batch channels h w"], b: Float[Tensor, "batch channels h w"], window: int, sigma: float
) -> _ScaleSimilarity:
    """Compute SSIM from the means of a + b, a - b and their squares: four blurred maps instead of the usual five.

    With s = a + b and d = a - b: 2 mean(a) mean(b) = (mean(s)^2 - mean(d)^2) / 2, mean(a)^2 + mean(b)^2 =
    (mean(s)^2 + mean(d)^2) / 2, and the same with variances in place of squared means.
    """
    total = a + b
    difference = a - b
    maps = torch.stack([total, difference, total.square(), difference.square()])
    # A single convolution blurs all four maps.
    flat = _WindowedMean.apply(maps.flatten(0, 2), _gaussian(window, sigma, a.device, a.dtype))
    mean_s, mean_d, square_s, square_d = flat.view(4, *a.shape[:2], *flat.shape[1:]).unbind()
    mean_s = mean_s.square()
    mean_d = mean_d.square()
    # mean_s and mean_d are squared means from here on: Var[x] = E[x^2] - E[x]^2.
    var_s = square_s - mean_s
    var_d = square_d - mean_d
    contrast = ((var_s - var_d) / 2 + _C2) / ((var_s + var_d) / 2 + _C2)
    luminance = ((mean_s - mean_d) / 2 + _C1) / ((mean_s + mean_d) / 2 + _C1)
    return _ScaleSimilarity((luminance * contrast).mean((-2, -1)), contrast.mean((-2, -1)))


def ssim(
    prediction: Float[Tensor, "batch channels h w"],
    target: Float[Tensor, "batch channels h w"],
    *,
    window: int = 11,
    sigma: float = 1.5,
) -> Float[Tensor, " batch"]:
    """Return the SSIM of each image in [0, 1], averaged over channels and windows fully inside the image.

    Args:
        prediction: images in [0, 1].
        target: ground truth images of the same shape.
        window: window size in pixels.
        sigma: standard deviation of the Gaussian window in pixels.

    Returns:
        SSIM per image; 1 for equal images.

    Raises:
        InputError: if an image is smaller than the window.
    """
    _check(prediction, target)
    shorter = min(prediction.shape[-2:])
    if shorter < window:
        msg = f"the SSIM window of {window} pixels does not fit an image of {_size(prediction)}: use a smaller window"
        raise InputError(msg)
    return _similarity(prediction, target, window, sigma).ssim.mean(-1)


def ms_ssim_window(shorter: int, levels: int = len(SCALE_WEIGHTS)) -> int:
    """Return the MS-SSIM window for an image with the given shorter side in pixels: 11, or the largest odd size below.

    The usual rule requires shorter > (window - 1) * 2^(levels - 1), so that the coarsest scale is larger than the
    window. At 5 levels, 11 taps need 161 pixels, 9 need 129, 7 need 97, 5 need 65 (HiNeRV uses 5 for 80-pixel patches)
    and 3 need 33. Sigma shrinks with the window: 1.5 * window / 11.

    Raises:
        InputError: if not even 3 taps fit.
    """
    # Odd windows have a center pixel; below 3 taps there is no local structure to compare.
    fitting = [window for window in (11, 9, 7, 5, 3) if shorter > (window - 1) * 2 ** (levels - 1)]
    if not fitting:
        most = int(math.log2((shorter - 1) / 2)) + 1 if shorter >= 3 else 0
        msg = (
            f"MS-SSIM with {levels} levels requires a shorter side of at least {2**levels + 1} pixels, got {shorter}: "
            + (f"pass levels={most} or fewer, or " if most else "")
            + "use larger patches or plain SSIM"
        )
        raise InputError(msg)
    return fitting[0]


def ms_ssim(
    prediction: Float[Tensor, "batch channels h w"],
    target: Float[Tensor, "batch channels h w"],
    *,
    levels: int = len(SCALE_WEIGHTS),
    window: int | None = None,
) -> Float[Tensor, " batch"]:
    """Return the MS-SSIM of each image in [0, 1], averaged over channels; 1 for equal images.

    Args:
        prediction: images in [0, 1].
        target: ground truth images of the same shape.
        levels: number of scales, each half the size of the previous one. With fewer than 5, the weights are
            renormalized to sum 1.
        window: window size at every scale; None uses `ms_ssim_window`, the standard 11 for images larger than 160
            pixels.

    Raises:
        ValueError: if `levels` is not in 1 to 5, or the image is too small for it.
    """
    _check(prediction, target)
    if not 1 <= levels <= len(SCALE_WEIGHTS):
        msg = f"levels of MS-SSIM must be in 1 to {len(SCALE_WEIGHTS)}, got {levels}"
        raise ValueError(msg)
    shorter = min(prediction.shape[-2:])
    largest = ms_ssim_window(shorter, levels)
    window = largest if window is None else window
    if shorter <= (window - 1) * 2 ** (levels - 1):
        msg = (
            f"a window of {window} pixels at {levels} levels does not fit an image of {_size(prediction)}: "
            f"the largest is {largest}"
        )
        raise ValueError(msg)
    # Product over scales of contrast^weight, with the luminance of the coarsest scale only.
    factors = _scale_factors(prediction, target, levels, window)
    return (factors ** _exponents(levels, factors.device, factors.dtype)).prod(0).mean(-1)


def _scale_factors(
    a: Float[Tensor, "batch channels h w"], b: Float[Tensor, "batch channels h w"], levels: int, window: int
) -> Float[Tensor, "levels batch channels"]:
    """Return the contrast factors of all scales except the last, and SSIM of the last, clamped to positive values."""
    factors: list[Tensor] = []
    for level in range(levels):
        similarity = _similarity(a, b, window, 1.5 * window / 11)
        factors.append(similarity.ssim if level == levels - 1 else similarity.contrast)
        # Padding odd sides keeps the last row and column.
        odd = (a.shape[-2] % 2, a.shape[-1] % 2)
        a, b = (functional.avg_pool2d(x, 2, padding=odd) for x in (a, b))
    return torch.stack(factors).clamp_min(_MIN_FACTOR)


def _size(images: Tensor) -> str:
    return f"{images.shape[-2]} x {images.shape[-1]} pixels"


def _check(prediction: Tensor, target: Tensor) -> None:
    if prediction.shape != target.shape or prediction.ndim != 4:
        msg = (
            f"expected two batches of the same shape [batch, channels, height, width], got {tuple(prediction.shape)} "
            f"and {tuple(target.shape)}"
        )
        raise ValueError(msg)
