"""Rasterization of Gaussians by any backend."""

import functools
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch.recon.render.gpu import kernels_problem
from fieldwatch.recon.render.native import native_available
from fieldwatch.recon.render.splats import kernel_trial, kernels
from fieldwatch.recon.render.splats.batched import BATCHED
from fieldwatch.recon.render.splats.cuda import GSPLAT, gsplat_problem
from fieldwatch.recon.render.splats.native import NATIVE
from fieldwatch.recon.render.splats.reference import REFERENCE
from fieldwatch.recon.render.splats.spherical_harmonics import MAX_DEGREE
from fieldwatch.recon.render.splats.stages import (
    BlendedImage,
    GaussianTensors,
    ProjectedGaussians,
    RasterBackend,
    RasterOptions,
    SphericalHarmonics,
)
from fieldwatch.recon.render.splats.view import View
from fieldwatch.recon.render.splats.visible import VisibleRows
from fieldwatch.recon.transfers import constant

Backend = Literal["auto", "reference", "native", "kernels", "gsplat", "batched"]
DepthMode = Literal["center", "planar"]

_NOTHING = "nothing to render: pass spherical_harmonics, features, a depth mode or normals=True"
_BACKENDS = {"reference": REFERENCE, "native": NATIVE, "gsplat": GSPLAT, "batched": BATCHED}


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderOutput:
    """A rendered view and the visible Gaussians. Optional outputs are None if they were not requested.

    Attributes:
        features: blended colors (if SH coefficients were given), then blended features, over the background.
        alpha: accumulated opacity, in [0, 1].
        depth: z depth in world units, summed with the blending weights; see `expected_depth` for the quotient by alpha.
        normals: thinnest axes in camera axes, toward the camera, summed with the blending weights.
        median_depth: depth of the Gaussian at which the transmittance falls below 1/2; 0 if it never does.
        median_ids: index of that Gaussian; -1 if there is none.
        ids: indices of the visible Gaussians, ascending.
        radii: three standard deviations along the longer axis in image space in pixels, one per id.
        means2d: projected centers in pixels, one per id; retains its gradient (`means2d.grad`) after backward, except
            that of our own GPU kernels beside `absgrad`.
        absgrad: sums of the absolute values of that gradient over pixels; filled by backward.
        visible: which of `ids` are visible; None if all are. The GPU kernels return all Gaussians, so that the host
            need not wait for the number of visible ones.
    """

    features: Float[Tensor, "height width channels"]
    alpha: Float[Tensor, "height width"]
    depth: Float[Tensor, "height width"] | None
    normals: Float[Tensor, "height width 3"] | None
    median_depth: Float[Tensor, "height width"] | None
    median_ids: Int[Tensor, "height width"] | None
    ids: Int[Tensor, " visible"]
    radii: Float[Tensor, " visible"]
    means2d: Float[Tensor, "visible 2"]
    absgrad: Float[Tensor, "visible 2"] | None
    visible: Bool[Tensor, " visible"] | None = None

    @property
    def visible_rows(self) -> VisibleRows:
        """Rows of the visible Gaussians; or `visible`, if `ids` are all rows."""
        return self.ids if self.visible is None else self.visible

    def expected_depth(self, least: float = 1e-6) -> Float[Tensor, "height width"]:
        """Return depth divided by alpha in world units; alpha is clamped to at least `least`.

        Raises:
            ValueError: no depth was rendered.
        """
        if self.depth is None:
            raise ValueError("no depth was rendered: call rasterize(..., depth='center') or depth='planar'")
        return self.depth / self.alpha.clamp_min(least)


