"""Splat rasterization by native CPU kernels: single precision, bitwise independent of the number of threads."""

import ctypes
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwatch.recon.render.native import call
from fieldwatch.recon.render.splats.stages import (
    BlendedImage,
    GaussianTensors,
    ProjectedGaussians,
    RasterBackend,
    RasterOptions,
    SphericalHarmonics,
)
from fieldwatch.recon.render.splats.view import View

_TILE = 16
_RANKED_WORDS = 12  # size of struct Ranked in native/tiles.h, in 32-bit words
_ENDS_WORDS = 2 * _TILE**2  # size of struct Ends in native/rasterize.c, in 32-bit words
_GEOMETRY = 8  # gradients per pair besides the channels, as in native/rasterize.c


class CameraStruct(ctypes.Structure):
    """Memory layout of `Camera` in native/splats.h."""

    _fields_ = [
        ("rotation", ctypes.c_double * 9),
        ("translation", ctypes.c_double * 3),
        ("position", ctypes.c_double * 3),
        *[(name, ctypes.c_double) for name in ("fx", "fy", "cx", "cy", "width", "height", "near", "eps2d")],
        *[(name, ctypes.c_double) for name in ("left", "right", "top", "bottom")],
        ("antialiased", ctypes.c_int32),
    ]


def _camera(view: View, options: RasterOptions) -> CameraStruct:
    world = view.camera_from_world.detach()
    return CameraStruct(
        (ctypes.c_double * 9)(*world[:3, :3].flatten().tolist()),
        (ctypes.c_double * 3)(*world[:3, 3].tolist()),
        (ctypes.c_double * 3)(*view.position.detach().tolist()),
        *(view.fx, view.fy, view.cx, view.cy, view.width, view.height, view.near, options.eps2d),
        *view.bounds,
        int(options.antialiased),
    )


