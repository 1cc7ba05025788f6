"""Presets: named configurations to start from."""

from collections.abc import Callable
from dataclasses import replace

from fieldwatch.recon.pipelines.normals.config import (
    FieldOptions,
    NormalsConfig,
    NormalsRateOptions,
    PoseOptions,
    RayOptions,
    RenderOptions,
    TermOptions,
)

# No depth term: with known poses, normals and masks determine the surface, including its scale.
KNOWN_POSES = ("fit@0 normal=1 mask=1 eikonal=0.1",)
"""A single stage: with known poses, all terms can act from the start."""

# PMNI keeps every checkpoint: one each 2,500 of 30,000 iterations, to compare them afterwards.
_ALL_CHECKPOINTS = 12
# 256 rays in the first 500 iterations, then 512.
_RAYS = RayOptions(rays_per_view=512, warm_up_rays=256, warm_up_rays_until=500)


def _field(*, finest: int, first_levels: float, levels_by: int) -> FieldOptions:
    """Return a field with eight levels, the coarsest with 16 cells."""
    return FieldOptions(
        base_resolution=16,
        finest_resolution=finest,
        # Twice the rows for a finer lattice, which would otherwise have more hash collisions.
        table_bits=18 if finest > 256 else 17,
        first_levels=first_levels,
        levels_by=levels_by,
    )


def _sharpening(*, last_sharpness: float, last_step: float) -> RenderOptions:
    """Return rendering options with a scheduled sharpness, which does not depend on the number of steps."""
    return RenderOptions(
        grid_resolution=64,
        grid_every=16,
        first_step=3e-2,
        last_step=last_step,
        unseen=1e-3,
        sharpness="scheduled",
        first_sharpness=20.0,
        last_sharpness=last_sharpness,
        empty_samples=32,
    )


FEW_VIEWS = RayOptions(rays=768, sample_budget=12_000, views_per_step=4, views_per_graph=4)
"""An adaptive number of rays: few while the surface is blurred and each ray needs many samples, more as it sharpens."""
# Learning rates for thousands instead of tens of thousands of steps, without clipping.
QUICK = NormalsRateOptions(lr=1e-3, lr_table=1e-2, lr_poses=4e-3, lr_poses_late=4e-3, clip=0.0, clip_poses=0.0)


MANY_RAYS = replace(FEW_VIEWS, rays=2048, sample_budget=10_000)
"""The same where faint samples are dropped: a ray then needs less than half of them."""


def default() -> NormalsConfig:
    """Known poses: the built-in object in minutes on two CPU cores, or any set of maps in the given number of steps."""
    return NormalsConfig(
        steps=2000,
        stages=KNOWN_POSES,
        sdf=_field(finest=256, first_levels=4.0, levels_by=15_000),
        rendering=_sharpening(last_sharpness=500.0, last_step=4e-3),
        rays=FEW_VIEWS,
        rates=QUICK,
        mesh_at=0,
        evaluate_at=15_000,
    )


def cpu() -> NormalsConfig:
    """Known poses: twenty views of 256 pixels in five to twelve minutes on two CPU cores, depending on their speed."""
    return NormalsConfig(
        steps=10_000,
        stages=KNOWN_POSES,
        sdf=_field(finest=512, first_levels=4.0, levels_by=10_000),
        # A faint sample costs as much as any other and hardly counts: more rays are worth more.
        rendering=replace(_sharpening(last_sharpness=1600.0, last_step=1.9e-3), alpha_threshold=1e-3),
        rays=MANY_RAYS,
        rates=QUICK,
        mesh_at=0,
        evaluate_at=15_000,
    )


def poses() -> NormalsConfig:
    """Approximate poses, optimized with the surface from coarse to fine, in four to eight minutes on one CPU core.

    Every step samples all views. The pose learning rate falls to a quarter once the poses are roughly right, because
    the remaining error is proportional to the learning rate and the noise of single views.
    """
    return NormalsConfig(
        steps=6000,
        stages=KNOWN_POSES,
        sdf=_field(finest=256, first_levels=2.0, levels_by=20_000),
        rendering=_sharpening(last_sharpness=400.0, last_step=4e-3),
        rays=replace(FEW_VIEWS, views_per_step=0, views_per_graph=20),
        rates=replace(QUICK, lr_poses_late=1e-3, poses_late_from=7500),
        poses=PoseOptions(learn_rotation=True, learn_translation=True, poses_from=2000),
        mesh_at=0,
        evaluate_at=15_000,
    )


def pmni() -> NormalsConfig:
    """PMNI's data terms on a staged schedule of 30,000 iterations; known poses.

    A step samples 512 rays of every view, in the first 500 iterations 256.
    """
    return NormalsConfig(rays=_RAYS, keep_last=_ALL_CHECKPOINTS)


def gpu() -> NormalsConfig:
    """Return the settings of `pmni` with twenty views per autograd graph, for any GPU with 8 GB or more.

    A step is a single graph, which may hold 2.6 million samples in half a GiB.
    """
    return replace(pmni(), rays=replace(_RAYS, views_per_graph=20))


def parity() -> NormalsConfig:
    """PMNI's formulas on the schedule of `pmni`: blended normals, rays inside and outside the mask unbalanced."""
    return NormalsConfig(
        rays=_RAYS,
        terms=TermOptions(rendered_normals="blended", balanced=False),
        poses=PoseOptions(learn_rotation=True, learn_translation=True),
        keep_last=_ALL_CHECKPOINTS,
    )


PRESETS: dict[str, Callable[[], NormalsConfig]] = {
    "default": default,
    "cpu": cpu,
    "poses": poses,
    "pmni": pmni,
    "gpu": gpu,
    "parity": parity,
}
"""All presets by name."""
