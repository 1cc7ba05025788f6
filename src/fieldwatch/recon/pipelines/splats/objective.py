"""What Gaussians are trained towards, term by term.

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


class Geometry(TypedDict):
    """What a step draws beside colours.

    Attributes:
        depth: how depth is drawn; None draws none.
        normals: whether normals are drawn.
    """

    depth: DepthMode | None
    normals: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedView:
    """A view as a step renders it, and the Gaussians it was rendered of: what the loss terms compare.

    Attributes:
        step: 0-based.
        model: what was rendered.
        rendered: the rendering.
        view: the photo.
        ellipsoids: the Gaussians, as the surface terms see them.
        bands: number of bands in which it was rendered, and of chunks in which samples are compared.
        generator: of the samples of the density terms, on the device; None is torch's own.
    """

    step: int
    model: SplatModel
    rendered: RenderOutput
    view: PhotoView
    ellipsoids: Ellipsoids
    bands: int = 1
    generator: torch.Generator | None = None

    @classmethod
    def of(  # noqa: PLR0913  each is an attribute
        cls,
        step: int,
        model: SplatModel,
        rendered: RenderOutput,
        view: PhotoView,
        *,
        bands: int = 1,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Gather them."""
        gaussians = model.gaussians
        scales, opacities = model.shapes()
        ellipsoids = Ellipsoids(
            means=gaussians.means, scales=scales, quaternions=gaussians.quaternions, opacities=opacities
        )
        return cls(
            step=step,
            model=model,
            rendered=rendered,
            view=view,
            ellipsoids=ellipsoids,
            bands=bands,
            generator=generator,
        )

    def opacities(self) -> Float[Tensor, " visible"]:
        """Return the opacities of the visible Gaussians."""
        return self.ellipsoids.opacities.index_select(0, self.rendered.ids)

    def scales(self) -> Float[Tensor, "visible 3"]:
        """Return the scales of the visible Gaussians, world units."""
        return self.ellipsoids.scales.index_select(0, self.rendered.ids)

    def visible(self) -> Bool[Tensor, " n"]:
        """Tell which Gaussians the picture shows."""
        mask = torch.zeros(len(self.model.gaussians), dtype=torch.bool, device=self.rendered.ids.device)
        return mask.index_fill_(0, self.rendered.ids, value=True)


@torch.no_grad()
def step_psnr(rendered: RenderOutput, view: PhotoView) -> Float[Tensor, ""]:
    """Return the PSNR of a rendering against its photo, dB, on the device: nothing is waited for."""
    return -10 / math.log(10) * functional.mse_loss(rendered.features.detach(), view.image).log()


def geometry_at(config: SplatsConfig, scene: Scene, step: int) -> Geometry:
    """What the terms of a step need drawn."""
    plan = scene.plan
    if plan.acts("depth_normal_consistency", step):
        return Geometry(depth="planar" if config.regularization == "planar" else "centre", normals=True)
    return Geometry(depth="centre" if plan.acts("sdf_estimation", step) else None, normals=False)


def compare_with_photo(config: SplatsConfig, one: RenderedView) -> ImageSimilarity:
    """Return L1 and SSIM of a rendering and its photo; over a random color where the photo is transparent."""
    behind = None
    if config.transparency == "random" and one.view.alpha is not None:
        behind = random_color(one.generator, one.view.image.device) - one.model.background
    return photo_similarity(one.model.exposures, one.rendered, one.view, behind)


def random_color(generator: torch.Generator | None, device: torch.device) -> Float[Tensor, "3"]:
    """Draw a color, red, green, blue in [0, 1]; from torch's own generator where none is given."""
    return torch.rand(3, generator=generator, device=device)


def photo_similarity(
    exposures: Exposures | None,
    rendered: RenderOutput,
    view: PhotoView,
    behind: Float[Tensor, "3"] | None = None,
) -> ImageSimilarity:
    """Return L1 and SSIM of a rendering and its photo, where that is not masked; under its color map if there is one.

    Args:
        exposures: the photos' color maps.
        rendered: the rendering, over the model's background.
        view: the photo, over the same.
        behind: added to the background of both where they are transparent. Against one background a Gaussian of that
            very color costs nothing, wherever it is; against a new color at every step it has to be transparent, too.
    """
    image = rendered.features
    photo = view.image
    if exposures is not None and view.place is not None:
        image = exposures(image, view.place)
    if behind is not None and view.alpha is not None:
        image = image + (1 - rendered.alpha)[..., None] * behind
        photo = photo + (1 - view.alpha) * behind
    if view.mask is not None:
        image = image * view.mask
        photo = photo * view.mask
    return image_similarity(image, photo)


def density_acts(config: SplatsConfig, scene: Scene, step: int) -> bool:
    """Whether the terms that look at neighbours act at a step; the original SuGaR script counts from 1."""
    return scene.plan.compares_neighbours(step) and (step + 1) % config.surface.density_every == 0


