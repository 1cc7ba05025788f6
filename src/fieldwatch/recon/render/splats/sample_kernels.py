"""Samples near Gaussians, drawn and compared with a surface by our own GPU kernels."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.losses import Ellipsoids, near_depth, sample_near
from fieldwatch.recon.render.gpu import KernelFile, kernels_problem
from fieldwatch.recon.render.splats.sample_comparison import SampleComparison, sample_errors
from fieldwatch.recon.render.splats.view import View

_KERNELS = KernelFile("surface_samples.cu")
# As in gpu/surface_samples.cu.
_THREADS = 128
_SLOTS = (("sdf_estimation", "sdf_density"), ("better_normal",), ("samples_on_surface",), ("smoothing",))
_BITS = {"sdf_estimation": 1, "sdf_density": 2, "better_normal": 4, "samples_on_surface": 8, "smoothing": 16}
_PARTS = 6
_GROUPS = 4
_NUMBERS = 11
_DRAWS = 2**32 - 1  # as in `sample_near`
_SAMPLES = 200  # of the trial
_CLOSE = 1e-3  # largest difference in the trial, relative to the largest value


@dataclass(frozen=True, kw_only=True, eq=False)
class BlendedDepth:
    """Rendered depth, over a background at its largest depth.

    Attributes:
        depth: z depth in world units, summed with the blending weights.
        alpha: sum of the blending weights.
        view: camera of both.
    """

    depth: Float[Tensor, "height width"]
    alpha: Float[Tensor, "height width"]
    view: View

    def before_background(self) -> Float[Tensor, "height width"]:
        """Return the depth of every pixel. The background is detached, so that it causes no gradient."""
        # A background depth of 0 would be a surface at the camera; SuGaR's code uses the depth of the farthest center.
        return self.depth + (1 - self.alpha) * self.depth.detach().amax()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Drawn:
    """What the forward and the backward pass are given but Gaussians and maps."""

    numbers: tuple[float, ...]
    draws: Tensor
    ends: Tensor
    noise: Tensor
    table: Tensor
    lens: tuple[float, ...]
    pose: Tensor | None
    far: Tensor | None


class _Compared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, drawn: _Drawn, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        samples = drawn.draws
        blocks = -(-len(samples) // _THREADS)
        sums = drawn.noise.new_empty(blocks, _PARTS)
        result = drawn.noise.new_empty(2 * len(_SLOTS))
        _KERNELS.launch("surface_forward", blocks, *_arguments(drawn, tensors), sums)
        _KERNELS.launch("surface_means", 1, blocks, sums, result)
        ctx.drawn = drawn
        ctx.save_for_backward(result, *tensors)
        return tuple(result[slot] for slot in range(len(_SLOTS)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        result, *tensors = ctx.saved_tensors
        means = tensors[0]
        count = len(means)
        pixels = 0 if len(tensors) == 4 else tensors[4].numel()
        exponents = torch.zeros(_GROUPS * count + pixels, dtype=torch.int32, device=means.device)
        sums = torch.zeros(_NUMBERS * count + pixels, dtype=torch.int64, device=means.device)
        upstream = [None if gradient is None else gradient.contiguous() for gradient in gradients]
        shared = (*_arguments(ctx.drawn, tensors), result, *upstream, exponents)
        blocks = -(-len(ctx.drawn.draws) // _THREADS)
        _KERNELS.launch("surface_exponents", blocks, *shared)
        _KERNELS.launch("surface_sums", blocks, *shared, sums)
        outputs = [torch.empty_like(part) for part in tensors]
        maps = outputs[4:] or (None, None)
        _KERNELS.launch(
            "surface_gradients",
            -(-(count + pixels) // _THREADS),
            *(count, pixels, tensors[2], ctx.drawn.far, exponents, sums),
            *(*outputs[:4], *maps),
        )
        return (None, *outputs)


def _arguments(drawn: _Drawn, tensors: Any) -> tuple[Any, ...]:
    gaussians = tensors[:4]
    maps = tensors[4:] or (None, None)
    given = (drawn.draws, drawn.ends, drawn.noise, drawn.table)
    return (*drawn.numbers, *given, *gaussians, *drawn.lens, drawn.pose, *maps, drawn.far)


def sample_errors_on_gpu(  # noqa: PLR0913  Gaussians, their neighbors, how many samples, and what they are compared with
    ellipsoids: Ellipsoids,
    visible: Bool[Tensor, " n"],
    table: Int32[Tensor, "n k"],
    how: SampleComparison,
    count: int,
    *,
    blended: BlendedDepth | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, Float[Tensor, ""]]:
    """Draw samples near visible Gaussians, and return their mean errors by the names of `how.terms`.

    Values and gradients are those of `near_depth`, `sample_near` and `sample_errors`, up to rounding; gradients are
    summed exactly. Nothing waits for the GPU. Only the mean thickness of the neighbors (`how.beta` of "average") is
    supported, in single precision.

    Args:
        ellipsoids: Gaussians.
        visible: mask of those to sample from.
        table: neighbor indices of every Gaussian, itself included.
        how: which errors, and their units.
        count: number of samples.
        blended: rendered depth, for `sdf_estimation`; samples are drawn near it only. None compares with the plane of
            the Gaussian that a sample was drawn from.
        generator: random generator on the GPU.
    """
    parts = (ellipsoids.means, ellipsoids.scales, ellipsoids.quaternions, ellipsoids.opacities)
    gaussians = tuple(part.contiguous() for part in parts)
    device = gaussians[0].device
    lens: tuple[float, ...] = (0, 0, 0.0, 0.0, 0.0, 0.0)
    maps: tuple[Tensor, ...] = ()
    pose = None
    far = None
    candidates = visible.contiguous()
    if blended is not None:
        view = blended.view
        lens = (view.width, view.height, view.fx, view.fy, view.cx, view.cy)
        pose = view.camera_from_world.contiguous()
        maps = (blended.alpha.contiguous(), blended.depth.contiguous())
        far = blended.depth.detach().amax()
        near = torch.empty_like(candidates)
        blocks = -(-len(near) // _THREADS)
        detached = [part.detach() for part in (*gaussians, *maps)]
        _KERNELS.launch(
            *("surface_candidates", blocks, len(near), candidates),
            *(*detached[:4], *lens, pose, *detached[4:], far, near),
        )
        candidates = near
    # Sorted, so that neighboring threads read the same Gaussians.
    draws = torch.randint(_DRAWS, (count,), generator=generator, device=device).sort().values
    noise = torch.randn(count, 3, generator=generator, device=device)
    bits = sum(_BITS[name] for name in how.terms)
    numbers = (bits, count, len(candidates), table.shape[1], how.extent, how.share)
    drawn = _Drawn(
        numbers=numbers,
        draws=draws,
        ends=candidates.cumsum(0),
        noise=noise,
        table=table.contiguous(),
        lens=lens,
        pose=pose,
        far=far,
    )
    values = _Compared.apply(drawn, *gaussians, *maps)
    return {name: values[slot] for slot, names in enumerate(_SLOTS) for name in names if name in how.terms}


def sample_kernels_problem() -> str | None:
    """Return why `sample_errors_on_gpu` cannot be used on the current GPU; None if it can.

    The first call per process and GPU compiles the kernels and compares them with torch's operations.
    """
    return kernels_problem(_KERNELS, _trial)


def _trial() -> str | None:
    for how, seen in (
        (SampleComparison(terms=("sdf_density", "better_normal", "smoothing"), extent=2.0), False),
        (SampleComparison(terms=("sdf_estimation", "better_normal", "samples_on_surface"), extent=2.0), True),
    ):
        gap = _gap(how, seen=seen)
        if not gap <= _CLOSE:
            return f"surface terms of our GPU kernels differ from torch's by {gap:.1%}"
    return None


@torch.enable_grad()
def _gap(how: SampleComparison, *, seen: bool) -> float:
    """Return the largest difference between the kernels and torch's operations on a wavy wall of Gaussians."""
    chance = torch.Generator().manual_seed(0)
    noise = torch.rand(60, 11, generator=chance)
    means = torch.cat([4 * noise[:, :2] - 2, 3 + 0.2 * noise[:, 2:3]], 1)
    scales = 0.05 + 0.3 * noise[:, 3:6]
    parts = [means, scales, noise[:, 6:10] - 0.5, 0.2 + 0.7 * noise[:, 10]]
    maps = torch.rand(2, 11, 17, generator=chance)
    parts += [0.6 + 0.4 * maps[0], 3 * (0.6 + 0.4 * maps[0]) + 0.2 * maps[1]] if seen else []
    table = ((torch.arange(60)[:, None] + torch.arange(5)) % 60).int().cuda()
    visible = (torch.arange(60) % 3 > 0).cuda()
    eye = Camera(name="trial", width=17, height=11, fx=12.0, fy=13.0, cx=8.0, cy=6.0, world_from_camera=torch.eye(4))
    found: list[list[Tensor]] = []
    for compare in (_with_kernels, _with_torch):
        leaves = [part.cuda().requires_grad_() for part in parts]
        errors = compare(how, leaves, visible, table, eye)
        total = torch.stack([(number + 1) * error for number, error in enumerate(errors.values())]).sum()
        found.append([*(error.detach() for error in errors.values()), *torch.autograd.grad(total, leaves)])
    gaps = [(a - b).abs().max() / b.abs().max() for a, b in zip(*found, strict=True)]
    return float(torch.stack(gaps).max())  # NaN if one is


