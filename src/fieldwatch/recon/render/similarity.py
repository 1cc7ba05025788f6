"""The two terms of the photometric loss of 3DGS (Kerbl 2023, eq. 7), fused on CPU and GPU: L1 and zero-padded SSIM."""

import functools
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fieldwatch.recon.render.gpu import KernelFile, kernels_problem
from fieldwatch.recon.render.native import call, native_available
from fieldwatch.recon.transfers import constant

_WINDOW = 11
_SIGMA = 1.5
_C1 = 0.01**2
_C2 = 0.03**2
_KERNELS = KernelFile("similarity.cu")
_SIDE = 16  # of a tile, as in gpu/similarity.cu
_CLOSE = 1e-3  # largest difference in the trial, relative to the largest value


class ImageSimilarity(NamedTuple):
    """Mean absolute difference and mean SSIM of two images."""

    l1: Float[Tensor, ""]
    ssim: Float[Tensor, ""]


class _Fused(torch.autograd.Function):
    """Both means; the forward pass also computes the gradient of SSIM."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, photo: Tensor) -> Any:
        image = image.contiguous()
        photo = photo.contiguous()
        height, width, channels = image.shape
        scratch = image.new_empty(call("fw_similarity_scratch", width, height, channels))
        sums = torch.empty(2 * channels * height, dtype=torch.float64)
        result = image.new_empty(2)
        gradient = torch.empty_like(image) if ctx.needs_input_grad[0] else None
        size = (width, height, channels)
        call("fw_similarity", *size, image, photo, torch.get_num_threads(), scratch, sums, result, gradient)
        if gradient is not None:
            ctx.save_for_backward(image, photo, gradient)
        return result[1].clone(), result[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        image, photo, slope = ctx.saved_tensors
        # L1 has the gradient sign(image - photo) / count; that of SSIM was stored by the forward pass.
        return torch.sub(image, photo).sign_().mul_(gradients[0] / image.numel()).addcmul_(slope, gradients[1]), None


class PhotoLoss(NamedTuple):
    """Photometric loss of an image, and its PSNR in dB where that comes with it."""

    loss: Float[Tensor, ""]
    psnr: Float[Tensor, ""] | None


class _OnGpu(torch.autograd.Function):
    """Both means, the loss with a weight of SSIM, and the PSNR by our own GPU kernels."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, photo: Tensor, weight: float) -> Any:
        image = image.contiguous()
        photo = photo.contiguous()
        height, width, channels = image.shape
        blocks = channels * -(-width // _SIDE) * -(-height // _SIDE)
        taps = constant(_weights(), image)
        sums = image.new_empty(blocks, 3)
        results = image.new_empty(4)
        slopes = image.new_empty(3, *image.shape) if ctx.needs_input_grad[0] else None
        size = (width, height, channels)
        _KERNELS.launch("similarity_forward", blocks, *size, taps, image, photo, sums, slopes)
        _KERNELS.launch("similarity_means", 1, blocks, 1 / image.numel(), weight, sums, results)
        ctx.save_for_backward(image, photo, taps, slopes)
        ctx.weight = weight
        ctx.set_materialize_grads(False)
        l1, ssim, loss, psnr = results.unbind()
        ctx.mark_non_differentiable(psnr)
        return l1, ssim, loss, psnr

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        image, photo, taps, slopes = ctx.saved_tensors
        height, width, channels = image.shape
        blocks = channels * -(-width // _SIDE) * -(-height // _SIDE)
        gradient = torch.empty_like(image)
        size = (width, height, channels)
        weights = (1 / image.numel(), ctx.weight)
        _KERNELS.launch(
            "similarity_backward", blocks, *size, taps, image, photo, slopes, *weights, *gradients[:3], gradient
        )
        return gradient, None, None


def _on_gpu(image: Tensor, photo: Tensor, weight: float) -> tuple[Tensor, ...]:
    return _OnGpu.apply(image, photo, weight)


def _by_torch(image: Tensor, photo: Tensor, weight: float) -> tuple[Tensor, ...]:
    l1, ssim = image_similarity_reference(image, photo)
    psnr = -10 * functional.mse_loss(image.detach(), photo).log10()
    return l1, ssim, (1 - weight) * l1 + weight * (1 - ssim), psnr


def _trial() -> str | None:
    """Compare the GPU kernels with torch's operations on a small image; return the difference in words, or None."""
    chance = torch.Generator().manual_seed(0)
    photo = torch.rand(19, 37, 3, generator=chance).cuda()
    results: list[list[Tensor]] = []
    for compare in (_on_gpu, _by_torch):
        image = (photo * 0.5 + 0.1).requires_grad_()
        l1, ssim, loss, psnr = compare(image, photo, 0.3)
        (gradient,) = torch.autograd.grad(l1 - 2 * ssim + 3 * loss, image)
        results.append([l1.detach(), ssim.detach(), loss.detach(), psnr, gradient])
    gap = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True))
    return None if gap <= _CLOSE else f"SSIM of our GPU kernels differs from torch's by {gap:.1%}"


