"""The loss of Gaussians, term by term.

SuGaR (Guedon 2024) and its public code; planar: 2DGS (Huang 2024) with the depth of RaDe-GS (Zhang 2024).
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Self, TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from fieldwatch import Terms
from fieldwatch.recon.geometry import Camera, normals_from_depth
from fieldwatch.recon.losses import (
    Ellipsoids,
    Samples,
    beta,
    better_normal_error,
    contributions,
    density,
    density_error,
    depth_normal_error,
    ideal_density,
    near_depth,
    projected_distance,
    rederived_normals,
    sample_near,
    samples_on_surface_error,
    sdf_error,
    sdf_from_density,
    sdf_from_depth,
    smoothing_error,
)
from fieldwatch.recon.pipelines.splats.config import SplatsConfig, SurfaceOptions
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.sample_chunks import Errors, mean_in_chunks
from fieldwatch.recon.pipelines.splats.scene import PhotoView, Scene
from fieldwatch.recon.render import DepthMode, ImageSimilarity, RenderOutput, depth_normal_consistency, image_similarity

Span = Callable[[str], AbstractContextManager[None]]
OPAQUE = 0.5
"""Alpha from which a pixel shows a surface."""
LITERAL_SHARE = 1 / 16
"""Factor of the density in SuGaR's public SDF trainer: it takes the mean of the 16 neighbours for their sum."""
SAMPLES_PER_GAUSSIAN = 0.25
"""Samples of the density terms, where `SurfaceOptions.samples` does not say how many."""


