"""What Gaussians are trained towards, term by term.

SuGaR (Guedon 2024) and its public code; planar: 2DGS (Huang 2024) with the depth of RaDe-GS (Zhang 2024).
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from fieldwatch import Terms
from fieldwatch.geometry import Camera, normals_from_depth
from fieldwatch.losses import (
    Ellipsoids,
    Samples,
    beta,
    better_normal_error,
    contributions,
    density,
    density_error,
    depth_normal_error,
    flatness_error,
    ideal_density,
    near_depth,
    opacity_entropy,
    projected_distance,
    rederived_normals,
    sample_near,
    samples_on_surface_error,
    sdf_error,
    sdf_from_density,
    sdf_from_depth,
    smoothing_error,
)
from fieldwatch.pipelines.splats.config import SplatsConfig, SurfaceOptions
from fieldwatch.pipelines.splats.exposure import Exposures
from fieldwatch.pipelines.splats.growth import Sampling, mean_opacity, mean_scale
from fieldwatch.pipelines.splats.model import SplatModel
from fieldwatch.pipelines.splats.neighbourhood import Neighbourhood
from fieldwatch.pipelines.splats.sample_chunks import Errors, mean_in_chunks
from fieldwatch.pipelines.splats.scene import Scene, Shot
from fieldwatch.render import DepthMode, Splatted, depth_normal_consistency, similarity

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
class Pass:
    """One step's picture, and what it was drawn of.

    Attributes:
        step: 0-based.
        model: what was drawn.
        drawn: the picture.
        shot: the photo.
        ellipsoids: the Gaussians, as the surface terms see them.
        generator: of the samples of the density terms, on the device; None is torch's own.
    """

    step: int
    model: SplatModel
    drawn: Splatted
    shot: Shot
    ellipsoids: Ellipsoids
    generator: torch.Generator | None = None

    @classmethod
    def of(
        cls, step: int, model: SplatModel, drawn: Splatted, shot: Shot, generator: torch.Generator | None = None
    ) -> "Pass":
        """Gather them."""
        gaussians = model.gaussians
        scales, opacities = model.shapes()
        ellipsoids = Ellipsoids(
            means=gaussians.means, scales=scales, quaternions=gaussians.quaternions, opacities=opacities
        )
        return cls(step=step, model=model, drawn=drawn, shot=shot, ellipsoids=ellipsoids, generator=generator)

    @torch.no_grad()
    def psnr(self) -> Float[Tensor, ""]:
        """PSNR of the picture against the photo, dB, on the device."""
        return step_psnr(self.drawn, self.shot)

    def visible(self) -> Bool[Tensor, " n"]:
        """Tell which Gaussians the picture shows."""
        mask = torch.zeros(len(self.model.gaussians), dtype=torch.bool, device=self.drawn.ids.device)
        return mask.index_fill_(0, self.drawn.ids, value=True)


@torch.no_grad()
def step_psnr(drawn: Splatted, shot: Shot) -> Float[Tensor, ""]:
    """PSNR of a picture against its photo, dB, on the device: nothing is waited for."""
    return -10 / math.log(10) * functional.mse_loss(drawn.features.detach(), shot.image).log()


def geometry_at(config: SplatsConfig, scene: Scene, step: int) -> Geometry:
    """What the terms of a step need drawn."""
    plan = scene.plan
    if plan.acts("depth_normal_consistency", step):
        return Geometry(depth="planar" if config.regularization == "planar" else "centre", normals=True)
    return Geometry(depth="centre" if plan.acts("sdf_estimation", step) else None, normals=False)


def rendering_term(config: SplatsConfig, one: Pass) -> Terms:
    """(1 - w) L1 + w (1 - SSIM) between the drawn picture and the photo (Kerbl 2023, eq. 7)."""
    return Terms(rendering=(1.0, rendering_error(config.dssim, one.model.exposures, one.drawn, one.shot)))


def rendering_error(dssim: float, exposures: Exposures | None, drawn: Splatted, shot: Shot) -> Float[Tensor, ""]:
    """Return that term: where the photo is not masked, and under its colour map where there are any."""
    image, photo = drawn.features, shot.image
    if exposures is not None and shot.place is not None:
        image = exposures(image, shot.place)
    if shot.mask is not None:
        image, photo = image * shot.mask, photo * shot.mask
    alike = similarity(image, photo)
    return (1 - dssim) * alike.l1 + dssim * (1 - alike.ssim)


def further_terms(config: SplatsConfig, scene: Scene, one: Pass, neighbourhood: Neighbourhood, span: Span) -> Terms:
    """All terms beside the rendering one that act at this step."""
    plan, step, terms = scene.plan, one.step, Terms()
    if plan.acts("opacity", step):
        sampling = Sampling()
        terms |= Terms(
            opacity=(sampling.opacity_weight, mean_opacity(one.model.gaussians)),
            scale=(sampling.scale_weight, mean_scale(one.model.gaussians)),
        )
    if plan.acts("entropy_regularization", step):
        entropy = opacity_entropy(one.ellipsoids.opacities.index_select(0, one.drawn.ids))
        terms |= Terms(entropy_regularization=(config.surface.entropy_weight, entropy))
    if plan.acts("depth_normal_consistency", step):
        with span("loss_depth_normal"):
            error = depth_normal(config, scene.photos.cameras[one.shot.index], one)
        terms |= Terms(depth_normal_consistency=(config.surface.depth_normal_weight, error))
    if plan.acts("flatness", step):
        flat = flatness_error(one.ellipsoids.scales.index_select(0, one.drawn.ids))
        terms |= Terms(flatness=(config.surface.flatness_weight, flat / scene.extent))
    if density_acts(config, scene, step):
        with span("loss_density"):
            terms |= density_terms(config, scene, one, neighbourhood.at(step, one.model.gaussians.means))
    return terms


def density_acts(config: SplatsConfig, scene: Scene, step: int) -> bool:
    """Whether the terms that look at neighbours act at a step; the fork counts every so many-th from 1."""
    return scene.plan.compares_neighbours(step) and (step + 1) % config.surface.density_every == 0


def depth_normal(config: SplatsConfig, camera: Camera, one: Pass) -> Float[Tensor, ""]:
    """Difference between the drawn normals and those of the drawn depth, in camera axes.

    planar: alpha - <blended normals, N> where a surface is seen, N from the unbiased depth (2DGS, eq. 14).
    dn_consistency: 1 - cosine, weighted by alpha, N from the expected depth of the centres (SuGaR's public code, where
    depth is not divided by alpha, z of the normals is made of x and y, and the border counts: ``literal``).
    """
    drawn, surface = one.drawn, config.surface
    depth, blended = drawn.depth, drawn.normals
    if depth is None or blended is None:
        raise ValueError("the depth-normal term needs depth and normals: draw with those that geometry_at asks for")
    eye = replace(camera, world_from_camera=torch.eye(4, device=depth.device))
    if surface.literal:
        from_depth, _ = normals_from_depth(depth, eye)
        return depth_normal_error(rederived_normals(blended), from_depth)
    mask = None if one.shot.mask is None else one.shot.mask[..., 0] > OPAQUE
    if config.regularization == "planar":
        return depth_normal_consistency(blended, drawn.alpha, depth, camera, opaque=OPAQUE, mask=mask)
    opaque = drawn.alpha.detach() > OPAQUE
    opaque = opaque if mask is None else opaque & mask
    from_depth, valid = normals_from_depth(drawn.expected_depth(), eye, mask=opaque)
    return depth_normal_error(blended, from_depth, drawn.alpha.detach() * valid)


def density_terms(config: SplatsConfig, scene: Scene, one: Pass, table: Int[Tensor, "n k"]) -> Terms:
    """Terms that compare the density of neighbouring Gaussians with that of a surface (SuGaR, sections 4.1 and 4.2).

    Where they act at every so many-th step only, they weigh as many times more, so that their mean is the paper's; the
    public code does not do that (``literal``).
    """
    surface, ellipsoids = config.surface, one.ellipsoids
    camera = scene.photos.cameras[one.shot.index].to(scene.device, torch.float32)
    depth = _depth_before_background(one.drawn) if scene.plan.acts("sdf_estimation", one.step) else None
    candidates = one.visible()
    if depth is not None:
        candidates = candidates & near_depth(ellipsoids, depth, camera)
    count = _count(surface, len(candidates))
    samples = sample_near(ellipsoids, count, visible=candidates, generator=one.generator)

    def compared(some: Samples) -> Errors:
        return sample_errors(config, scene, one, table, some, None if depth is None else (depth, camera))

    errors = mean_in_chunks(compared, samples, ellipsoids, one.model.bands)
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
    one: Pass,
    table: Int[Tensor, "n k"],
    samples: Samples,
    seen: tuple[Float[Tensor, "height width"], Camera] | None,
) -> Errors:
    """Return the mean error of some samples for each term that acts, and of how many of them it is the mean."""
    surface, plan, ellipsoids = config.surface, scene.plan, one.ellipsoids
    rows = table.index_select(0, samples.owners).long()  # by int32, torch adds gradients one row at a time
    contributed = contributions(samples.points, rows, ellipsoids)
    own = _gathered(ellipsoids.thickness, rows)
    thickness = beta(own, surface.beta, contributed=contributed, log_beta=one.model.log_beta)
    distance, valid = projected_distance(samples, ellipsoids), None
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


def _depth_before_background(drawn: Splatted) -> Float[Tensor, "height width"]:
    """The blended depth, with the farthest there is behind everything."""
    if drawn.depth is None:
        raise ValueError("the SDF term needs depth: draw with what geometry_at asks for")
    return drawn.depth + (1 - drawn.alpha) * drawn.depth.detach().amax()
