"""Loss terms of splats training.

Sources: SuGaR (Guedon 2024) and its public code; for planar, 2DGS (Huang 2024) with the depth of RaDe-GS (Zhang 2024).
"""

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from fieldwatch import Terms
from fieldwatch.recon.geometry import Camera, normals_from_depth
from fieldwatch.recon.losses import (
    Ellipsoids,
    Samples,
    depth_normal_error,
    flatness_error,
    near_depth,
    rederived_normals,
    sample_near,
)
from fieldwatch.recon.pipelines.splats.config import SURFACE_TERMS, SplatsConfig, SurfaceOptions
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.model import Shapes, SplatModel
from fieldwatch.recon.pipelines.splats.sample_chunks import mean_in_chunks
from fieldwatch.recon.pipelines.splats.scene import PhotoView, Scene
from fieldwatch.recon.pipelines.splats.schedule import Plan
from fieldwatch.recon.render import (
    DepthMode,
    ImageSimilarity,
    RenderOutput,
    depth_normal_consistency,
    image_similarity,
)
from fieldwatch.recon.render.splats import (
    BlendedDepth,
    PhotoLoss,
    SampleComparison,
    SampleErrors,
    flatness,
    photo_loss,
    sample_errors,
    sample_errors_on_gpu,
    sample_kernels_problem,
)

Span = Callable[[str], AbstractContextManager[None]]
OPAQUE = 0.5
"""Alpha above which a pixel shows a surface."""
LITERAL_SHARE = 1 / 16
"""Factor of the density in SuGaR's public SDF trainer, which uses the mean over 16 neighbors instead of the sum."""
SAMPLES_PER_GAUSSIAN = 0.25
"""Default number of samples of the density terms per Gaussian, if `SurfaceOptions.samples` is None."""


class GeometryOutputs(TypedDict):
    """Outputs that a step renders in addition to colors.

    Attributes:
        depth: kind of depth to render; None renders none.
        normals: whether to render normals.
    """

    depth: DepthMode | None
    normals: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedView:
    """A rendered view of a step together with its Gaussians: the input of the loss terms.

    Attributes:
        step: current step, 0-based.
        model: rendered model.
        output: output of the rasterizer.
        view: photo of the view.
        bands: number of bands in which the view was rendered, and of chunks in which samples are compared.
        generator: generator of the density terms' samples, on the device; None uses torch's default.
        shapes: scales and opacities that were rendered; None computes them when a term asks for them.
    """

    step: int
    model: SplatModel
    output: RenderOutput
    view: PhotoView
    bands: int = 1
    generator: torch.Generator | None = None
    shapes: Shapes | None = None

    @functools.cached_property
    def ellipsoids(self) -> Ellipsoids:
        """The Gaussians after the 3D filter as ellipsoids, for the terms of shapes and surfaces."""
        gaussians = self.model.gaussians
        scales, opacities = self.model.shapes() if self.shapes is None else self.shapes
        return Ellipsoids(means=gaussians.means, scales=scales, quaternions=gaussians.quaternions, opacities=opacities)

    def opacities(self) -> Float[Tensor, " ids"]:
        """Return the opacities of the Gaussians of `output.ids`, of which only the visible ones count."""
        opacities = self.ellipsoids.opacities
        return opacities if self.output.visible is not None else opacities.index_select(0, self.output.ids)

    def scales(self) -> Float[Tensor, "ids 3"]:
        """Return the scales of the Gaussians of `output.ids`, of which only the visible ones count; world units."""
        scales = self.ellipsoids.scales
        return scales if self.output.visible is not None else scales.index_select(0, self.output.ids)

    def flatness(self, size: float) -> Float[Tensor, ""]:
        """Return the mean smallest scale of the visible Gaussians, relative to the size of the scene."""
        scales = self.scales()
        visible = self.output.visible
        if visible is not None and scales.is_cuda:
            return flatness(scales, visible, 1 / size)
        return flatness_error(scales, visible) / size

    def visible(self) -> Bool[Tensor, " n"]:
        """Return a mask of the Gaussians that are visible in the view."""
        if self.output.visible is not None:
            return self.output.visible
        mask = torch.zeros(len(self.model.gaussians), dtype=torch.bool, device=self.output.ids.device)
        return mask.index_fill_(0, self.output.ids, value=True)