class GeometryOutputs(TypedDict):
    """What a step renders besides colours.

    Attributes:
        depth: how depth is rendered; None renders none.
        normals: whether normals are rendered.
    """

    depth: DepthMode | None
    normals: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedView:
    """A view as a step renders it, and the Gaussians it was rendered of: what the loss terms compare.

    Attributes:
        step: 0-based.
        model: what was rendered.
        output: of the renderer.
        view: the photo.
        ellipsoids: the Gaussians, as the surface terms take them.
        bands: number of bands in which it was rendered, and of chunks in which samples are compared.
        generator: of the samples of the density terms, on the device; None is torch's own.
    """

    step: int
    model: SplatModel
    output: RenderOutput
    view: PhotoView
    ellipsoids: Ellipsoids
    bands: int = 1
    generator: torch.Generator | None = None

    @classmethod
    def of(  # noqa: PLR0913  each is an attribute
        cls,
        step: int,
        model: SplatModel,
        output: RenderOutput,
        view: PhotoView,
        *,
        bands: int = 1,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Put them together, with the Gaussians under the 3D filter as ellipsoids."""
        gaussians = model.gaussians
        scales, opacities = model.shapes()
        ellipsoids = Ellipsoids(
            means=gaussians.means, scales=scales, quaternions=gaussians.quaternions, opacities=opacities
        )
        return cls(
            step=step,
            model=model,
            output=output,
            view=view,
            ellipsoids=ellipsoids,
            bands=bands,
            generator=generator,
        )

    def opacities(self) -> Float[Tensor, " visible"]:
        """Return the opacities of the visible Gaussians."""
        return self.ellipsoids.opacities.index_select(0, self.output.ids)

    def scales(self) -> Float[Tensor, "visible 3"]:
        """Return the scales of the visible Gaussians, world units."""
        return self.ellipsoids.scales.index_select(0, self.output.ids)

    def visible(self) -> Bool[Tensor, " n"]:
        """Tell which Gaussians are visible in the view."""
        mask = torch.zeros(len(self.model.gaussians), dtype=torch.bool, device=self.output.ids.device)
        return mask.index_fill_(0, self.output.ids, value=True)


@torch.no_grad()
def step_psnr(output: RenderOutput, view: PhotoView) -> Float[Tensor, ""]:
    """Return the PSNR of a rendering against its photo, dB, on the device: nothing is waited for."""
    return -10 / math.log(10) * functional.mse_loss(output.features.detach(), view.image).log()


def geometry_outputs(config: SplatsConfig, scene: Scene, step: int) -> GeometryOutputs:
    """Return which depth and normals the terms of a step need."""
    plan = scene.plan
    if plan.acts("depth_normal_consistency", step):
        return GeometryOutputs(depth="planar" if config.regularization == "planar" else "centre", normals=True)
    return GeometryOutputs(depth="centre" if plan.acts("sdf_estimation", step) else None, normals=False)


def compare_with_photo(config: SplatsConfig, rendered: RenderedView) -> ImageSimilarity:
    """Return L1 and SSIM of a rendering and its photo; over a random color where the photo is transparent."""
    behind = None
    if config.transparency == "random" and rendered.view.alpha is not None:
        # Rendering and photo lie over the background already: adding the difference replaces it by the random color.
        behind = random_color(rendered.generator, rendered.view.image.device) - rendered.model.background
    return photo_similarity(rendered.model.exposures, rendered.output, rendered.view, behind)


def random_color(generator: torch.Generator | None, device: torch.device) -> Float[Tensor, "3"]:
    """Sample a color, red, green, blue in [0, 1]; from torch's own generator where none is given."""
    return torch.rand(3, generator=generator, device=device)


def photo_similarity(
    exposures: Exposures | None,
    output: RenderOutput,
    view: PhotoView,
    behind: Float[Tensor, "3"] | None = None,
) -> ImageSimilarity:
    """Return L1 and SSIM of a rendering and its photo, where that is not masked; under its color map if there is one.

    Args:
        exposures: the photos' color maps.
        output: the rendering, over the model's background.
        view: the photo, over the same.
        behind: added to the background of both where they are transparent. Against one background a Gaussian of that
            very color costs nothing, wherever it is; against a new color at every step it has to be transparent, too.
    """
    image = output.features
    photo = view.image
    if exposures is not None and view.train_index is not None:
        image = exposures(image, view.train_index)
    if behind is not None and view.alpha is not None:
        # After the color map: the photo gets the very same color, to which no map applies. Alpha gets a gradient here.
        image = image + (1 - output.alpha)[..., None] * behind
        photo = photo + (1 - view.alpha) * behind
    if view.mask is not None:
        image = image * view.mask
        photo = photo * view.mask
    return image_similarity(image, photo)


def density_acts(config: SplatsConfig, scene: Scene, step: int) -> bool:
    """Whether the terms that compare neighbours act at a step; the original SuGaR script counts from 1."""
    return scene.plan.compares_neighbours(step) and (step + 1) % config.surface.density_every == 0


def depth_normal(config: SplatsConfig, camera: Camera, rendered: RenderedView) -> Float[Tensor, ""]:
    """Difference between the rendered normals and those of the rendered depth, in camera axes.

    planar: alpha - <blended normals, N> where a surface is visible, N from the unbiased depth (2DGS, eq. 14).
    dn_consistency: 1 - cosine, weighted by alpha, N from the expected depth of the centres (SuGaR's public code, where
    depth is not divided by alpha, z of the normals is made of x and y, and the border counts: ``literal``).
    """
    output = rendered.output
    surface = config.surface
    depth = output.depth
    blended = output.normals
    if depth is None or blended is None:
        raise ValueError("the depth-normal term needs depth and normals: render those that geometry_outputs names")
    # The same lens at the origin: rendered normals are in camera axes.
    eye = replace(camera, world_from_camera=torch.eye(4, device=depth.device))
    if surface.literal:
        from_depth, _ = normals_from_depth(depth, eye)
        return depth_normal_error(rederived_normals(blended), from_depth)
    mask = None if rendered.view.mask is None else rendered.view.mask[..., 0] > OPAQUE
    if config.regularization == "planar":
        return depth_normal_consistency(blended, output.alpha, depth, camera, opaque=OPAQUE, mask=mask)
    opaque = output.alpha.detach() > OPAQUE
    opaque = opaque if mask is None else opaque & mask
    # The weight is detached: otherwise the term could fall by making Gaussians transparent where normals disagree.
    from_depth, valid = normals_from_depth(output.expected_depth(), eye, mask=opaque)
    return depth_normal_error(blended, from_depth, output.alpha.detach() * valid)


def density_terms(config: SplatsConfig, scene: Scene, rendered: RenderedView, table: Int[Tensor, "n k"]) -> Terms:
    """Terms that compare the density of neighbouring Gaussians with that of a surface (SuGaR, sections 4.1 and 4.2).

    Where they act at every so many-th step only, they weigh as many times more, so that their mean is the paper's; the
    public code does not do that (``literal``).
    """
    surface = config.surface
    ellipsoids = rendered.ellipsoids
    camera = scene.photos.cameras[rendered.view.index].to(scene.device, torch.float32)
    depth = _depth_before_background(rendered.output) if scene.plan.acts("sdf_estimation", rendered.step) else None
    candidates = rendered.visible()
    if depth is not None:
        # The depth map says nothing of hidden Gaussians: around them it would give the distance to what hides them.
        candidates = candidates & near_depth(ellipsoids, depth, camera)
    count = _sample_count(surface, len(candidates))
    samples = sample_near(ellipsoids, count, visible=candidates, generator=rendered.generator)

    def errors_of(chunk: Samples) -> Errors:
        return sample_errors(config, scene, rendered, table, chunk, None if depth is None else (depth, camera))

    errors = mean_in_chunks(errors_of, samples, ellipsoids, rendered.bands)
    factor = 1 if surface.literal else surface.density_every
    weights = {
        "sdf_estimation": surface.density_weight,
        "sdf_density": surface.density_weight,
        "better_normal": surface.better_normal_weight,
        "samples_on_surface": surface.samples_on_surface_weight,
        "smoothing": surface.smoothing_weight,
    }
    return Terms(**{name: (factor * weights[name], error) for name, error in errors.items()})


def sample_errors(  # noqa: PLR0913, PLR0917  settings, what was rendered, and what is compared with what
    config: SplatsConfig,
    scene: Scene,
    rendered: RenderedView,
    table: Int[Tensor, "n k"],
    samples: Samples,
    depth_and_camera: tuple[Float[Tensor, "height width"], Camera] | None,
) -> Errors:
    """Return the mean error of some samples for each term that acts, and the number of samples that it is the mean of.

    Args:
        config: settings.
        scene: the extent, and the plan of the terms.
        rendered: the Gaussians, and the step.
        table: neighbours of every Gaussian, itself included.
        samples: points, and the Gaussians they were sampled from.
        depth_and_camera: the rendered depth and its camera, for the SDF term (SuGaR, section 4.1); None for the density
            term, which takes the distance to the sample's own Gaussian.
    """
    surface = config.surface
    plan = scene.plan
    ellipsoids = rendered.ellipsoids
    # With int32 indices, the backward of torch's gather adds gradients one row at a time.
    rows = table.index_select(0, samples.owners).long()
    contributed = contributions(samples.points, rows, ellipsoids)
    thicknesses = _gathered(ellipsoids.thickness, rows)
    thickness = beta(thicknesses, surface.beta, contributed=contributed, log_beta=rendered.model.log_beta)
    distance = projected_distance(samples, ellipsoids)
    valid = None
    errors: dict[str, tuple[Tensor, Tensor | int]] = {}
    sample_count: Tensor | int = len(samples.owners)
    valid_count = sample_count
    if depth_and_camera is not None:
        distance, valid = sdf_from_depth(samples.points, *depth_and_camera)
        valid_count = valid.sum()
        share = LITERAL_SHARE if surface.literal else 1.0
        # SuGaR, eq. 7 and 8: the distance that the density stands for, against that of the depth map.
        sdf = sdf_from_density(share * density(contributed), thickness)
        errors["sdf_estimation"] = sdf_error(sdf, distance, scene.extent, valid), valid_count
    elif plan.acts("sdf_density", rendered.step):
        # SuGaR, eq. 5: the same comparison by densities, with the distance to the plane of the sample's own Gaussian.
        errors["sdf_density"] = density_error(density(contributed), ideal_density(distance, thickness)), sample_count
    if plan.acts("better_normal", rendered.step):
        errors["better_normal"] = better_normal_error(samples, rows, contributed, ellipsoids), sample_count
    if plan.acts("samples_on_surface", rendered.step):
        errors["samples_on_surface"] = samples_on_surface_error(distance, scene.extent, valid), valid_count
    if plan.acts("smoothing", rendered.step):
        errors["smoothing"] = smoothing_error(ellipsoids, samples.owners, rows, scene.extent), sample_count
    return errors


def _sample_count(surface: SurfaceOptions, gaussians: int) -> int:
    return surface.samples or max(round(SAMPLES_PER_GAUSSIAN * gaussians), 1)


def _gathered(values: Float[Tensor, " n"], rows: Int[Tensor, "samples k"]) -> Float[Tensor, "samples k"]:
    return values.index_select(0, rows.reshape(-1)).view(rows.shape)


def _depth_before_background(output: RenderOutput) -> Float[Tensor, "height width"]:
    """The blended depth, with the largest depth of the view behind everything."""
    if output.depth is None:
        raise ValueError("the SDF term needs depth: render what geometry_outputs names")
    # A depth of 0 would be a surface at the camera; SuGaR's code puts the depth of the farthest center there.
    # Detached, so that the background pulls on no Gaussian.
    return output.depth + (1 - output.alpha) * output.depth.detach().amax()