def image_similarity(
    image: Float[Tensor, "height width channels"], photo: Float[Tensor, "height width channels"]
) -> ImageSimilarity:
    """Compare a rendered image with a photo by L1 and SSIM; differentiable with respect to the image.

    SSIM uses a Gaussian window of 11 x 11 pixels with sigma 1.5 and zero padding, and is averaged over all pixels and
    channels (Wang 2004; with the padding of 3DGS, the border counts too).

    Args:
        image: rendered image, values around [0, 1].
        photo: ground truth, values in [0, 1]; gets no gradient.

    Raises:
        ValueError: the shapes differ, or the photo requires a gradient.
    """
    if image.shape != photo.shape or photo.requires_grad:
        wrong = " that requires a gradient" if photo.requires_grad else ""
        raise ValueError(
            f"image and photo must have the same shape, and only the image may require a gradient, got an image of "
            f"shape {tuple(image.shape)} and a photo of shape {tuple(photo.shape)}{wrong}"
        )
    # The kernels support single precision only.
    kinds = {(tensor.device.type, tensor.dtype) for tensor in (image, photo)}
    if kinds == {("cpu", torch.float32)} and native_available()[0]:
        return ImageSimilarity(*_Fused.apply(image, photo))
    if _has_gpu_kernel(image, photo):
        return ImageSimilarity(*_on_gpu(image, photo, 0.0)[:2])
    return image_similarity_reference(image, photo)


def photo_loss(
    image: Float[Tensor, "height width channels"], photo: Float[Tensor, "height width channels"], weight: float
) -> PhotoLoss:
    """Return the photometric loss of 3DGS (Kerbl 2023, eq. 7), ``(1 - weight) L1 + weight (1 - SSIM)``.

    The kernels of a GPU compute the PSNR too.

    Args:
        image: rendered image, values around [0, 1].
        photo: ground truth, values in [0, 1]; gets no gradient.
        weight: weight of SSIM.

    Raises:
        ValueError: as `image_similarity`.
    """
    if image.shape == photo.shape and not photo.requires_grad and _has_gpu_kernel(image, photo):
        return PhotoLoss(*_on_gpu(image, photo, weight)[2:])
    similarity = image_similarity(image, photo)
    return PhotoLoss((1 - weight) * similarity.l1 + weight * (1 - similarity.ssim), None)


def _has_gpu_kernel(image: Tensor, photo: Tensor) -> bool:
    if any(tensor.device.type != "cuda" or tensor.dtype != torch.float32 for tensor in (image, photo)):
        return False
    return kernels_problem(_KERNELS, _trial) is None


def _window(like: Tensor) -> Float[Tensor, " taps"]:
    # One-dimensional: the two-dimensional Gaussian is separable.
    weights = tuple(math.exp(-((tap - _WINDOW // 2) ** 2) / (2 * _SIGMA**2)) for tap in range(_WINDOW))
    return constant(weights, like) / sum(weights)


@functools.cache
def _weights() -> tuple[float, ...]:
    """Return the weights of the window, which add up to 1."""
    weights = [math.exp(-((tap - _WINDOW // 2) ** 2) / (2 * _SIGMA**2)) for tap in range(_WINDOW)]
    return tuple(weight / sum(weights) for weight in weights)


class _Blurred(torch.autograd.Function):
    """Blur maps with a symmetric window, zeros outside: its own adjoint.

    The gradient of `conv2d` need not repeat to the bit on a GPU.
    """

    @staticmethod
    def forward(_: Any, maps: Tensor) -> Tensor:
        return _blur(maps)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Blurred.apply(gradient)


def _blur(maps: Float[Tensor, "maps height width"]) -> Float[Tensor, "maps height width"]:
    """Blur maps as the channels of one image: as a batch of one-channel images it is 20 times slower on a CPU."""
    taps = _window(maps)
    count = len(maps)
    across = functional.conv2d(maps[None], taps.expand(count, 1, 1, -1), padding=(0, _WINDOW // 2), groups=count)
    return functional.conv2d(across, taps[:, None].expand(count, 1, -1, 1), padding=(_WINDOW // 2, 0), groups=count)[0]


def image_similarity_reference(
    image: Float[Tensor, "height width channels"], photo: Float[Tensor, "height width channels"]
) -> ImageSimilarity:
    """Compute `image_similarity` in plain torch, on any device and in any precision."""
    x = image.permute(2, 0, 1)
    y = photo.permute(2, 0, 1)
    # One blur for all four maps: E[x], E[y], E[x^2 + y^2] and E[xy] are all that SSIM needs.
    mean_x, mean_y, squares, product = _Blurred.apply(torch.cat([x, y, x * x + y * y, x * y])).chunk(4)
    both = mean_x.square() + mean_y.square()
    cross = mean_x * mean_y
    # SSIM with variances as E[x^2] - E[x]^2, summed over both images in the denominator.
    index = (2 * cross + _C1) * (2 * (product - cross) + _C2) / ((both + _C1) * (squares - both + _C2))
    return ImageSimilarity((image - photo).abs().mean(), index.mean())
