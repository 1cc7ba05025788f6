"""Loss terms, one per function."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.losses.density_field import (
        BetaMode,
        beta,
        contributions,
        density,
        density_error,
        ideal_density,
        sdf_from_density,
    )
    from fieldwatch.recon.losses.ellipsoids import (
        Ellipsoids,
        Samples,
        flatness_error,
        opacity_entropy,
        sample_near,
        take_rows,
    )
    from fieldwatch.recon.losses.fusion import pixel_loss
    from fieldwatch.recon.losses.normals import depth_normal_error, normal_consistency_error, rederived_normals
    from fieldwatch.recon.losses.perceptual import Lpips, find_lpips, find_lpips_files
    from fieldwatch.recon.losses.point_clouds import matched_error, surface_error
    from fieldwatch.recon.losses.rendered_surface import (
        depth_scale,
        depth_scale_error,
        difference_cost,
        eikonal_error,
        mask_error,
        normal_error,
    )
    from fieldwatch.recon.losses.semantic import cosine, cosine_error
    from fieldwatch.recon.losses.smoothing import smoothing_error
    from fieldwatch.recon.losses.structural import ms_ssim, ssim
    from fieldwatch.recon.losses.surface import (
        better_normal_error,
        near_depth,
        projected_distance,
        samples_on_surface_error,
        sdf_error,
        sdf_from_depth,
    )
    from fieldwatch.recon.losses.view_consistency import view_consistency_error

__all__ = [
    "BetaMode",
    "Ellipsoids",
    "Lpips",
    "Samples",
    "beta",
    "better_normal_error",
    "contributions",
    "cosine",
    "cosine_error",
    "density",
    "density_error",
    "depth_normal_error",
    "depth_scale",
    "depth_scale_error",
    "difference_cost",
    "eikonal_error",
    "find_lpips",
    "find_lpips_files",
    "flatness_error",
    "ideal_density",
    "mask_error",
    "matched_error",
    "ms_ssim",
    "near_depth",
    "normal_consistency_error",
    "normal_error",
    "opacity_entropy",
    "pixel_loss",
    "projected_distance",
    "rederived_normals",
    "sample_near",
    "samples_on_surface_error",
    "sdf_error",
    "sdf_from_density",
    "sdf_from_depth",
    "smoothing_error",
    "ssim",
    "surface_error",
    "take_rows",
    "view_consistency_error",
]

__getattr__, __dir__ = lazy_names(__name__)