@torch.no_grad()
def step_psnr(output: RenderOutput, view: PhotoView) -> Float[Tensor, ""]:
    """Return the PSNR of a rendering and its photo, dB, on the device, without synchronization.

    With a mask, the error is the mean over its pixels, as in the evaluation; NaN if it has none.
    """
    image = output.features.detach()
    if view.mask is None:
        error = functional.mse_loss(image, view.image)
    else:
        # The mask has one channel, the image three.
        error = ((image - view.image).square() * view.mask).sum() / (3 * view.mask.sum())
    # -10 log10(MSE), with the natural logarithm that torch provides for tensors on the device.
    return -10 / math.log(10) * error.log()


def geometry_outputs(config: SplatsConfig, scene: Scene, step: int) -> GeometryOutputs:
    """Return the depth and normals that the loss terms of a step need."""
    plan = scene.plan
    # "planar" is the depth of the ray's intersection with each Gaussian's plane, "center" that of its center.
    if any(plan.acts(name, step) for name in ("depth_normal_consistency", "multi_view_depth", "multi_view_photo")):
        return GeometryOutputs(depth="planar" if config.regularization == "planar" else "center", normals=True)
    return GeometryOutputs(depth="center" if plan.acts("sdf_estimation", step) else None, normals=False)


def compare_with_photo(config: SplatsConfig, rendered: RenderedView) -> PhotoLoss:
    """Return the loss of a rendering and its photo, with a random color behind what is transparent if configured.

    With it comes the PSNR of the rendering, where our GPU kernels compute it.
    """
    behind = None
    if config.transparency == "everywhere" or (config.transparency == "random" and rendered.view.alpha is not None):
        # Both are already composited over the background: adding the difference replaces it by the random color.
        behind = random_color(rendered.generator, rendered.view.image.device) - rendered.model.background
    image, photo = compared_images(rendered.model.exposures, rendered.output, rendered.view, behind)
    found = photo_loss(image, photo, config.dssim)
    # The PSNR is that of the plain rendering.
    plain = image is rendered.output.features and photo is rendered.view.image
    return found if plain else found._replace(psnr=None)


def random_color(generator: torch.Generator | None, device: torch.device) -> Float[Tensor, "3"]:
    """Sample an RGB color in [0, 1]; None uses torch's default generator."""
    return torch.rand(3, generator=generator, device=device)


def photo_similarity(exposures: Exposures | None, output: RenderOutput, view: PhotoView) -> ImageSimilarity:
    """Return L1 and SSIM of a rendering and its photo outside the mask, after the photo's color transform if any."""
    return image_similarity(*compared_images(exposures, output, view))


def compared_images(
    exposures: Exposures | None,
    output: RenderOutput,
    view: PhotoView,
    behind: Float[Tensor, "3"] | None = None,
) -> tuple[Float[Tensor, "height width 3"], Float[Tensor, "height width 3"]]:
    """Return a rendering and its photo outside the mask, after the photo's color transform if any.

    Args:
        exposures: color transforms of the training photos; None if they are not learned.
        output: rendering, composited over the model's background.
        view: photo, composited over the same background.
        behind: color added to the background of both where they are transparent. Over a fixed background, a Gaussian of
            the background's color costs nothing; over a new color at every step, it must be transparent as well. A
            photo without alpha is opaque: a rendering that lets the background through where it is dark costs as much.
    """
    image = output.features
    photo = view.image
    if exposures is not None and view.train_index is not None:
        image = exposures(image, view.train_index)
    if behind is not None:
        # After the color transform, since the same color is added to the photo untransformed. Alpha gets a gradient.
        image = image + (1 - output.alpha)[..., None] * behind
        if view.alpha is not None:
            photo = photo + (1 - view.alpha) * behind
    # Masked pixels are 0 in both images: they count as equal in SSIM, and in L1, which is a mean over all pixels.
    if view.mask is not None:
        image = image * view.mask
        photo = photo * view.mask
    return image, photo


def density_acts(config: SplatsConfig, scene: Scene, step: int) -> bool:
    """Return whether the terms that compare neighbors act at a step; like SuGaR's script, intervals count from 1."""
    return scene.plan.compares_neighbors(step) and (step + 1) % config.surface.density_every == 0


