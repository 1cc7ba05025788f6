"""Consistency of blended normals with those of the blended depth, fused on CPU and GPU."""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwatch.recon.geometry import Camera, normals_from_depth
from fieldwatch.recon.losses import depth_normal_error, normal_consistency_error
from fieldwatch.recon.render.gpu import KernelFile, kernels_problem
from fieldwatch.recon.render.native import call, native_available

Deviation = Literal["difference", "cosine"]
"""How normals are compared, see `depth_normal_consistency`."""
_LEAST_ALPHA = 1e-6
_KERNELS = KernelFile("depth_normals.cu")
_THREADS = 256  # of a block, as in gpu/depth_normals.cu
_CLOSE = 1e-3  # largest difference in the trial, relative to the largest value


class _Fused(torch.autograd.Function):
    """The mean; the forward pass also computes the gradients of the sum."""

    @staticmethod
    def forward(ctx: Any, normals: Tensor, alpha: Tensor, depth: Tensor, *settings: Any) -> Tensor:
        camera, opaque, mask = settings
        maps = [part.contiguous() for part in (normals, alpha, depth)]
        mask = None if mask is None else mask.contiguous()
        width = camera.width
        height = camera.height
        # Scratch of the kernel: expected depths, and intermediate maps with a border of one pixel on each side.
        expected = torch.empty(height * width, dtype=torch.float64)
        planes = alpha.new_empty(4 * (width + 2) * height)
        sums = torch.empty(2 * height, dtype=torch.float64)
        result = torch.empty(2, dtype=torch.float64)
        gradients = [torch.empty_like(part) if any(ctx.needs_input_grad) else None for part in maps]
        lens = (camera.fx, camera.fy, camera.cx, camera.cy, opaque)
        threads = torch.get_num_threads()
        # The forward pass computes the gradients, because it has all intermediate values.
        call("fw_depth_normals", width, height, *lens, *maps, mask, threads, expected, planes, sums, result, *gradients)
        ctx.save_for_backward(result, *gradients)
        return result[0].to(alpha.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        result, *gradients_of_sum = ctx.saved_tensors
        # result[1] turns gradients of the sum into those of the mean.
        scale = (gradients[0] * result[1]).to(gradients[0].dtype)
        return (*(gradient * scale for gradient in gradients_of_sum), None, None, None)


class _OnGpu(torch.autograd.Function):
    """The mean by our own GPU kernels."""

    @staticmethod
    def forward(ctx: Any, normals: Tensor, alpha: Tensor, depth: Tensor, *settings: Any) -> Tensor:
        camera, opaque, mask, by = settings
        maps = [part.contiguous() for part in (normals, alpha, depth)]
        mask = None if mask is None else mask.contiguous()
        blocks = -(-alpha.numel() // _THREADS)
        lens = (1 / camera.fx, 1 / camera.fy, camera.cx, camera.cy)
        view = (int(by == "cosine"), camera.width, camera.height, *lens, opaque)
        sums = alpha.new_empty(blocks, 2)
        result = alpha.new_empty(2)
        _KERNELS.launch("depth_normals_forward", blocks, *view, *maps, mask, sums)
        _KERNELS.launch("depth_normals_mean", 1, blocks, sums, result)
        ctx.save_for_backward(*maps, mask, result)
        ctx.view = view
        return result[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        *maps, mask, result = ctx.saved_tensors
        blocks = -(-maps[1].numel() // _THREADS)
        outputs = [torch.empty_like(part) for part in maps]
        upstream = gradients[0].contiguous()
        _KERNELS.launch("depth_normals_backward", blocks, *ctx.view, *maps, mask, result, upstream, *outputs)
        return (*outputs, None, None, None, None)


def _trial() -> str | None:
    """Compare the GPU kernels with torch's operations on a small wall; return the difference in words, or None."""
    width = 37
    height = 19
    eye = Camera(
        name="trial", width=width, height=height, fx=40.0, fy=44.0, cx=17.0, cy=11.0, world_from_camera=torch.eye(4)
    )
    chance = torch.Generator().manual_seed(0)
    noise = torch.rand(height, width, 5, generator=chance).cuda()
    alpha = 0.4 + 0.6 * noise[..., 0].sqrt()
    depth = (3 + 0.2 * noise[..., 1]) * alpha
    gaps: list[Tensor] = []
    for by in ("difference", "cosine"):
        results: list[list[Tensor]] = []
        for consistency in (_OnGpu.apply, _reference):
            leaves = [part.detach().clone().requires_grad_() for part in (noise[..., 2:] - 0.5, alpha, depth)]
            value = consistency(*leaves, eye, 0.5, noise[..., 0] > 0.02, by)
            results.append([value.detach(), *torch.autograd.grad(2 * value, leaves)])
        gaps += [(a - b).abs().max() / b.abs().max() for a, b in zip(*results, strict=True)]
    gap = float(torch.stack(gaps).max())  # NaN if one is
    return None if gap <= _CLOSE else f"normals of depth of our GPU kernels differ from torch's by {gap:.1%}"


def depth_normals_problem() -> str | None:
    """Return why `depth_normal_consistency` cannot use our own kernels on the current GPU; None if it can.

    The first call per process and GPU compiles the kernels and compares them with torch's operations.
    """
    return kernels_problem(_KERNELS, _trial)


def depth_normal_consistency(  # noqa: PLR0913  three maps, their camera, and which pixels count
    normals: Float[Tensor, "height width 3"],
    alpha: Float[Tensor, "height width"],
    depth: Float[Tensor, "height width"],
    camera: Camera,
    *,
    opaque: float = 0.5,
    mask: Bool[Tensor, "height width"] | None = None,
    by: Deviation = "difference",
) -> Float[Tensor, ""]:
    """Return the mean deviation of blended normals from N over the pixels that show a surface; 0 if there are none.

    "difference" is alpha - <blended normal, N> (2DGS, Huang 2024, eq. 14). "cosine" is 1 - cosine, weighted by alpha,
    which is a constant there: otherwise training could reduce the mean by making disagreeing Gaussians transparent.

    N is the unit normal of depth / alpha by central differences (`fieldwatch.recon.geometry.normals_from_depth`), so a
    pixel counts only if its four neighbors show a surface too. Gradients flow to all three maps. Differences in single
    precision run on the CPU in a fused kernel that computes in double precision; single precision on a GPU runs in our
    own kernels if `depth_normals_problem` finds none; everything else runs in plain torch.

    Args:
        normals: sum_i w_i n_i in camera axes (x right, y down, z forward), not divided by alpha.
        alpha: sum_i w_i.
        depth: sum_i w_i z_i, not divided by alpha.
        camera: camera with the size of the maps; its pose is ignored.
        opaque: alpha above which a pixel shows a surface.
        mask: pixels that count; None counts all.
        by: how normals are compared.

    Raises:
        ValueError: the maps and the camera differ in size.
    """
    if alpha.shape != (camera.height, camera.width):
        raise ValueError(
            f"maps of {alpha.shape[1]}x{alpha.shape[0]} (width x height) do not match camera {camera.name!r} of "
            f"{camera.width}x{camera.height}: use camera.resized"
        )
    # The kernels support single precision only.
    kinds = {(part.device.type, part.dtype) for part in (normals, alpha, depth)}
    if by == "difference" and kinds == {("cpu", torch.float32)} and native_available()[0]:
        return _Fused.apply(normals, alpha, depth, camera, opaque, mask)
    if kinds == {("cuda", torch.float32)} and depth_normals_problem() is None:
        return _OnGpu.apply(normals, alpha, depth, camera, opaque, mask, by)
    return depth_normal_consistency_reference(normals, alpha, depth, camera, opaque=opaque, mask=mask, by=by)


def depth_normal_consistency_reference(  # noqa: PLR0913  as above
    normals: Float[Tensor, "height width 3"],
    alpha: Float[Tensor, "height width"],
    depth: Float[Tensor, "height width"],
    camera: Camera,
    *,
    opaque: float = 0.5,
    mask: Bool[Tensor, "height width"] | None = None,
    by: Deviation = "difference",
) -> Float[Tensor, ""]:
    """Compute `depth_normal_consistency` in plain torch, on any device and in any precision."""
    # Which pixels count is not differentiable.
    surface = alpha.detach() > opaque
    surface = surface if mask is None else surface & mask
    mean_depth = depth / alpha.clamp_min(_LEAST_ALPHA)
    # Blended normals are in camera axes too.
    from_depth, valid = normals_from_depth(mean_depth, camera, mask=surface, frame="camera")
    if by == "cosine":
        return depth_normal_error(normals, from_depth, alpha.detach() * valid)
    return normal_consistency_error(normals, alpha, from_depth, valid)


def _reference(*arguments: Any) -> Tensor:
    normals, alpha, depth, camera, opaque, mask, by = arguments
    return depth_normal_consistency_reference(normals, alpha, depth, camera, opaque=opaque, mask=mask, by=by)