def _dense(gradient: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """Make a gradient contiguous; None becomes zeros."""
    return torch.zeros(shape) if gradient is None else gradient.contiguous()


class _Project(torch.autograd.Function):
    """Map means, quaternions, scales and opacities to the fields of `ProjectedGaussians`; unused ones are None."""

    @staticmethod
    def forward(ctx: Any, means: Tensor, quaternions: Tensor, scales: Tensor, opacities: Tensor, *settings: Any) -> Any:
        view, options = settings
        gaussians = [tensor.contiguous() for tensor in (means, quaternions, scales, opacities)]
        camera = _camera(view, options)
        count = len(means)
        ids = torch.empty(count, dtype=torch.int64)
        widths = [(2,), (3,), (), (), (), (3,) if options.normals else None, (2,) if options.slopes else None]
        columns = [None if width is None else means.new_empty((count, *width)) for width in widths]
        visible = call("fw_project", ctypes.byref(camera), count, *gaussians, torch.get_num_threads(), ids, *columns)
        # The kernel packs the visible Gaussians to the front.
        ids = ids[:visible]
        columns = [None if column is None else column[:visible] for column in columns]
        ctx.camera = camera
        ctx.save_for_backward(ids, *gaussians, columns[1])
        # columns[4] are the radii, used for densification statistics and never in a loss.
        ctx.mark_non_differentiable(ids, columns[4])
        ctx.set_materialize_grads(False)
        return (ids, *columns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        ids, *gaussians, whitening = ctx.saved_tensors
        widths = ((2,), (3,), (), ())
        upstream = [_dense(part, (len(ids), *width)) for part, width in zip(gradients[1:5], widths, strict=True)]
        upstream_optional = [None if part is None else part.contiguous() for part in gradients[6:]]
        outputs = [torch.empty_like(tensor) for tensor in gaussians]
        call(
            "fw_project_backward",
            *(ctypes.byref(ctx.camera), len(gaussians[0]), len(ids), ids, *gaussians, whitening),
            *(*upstream, *upstream_optional, torch.get_num_threads(), *outputs),
        )
        return (*outputs, None, None)


class _Harmonics(torch.autograd.Function):
    """SH colors of the visible Gaussians."""

    @staticmethod
    def forward(ctx: Any, dc: Tensor, rest: Tensor, means: Tensor, ids: Tensor, *settings: Any) -> Tensor:
        view, degree = settings
        dc = dc.contiguous()
        rest = rest.contiguous()
        means = means.contiguous()
        position = view.position.detach().to(means).contiguous()
        colors = means.new_empty((len(ids), 3))
        stride = rest.shape[1]
        threads = torch.get_num_threads()
        call("fw_harmonics", len(ids), ids, position, means, dc, rest, stride, degree, threads, colors)
        ctx.save_for_backward(ids, position, means, rest, colors)
        ctx.shape = dc.shape
        ctx.degree = degree
        return colors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        ids, position, means, rest, colors = ctx.saved_tensors
        dmeans = torch.empty_like(means)
        ddc = means.new_empty(ctx.shape)
        drest = torch.empty_like(rest)
        call(
            "fw_harmonics_backward",
            *(len(means), len(ids), ids, position, means, rest, rest.shape[1], ctx.degree, colors),
            *(gradients[0].contiguous(), torch.get_num_threads(), dmeans, ddc, drest),
        )
        return ddc, drest, dmeans, None, None, None


def _tiles(projected: tuple[Tensor, ...], columns: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort Gaussians by depth and into tiles.

    Returns the sorted Gaussians, their ranks per tile, the slot of each pair, and the first pair of each tile.
    """
    count = len(projected[0])
    threads = torch.get_num_threads()
    grid = (columns, rows, threads)
    ranked = torch.empty((count, _RANKED_WORDS), dtype=torch.int32)
    # One row per thread, so that counting needs no atomics.
    counts = torch.empty((threads, columns * rows), dtype=torch.int32)
    starts = torch.empty(columns * rows + 1, dtype=torch.int32)
    scratch = torch.empty(4 * count, dtype=torch.int32)
    pairs = call("fw_rank", count, *projected, *grid, scratch, ranked, counts, starts)
    if pairs < 0:
        raise ValueError(
            f"{count} Gaussians touch more than 2^31 tiles in total: their scales have diverged, or the image of "
            f"{columns} x {rows} tiles is too large for this number of Gaussians"
        )
    members, pair_slots = torch.empty((2, pairs), dtype=torch.int32)
    call("fw_fill", count, ranked, *grid, counts, members, pair_slots)
    return ranked, members, pair_slots, starts


class _Blend(torch.autograd.Function):
    """Map packed features, means, whitening and alphas to the image."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, means2d: Tensor, whitening: Tensor, alphas: Tensor, *settings: Any) -> Any:
        depths, view, median, absgrad = settings
        packed = packed.contiguous()
        # Rounded up: the last tiles may extend beyond the image.
        columns = -(-view.width // _TILE)
        rows = -(-view.height // _TILE)
        shape = (means2d.contiguous(), whitening.contiguous(), depths.contiguous(), alphas.contiguous())
        ranked, members, pair_slots, starts = _tiles(shape, columns, rows)
        size = (view.width, view.height, packed.shape[1], columns, rows)
        features, alpha = (
            packed.new_empty((view.height, view.width, *trailing)) for trailing in ((packed.shape[1],), ())
        )
        half = torch.empty((view.height, view.width), dtype=torch.int32) if median else None
        # Where the blending of each pixel ended: the backward pass starts there and runs back to front.
        ends = packed.new_empty((columns * rows, _ENDS_WORDS))
        outputs = (features, alpha, ends, half)
        call("fw_blend", *size, ranked, members, starts, packed, torch.get_num_threads(), *outputs)
        ctx.save_for_backward(ranked, members, pair_slots, starts, packed, ends)
        ctx.size = size
        ctx.absgrad = absgrad
        ctx.set_materialize_grads(False)
        if half is not None:
            ctx.mark_non_differentiable(half)
        return features, alpha, half

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        ranked, members, pair_slots, starts, packed, ends = ctx.saved_tensors
        count, channels = packed.shape
        image = (ctx.size[1], ctx.size[0])
        rows = packed.new_empty((len(members), channels + _GEOMETRY))
        outputs = [packed.new_empty((count, *trailing)) for trailing in ((channels,), (2,), (3,), ())]
        call(
            "fw_blend_backward",
            *(count, *ctx.size, ranked, len(members), members, pair_slots, starts, packed, ends),
            *(_dense(gradients[0], (*image, channels)), _dense(gradients[1], image), torch.get_num_threads()),
            *(rows, *outputs, ctx.absgrad),
        )
        return (*outputs, None, None, None, None)


def project(gaussians: GaussianTensors, view: View, options: RasterOptions) -> ProjectedGaussians:
    """Project the Gaussians that touch the image; see `projection.project`."""
    return ProjectedGaussians(*_Project.apply(*gaussians, view, options))


def sh_colors(
    harmonics: SphericalHarmonics, means: Float[Tensor, "n 3"], ids: Int[Tensor, " visible"], view: View
) -> Float[Tensor, "visible 3"]:
    """Evaluate view-dependent colors; see `spherical_harmonics.sh_colors`."""
    return _Harmonics.apply(harmonics.dc, harmonics.rest, means, ids, view, harmonics.degree)


def blend(
    packed: Float[Tensor, "visible channels"], projected: ProjectedGaussians, view: View, options: RasterOptions
) -> BlendedImage:
    """Blend packed features from front to back; see `reference.blend`."""
    absgrad = torch.zeros_like(projected.means2d) if options.absgrad else None
    features, alpha, half = _Blend.apply(
        packed,
        projected.means2d,
        projected.whitening,
        projected.alphas,
        projected.depths.detach(),
        *(view, options.median, absgrad),
    )
    return BlendedImage(features, alpha, half, absgrad)


NATIVE = RasterBackend(project=project, colors=sh_colors, blend=blend)
"""Backend with C kernels for the CPU, single precision."""