def depth_normal(config: SplatsConfig, camera: Camera, rendered: RenderedView) -> Float[Tensor, ""]:
    """Return the difference between the rendered normals and the normals of the rendered depth, in camera axes.

    planar: alpha - <blended normals, N> where a surface is visible, N from the unbiased depth (2DGS, eq. 14).
    dn_consistency: 1 - cosine, weighted by alpha, N from the expected depth of the centers. With ``literal``, as in
    SuGaR's public code: depth not divided by alpha, z of the normals derived from x and y, border pixels included.
    """
    output = rendered.output
    surface = config.surface
    depth = output.depth
    blended = output.normals
    if depth is None or blended is None:
        raise ValueError("the depth-normal term requires depth and normals: render the outputs of geometry_outputs")
    # Rendered normals are in camera axes.
    if surface.literal:
        # As in SuGaR's code: neither masked nor weighted by alpha.
        from_depth, _ = normals_from_depth(depth, camera, frame="camera")
        return depth_normal_error(rederived_normals(blended), from_depth)
    mask = None if rendered.view.mask is None else rendered.view.mask[..., 0] > OPAQUE
    by = "difference" if config.regularization == "planar" else "cosine"
    return depth_normal_consistency(blended, output.alpha, depth, camera, opaque=OPAQUE, mask=mask, by=by)


def density_terms(config: SplatsConfig, scene: Scene, rendered: RenderedView, table: Int[Tensor, "n k"]) -> Terms:
    """Return the terms that compare the Gaussians' density with that of a surface (SuGaR, sections 4.1 and 4.2).

    If they act only at every N-th step, their weights are multiplied by N, so that their mean is the paper's. The
    public code does not do this (``literal``).
    """
    surface = config.surface
    how = SampleComparison(
        terms=_acting_comparisons(scene.plan, rendered.step),
        extent=scene.extent,
        share=LITERAL_SHARE if surface.literal else 1.0,
        beta=surface.beta,
    )
    blended = _blended_depth(rendered) if "sdf_estimation" in how.terms else None
    count = _sample_count(surface, len(rendered.ellipsoids.means))
    if _kernels_compare(rendered, how):
        errors = sample_errors_on_gpu(
            *(rendered.ellipsoids, rendered.visible(), table, how, count),
            blended=blended,
            generator=rendered.generator,
        )
    else:
        camera = scene.cameras[rendered.view.index]
        seen_from = None if blended is None else (blended.before_background(), camera)
        errors = _errors_in_torch(rendered, table, how, count, seen_from)
    # An estimate of the sum over all steps from every N-th step.
    factor = 1 if surface.literal else surface.density_every
    weights = {name: factor * getattr(surface, SURFACE_TERMS[name].weight) for name in errors}
    return Terms(**{name: (weights[name], error) for name, error in errors.items()})


def _acting_comparisons(plan: Plan, step: int) -> tuple[str, ...]:
    """Return the names of the terms that compare neighbors and act at a step."""
    return tuple(name for name, term in SURFACE_TERMS.items() if term.compares_neighbors and plan.acts(name, step))


def _kernels_compare(rendered: RenderedView, how: SampleComparison) -> bool:
    """Return whether our own GPU kernels draw and compare the samples of a view."""
    means = rendered.ellipsoids.means
    supported = means.is_cuda and means.dtype == torch.float32 and how.beta == "average"
    return supported and sample_kernels_problem() is None


def _errors_in_torch(
    rendered: RenderedView,
    table: Int[Tensor, "n k"],
    how: SampleComparison,
    count: int,
    seen_from: tuple[Float[Tensor, "height width"], Camera] | None,
) -> dict[str, Float[Tensor, ""]]:
    """Draw samples and compare them with torch's operations; in chunks if the view is rendered in bands."""
    ellipsoids = rendered.ellipsoids
    candidates = rendered.visible()
    if seen_from is not None:
        # Only Gaussians near the depth map: around occluded ones, it gives the distance to their occluder.
        candidates = candidates & near_depth(ellipsoids, *seen_from)
    # SuGaR, section 4.1: samples are drawn from the visible Gaussians themselves, so they are near the surface.
    samples = sample_near(ellipsoids, count, visible=candidates, generator=rendered.generator)

    def errors_of(chunk: Samples) -> SampleErrors:
        log_beta = rendered.model.log_beta
        return sample_errors(chunk, ellipsoids, table, how, seen_from=seen_from, log_beta=log_beta)

    return mean_in_chunks(errors_of, samples, ellipsoids, rendered.bands)


def _blended_depth(rendered: RenderedView) -> BlendedDepth:
    output = rendered.output
    if output.depth is None:
        raise ValueError("the SDF term requires depth: render the outputs of geometry_outputs")
    return BlendedDepth(depth=output.depth, alpha=output.alpha, view=rendered.view.camera)


def _sample_count(surface: SurfaceOptions, gaussians: int) -> int:
    return surface.samples or max(round(SAMPLES_PER_GAUSSIAN * gaussians), 1)