def rasterize(  # noqa: PLR0913  four tensors are the Gaussians, the rest are options of one image
    means: Float[Tensor, "n 3"],
    quaternions: Float[Tensor, "n 4"],
    scales: Float[Tensor, "n 3"],
    opacities: Float[Tensor, " n"],
    view: View,
    *,
    spherical_harmonics: tuple[Float[Tensor, "n 1 3"], Float[Tensor, "n k 3"]] | None = None,
    sh_degree: int = MAX_DEGREE,
    features: Float[Tensor, "n c"] | None = None,
    background: Float[Tensor, " channels"] | None = None,
    depth: DepthMode | None = None,
    normals: bool = False,
    median: bool = False,
    eps2d: float = 0.3,
    antialiased: bool = False,
    absgrad: bool = False,
    backend: Backend = "auto",
) -> RenderOutput:
    """Rasterize Gaussians as 3DGS does (Kerbl 2023).

    Args:
        means: centers in world units.
        quaternions: rotations (w, x, y, z) of any length.
        scales: standard deviations along the axes of the Gaussian in world units (after exp).
        opacities: opacities in (0, 1) (after the sigmoid).
        view: camera.
        spherical_harmonics: SH coefficients of degree 0 and of the higher degrees, for view-dependent colors.
        sh_degree: SH degree to evaluate, 0 to 3; at most that of the coefficients.
        features: values of any width per Gaussian, blended unchanged.
        background: one value per blended channel, composited behind the Gaussians.
        depth: "center" blends the depths of the centers. "planar" blends the depths at which each Gaussian has its
            maximum on the ray of the pixel, a plane per Gaussian (RaDe-GS, Zhang 2024), which is unbiased on slanted
            surfaces.
        normals: whether to blend the thinnest axes.
        median: whether to compute the median depth, of the same mode as `depth` ("center" if None).
        eps2d: low-pass dilation, the variance added to every Gaussian in image space, in squared pixels.
        antialiased: whether to compensate the opacity for the dilation (the 2D filter of Mip-Splatting, Yu 2024).
        absgrad: whether to sum absolute view-space gradients (AbsGS, Ye 2024); not supported by the reference.
        backend: "auto" selects on CUDA our own kernels for float32 and up to 24 channels if `splat_kernels_problem`
            finds none, else gsplat if `gsplat_problem` finds none, else "batched", plain torch operations over all
            tiles at once; on the CPU the native kernels for float32 if `native_available`, else the reference.

    Raises:
        ValueError: there is nothing to blend, the degree exceeds the coefficients, or the backend does not support an
            option.
        NativeUnavailable: the backend is "native", and the kernels cannot be built.
        KernelsUnavailable: the backend is "kernels", and they cannot be compiled or loaded.
    """
    requested = {"normals": normals, "slopes": depth == "planar", "median": median, "absgrad": absgrad}
    options = RasterOptions(eps2d=eps2d, antialiased=antialiased, **requested)
    gaussians = GaussianTensors(means, quaternions, scales, opacities)
    if backend == "kernels" or (backend == "auto" and _kernels_work(gaussians, spherical_harmonics, features)):
        colors = None
        if spherical_harmonics is not None:
            _check_degree(sh_degree, spherical_harmonics[1].shape[1])
            colors = SphericalHarmonics(*spherical_harmonics, sh_degree)
        _check_requested(colors, features, depth, normals=normals)
        named = {"harmonics": colors, "features": features, "background": background, "depth": depth}
        return _of_kernels(kernels.render(gaussians, view, options, **named))
    chosen = _choose_backend(backend, means)
    projected = _with_retained_gradient(chosen.project(gaussians, view, options))
    # All channels are blended in one pass: colors, features, then depth and normals.
    visible_features: list[Tensor] = []
    if spherical_harmonics is not None:
        _check_degree(sh_degree, spherical_harmonics[1].shape[1])
        visible_features.append(
            chosen.colors(SphericalHarmonics(*spherical_harmonics, sh_degree), means, projected.ids, view)
        )
    if features is not None:
        visible_features.append(features[projected.ids])
    channels = sum(part.shape[1] for part in visible_features)
    blended = chosen.blend(
        _concatenated([*visible_features, *_geometry_channels(projected, view, depth)]), projected, view, options
    )
    output = _split_channels(blended, projected, view, channels, depth)
    return output if background is None else _over_background(output, background)


def splat_kernels_problem() -> str | None:
    """Return why our own kernels cannot rasterize on the current GPU; None if they can.

    The first call compiles them, which takes seconds, and compares a small image and its gradients with torch's.
    """
    return kernels_problem(kernels.PROJECTION, lambda: kernel_trial.difference(rasterize))


def _kernels_work(
    gaussians: GaussianTensors,
    spherical_harmonics: tuple[Tensor, Tensor] | None,
    features: Tensor | None,
) -> bool:
    """Return whether our own GPU kernels can render an image of these Gaussians."""
    means = gaussians.means
    channels = 6 + (3 if spherical_harmonics is not None else 0) + (0 if features is None else features.shape[1])
    if means.device.type != "cuda" or means.dtype != torch.float32 or channels > kernels.MOST_CHANNELS:
        return False
    return splat_kernels_problem() is None


def _of_kernels(rendered: kernels.KernelRendering) -> RenderOutput:
    means2d = rendered.means2d
    return RenderOutput(**rendered._asdict(), ids=_all_rows(len(means2d), means2d.device))


@functools.lru_cache(maxsize=8)
def _all_rows(count: int, device: torch.device) -> Int[Tensor, " n"]:
    # A tensor made in inference mode could never take part in a training.
    with torch.inference_mode(False):
        return torch.arange(count, device=device)


def _choose_backend(name: str, means: Tensor) -> RasterBackend:
    if name != "auto":
        return _BACKENDS[name]
    if means.device.type == "cuda":
        # gsplat adds gradients in no fixed order, which torch cannot know of.
        return BATCHED if torch.are_deterministic_algorithms_enabled() or gsplat_problem() else GSPLAT
    # The native kernels are single precision only; double precision runs in the reference.
    return NATIVE if means.dtype == torch.float32 and native_available()[0] else REFERENCE