def _with_kernels(
    how: SampleComparison, leaves: list[Tensor], visible: Tensor, table: Tensor, eye: Camera
) -> dict[str, Tensor]:
    generator = torch.Generator(table.device).manual_seed(1)
    blended = _blended(leaves, eye)
    return sample_errors_on_gpu(
        _ellipsoids(leaves), visible, table, how, _SAMPLES, blended=blended, generator=generator
    )


def _with_torch(
    how: SampleComparison, leaves: list[Tensor], visible: Tensor, table: Tensor, eye: Camera
) -> dict[str, Tensor]:
    generator = torch.Generator(table.device).manual_seed(1)
    ellipsoids = _ellipsoids(leaves)
    blended = _blended(leaves, eye)
    seen_from = None
    if blended is not None:
        seen_from = (blended.before_background(), replace(eye, world_from_camera=eye.world_from_camera.cuda()))
        visible = visible & near_depth(ellipsoids, *seen_from)
    samples = sample_near(ellipsoids, _SAMPLES, visible=visible, generator=generator)
    errors = sample_errors(samples, ellipsoids, table, how, seen_from=seen_from)
    return {name: error for name, (error, _) in errors.items()}


def _ellipsoids(leaves: list[Tensor]) -> Ellipsoids:
    means, scales, quaternions, opacities = leaves[:4]
    return Ellipsoids(means=means, scales=scales, quaternions=quaternions, opacities=opacities)


def _blended(leaves: list[Tensor], eye: Camera) -> BlendedDepth | None:
    if len(leaves) == 4:
        return None
    lens = {name: getattr(eye, name) for name in ("fx", "fy", "cx", "cy", "width", "height")}
    view = View(camera_from_world=torch.eye(4).cuda(), **lens)
    return BlendedDepth(alpha=leaves[4], depth=leaves[5], view=view)