def depth_normal(config: SplatsConfig, camera: Camera, one: RenderedView) -> Float[Tensor, ""]:
    """Difference between the drawn normals and those of the drawn depth, in camera axes.

    planar: alpha - <blended normals, N> where a surface is seen, N from the unbiased depth (2DGS, eq. 14).
    dn_consistency: 1 - cosine, weighted by alpha, N from the expected depth of the centres (SuGaR's public code, where
    depth is not divided by alpha, z of the normals is made of x and y, and the border counts: ``literal``).
    """
    rendered = one.rendered
    surface = config.surface
    depth = rendered.depth
    blended = rendered.normals
    if depth is None or blended is None:
        raise ValueError("the depth-normal term needs depth and normals: draw with those that geometry_at asks for")
    eye = replace(camera, world_from_camera=torch.eye(4, device=depth.device))
    if surface.literal:
        from_depth, _ = normals_from_depth(depth, eye)
        return depth_normal_error(rederived_normals(blended), from_depth)
    mask = None if one.view.mask is None else one.view.mask[..., 0] > OPAQUE
    if config.regularization == "planar":
        return depth_normal_consistency(blended, rendered.alpha, depth, camera, opaque=OPAQUE, mask=mask)
    opaque = rendered.alpha.detach() > OPAQUE
    opaque = opaque if mask is None else opaque & mask
    from_depth, valid = normals_from_depth(rendered.expected_depth(), eye, mask=opaque)
    return depth_normal_error(blended, from_depth, rendered.alpha.detach() * valid)


def density_terms(config: SplatsConfig, scene: Scene, one: RenderedView, table: Int[Tensor, "n k"]) -> Terms:
    """Terms that compare the density of neighbouring Gaussians with that of a surface (SuGaR, sections 4.1 and 4.2).

    Where they act at every so many-th step only, they weigh as many times more, so that their mean is the paper's; the
    public code does not do that (``literal``).
    """
    surface = config.surface
    ellipsoids = one.ellipsoids
    camera = scene.photos.cameras[one.view.index].to(scene.device, torch.float32)
    depth = _depth_before_background(one.rendered) if scene.plan.acts("sdf_estimation", one.step) else None
    candidates = one.visible()
    if depth is not None:
        candidates = candidates & near_depth(ellipsoids, depth, camera)
    count = _count(surface, len(candidates))
    samples = sample_near(ellipsoids, count, visible=candidates, generator=one.generator)

    def compared(some: Samples) -> Errors:
        return sample_errors(config, scene, one, table, some, None if depth is None else (depth, camera))

    errors = mean_in_chunks(compared, samples, ellipsoids, one.bands)
    often = 1 if surface.literal else surface.density_every
    weights = {
        "sdf_estimation": surface.density_weight,
        "sdf_density": surface.density_weight,
        "better_normal": surface.better_normal_weight,
        "samples_on_surface": surface.samples_on_surface_weight,
        "smoothing": surface.smoothing_weight,
    }
    return Terms(**{name: (often * weights[name], error) for name, error in errors.items()})


def sample_errors(  # noqa: PLR0913, PLR0917  settings, what was drawn, and what is compared with what
    config: SplatsConfig,
    scene: Scene,
    one: RenderedView,
    table: Int[Tensor, "n k"],
    samples: Samples,
    seen: tuple[Float[Tensor, "height width"], Camera] | None,
) -> Errors:
    """Return the mean error of some samples for each term that acts, and of how many of them it is the mean."""
    surface = config.surface
    plan = scene.plan
    ellipsoids = one.ellipsoids
    rows = table.index_select(0, samples.owners).long()  # by int32, torch adds gradients one row at a time
    contributed = contributions(samples.points, rows, ellipsoids)
    own = _gathered(ellipsoids.thickness, rows)
    thickness = beta(own, surface.beta, contributed=contributed, log_beta=one.model.log_beta)
    distance = projected_distance(samples, ellipsoids)
    valid = None
    errors: dict[str, tuple[Tensor, Tensor | int]] = {}
    everyone: Tensor | int = len(samples.owners)
    counted = everyone
    if seen is not None:
        distance, valid = sdf_from_depth(samples.points, *seen)
        counted = valid.sum()
        share = LITERAL_SHARE if surface.literal else 1.0
        sdf = sdf_from_density(share * density(contributed), thickness)
        errors["sdf_estimation"] = sdf_error(sdf, distance, scene.extent, valid), counted
    elif plan.acts("sdf_density", one.step):
        errors["sdf_density"] = density_error(density(contributed), ideal_density(distance, thickness)), everyone
    if plan.acts("better_normal", one.step):
        errors["better_normal"] = better_normal_error(samples, rows, contributed, ellipsoids), everyone
    if plan.acts("samples_on_surface", one.step):
        errors["samples_on_surface"] = samples_on_surface_error(distance, scene.extent, valid), counted
    if plan.acts("smoothing", one.step):
        errors["smoothing"] = smoothing_error(ellipsoids, samples.owners, rows, scene.extent), everyone
    return errors


def _count(surface: SurfaceOptions, gaussians: int) -> int:
    return surface.samples or max(round(SAMPLES_PER_GAUSSIAN * gaussians), 1)


def _gathered(values: Float[Tensor, " n"], rows: Int[Tensor, "samples k"]) -> Float[Tensor, "samples k"]:
    return values.index_select(0, rows.reshape(-1)).view(rows.shape)


def _depth_before_background(rendered: RenderOutput) -> Float[Tensor, "height width"]:
    """The blended depth, with the farthest there is behind everything."""
    if rendered.depth is None:
        raise ValueError("the SDF term needs depth: draw with what geometry_at asks for")
    return rendered.depth + (1 - rendered.alpha) * rendered.depth.detach().amax()