def _check_degree(degree: int, coefficients: int) -> None:
    if not 0 <= degree <= MAX_DEGREE or (degree + 1) ** 2 - 1 > coefficients:
        raise ValueError(
            f"SH of degree {degree} needs {(degree + 1) ** 2 - 1} coefficients per channel besides the first, got "
            f"{coefficients}: pass a degree from 0 to {MAX_DEGREE}, at most that of the coefficients"
        )


def _with_retained_gradient(projected: ProjectedGaussians) -> ProjectedGaussians:
    if projected.means2d.requires_grad:
        # Not a leaf: without this, densification would find no gradient.
        projected.means2d.retain_grad()
    return projected


def _over_background(output: RenderOutput, background: Float[Tensor, " channels"]) -> RenderOutput:
    return replace(output, features=output.features + (1 - output.alpha)[..., None] * background)


def _concatenated(parts: list[Tensor]) -> Float[Tensor, "visible channels"]:
    if not parts:
        raise ValueError(_NOTHING)
    return torch.cat(parts, 1)


def _check_requested(
    colors: SphericalHarmonics | None, features: Tensor | None, depth: str | None, *, normals: bool
) -> None:
    if colors is None and features is None and depth is None and not normals:
        raise ValueError(_NOTHING)


def _image_center(view: View, like: Tensor) -> Float[Tensor, "2"]:
    return constant((view.width / 2, view.height / 2), like)


def _geometry_channels(projected: ProjectedGaussians, view: View, depth: DepthMode | None) -> list[Tensor]:
    """Return the channels of depth and normals.

    A planar depth is linear over the image: its value at the image center and two slopes.
    """
    channels: list[Tensor] = []
    if depth == "center":
        channels.append(projected.depths[:, None])
    elif projected.slopes is not None:
        from_center = _image_center(view, projected.means2d) - projected.means2d
        at_center = projected.depths + (projected.slopes * from_center).sum(-1)
        channels += [at_center[:, None], projected.slopes]
    if projected.normals is not None:
        channels.append(projected.normals)
    return channels


def _pixel_offsets(view: View, like: Tensor) -> tuple[Float[Tensor, "1 width"], Float[Tensor, "height 1"]]:
    """Pixel centers, from the image's center."""
    # Coordinates from the center keep the products small, and with them the rounding of planar depths.
    across = torch.arange(view.width, device=like.device, dtype=like.dtype) + (0.5 - view.width / 2)
    down = torch.arange(view.height, device=like.device, dtype=like.dtype) + (0.5 - view.height / 2)
    return across[None, :], down[:, None]


def _split_channels(
    blended: BlendedImage,
    projected: ProjectedGaussians,
    view: View,
    channels: int,
    depth: DepthMode | None,
) -> RenderOutput:
    """Split the blended channels in one operation: separate slices would each allocate a full image of gradients."""
    widths = [channels, {"center": 1, "planar": 3}.get(depth or "", 0), 3 if projected.normals is not None else 0]
    features, depth_channels, normals = blended.features.split(widths, -1)
    depth_map = depth_channels[..., 0] if depth else None
    if depth == "planar":
        at_center, right, down = depth_channels.unbind(-1)
        across, downwards = _pixel_offsets(view, depth_channels)
        depth_map = at_center + across * right + downwards * down
    return RenderOutput(
        features=features,
        alpha=blended.alpha,
        depth=depth_map,
        normals=normals if projected.normals is not None else None,
        median_depth=None if blended.median is None else _median_depth(blended.median, projected, view),
        median_ids=None if blended.median is None else _median_ids(blended.median, projected),
        ids=projected.ids,
        radii=projected.radii,
        means2d=projected.means2d,
        absgrad=blended.absgrad,
    )


def _median_depth(
    rows: Int[Tensor, "height width"], projected: ProjectedGaussians, view: View
) -> Float[Tensor, "height width"]:
    """Return the depth of the median Gaussian of each pixel, on its plane if slopes are known."""
    known = rows >= 0
    gaussian_rows = rows[known].long()
    depths = projected.depths[gaussian_rows]
    if projected.slopes is not None:
        across, down = _pixel_offsets(view, depths)
        pixels = torch.stack(torch.broadcast_tensors(across, down), -1)[known] + _image_center(view, depths)
        depths = depths + (projected.slopes[gaussian_rows] * (pixels - projected.means2d[gaussian_rows])).sum(-1)
    return depths.new_zeros(rows.shape).masked_scatter(known, depths)


def _median_ids(rows: Int[Tensor, "height width"], projected: ProjectedGaussians) -> Int[Tensor, "height width"]:
    """Map rows of packed Gaussians to Gaussian indices."""
    known = rows >= 0
    ids = projected.ids.new_full(rows.shape, -1)
    return ids.masked_scatter(known, projected.ids[rows[known].long()])
