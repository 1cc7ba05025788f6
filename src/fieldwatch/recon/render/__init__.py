"""Renderers for Gaussian splats, signed distance fields and triangles, with native kernels for the CPU."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.render.depth_normals import depth_normal_consistency, depth_normal_consistency_reference
    from fieldwatch.recon.render.encoding import HashEncoding, HashLevel, hash_encode_reference
    from fieldwatch.recon.render.native import NativeUnavailable, native_available
    from fieldwatch.recon.render.sdf import (
        BoundedRays,
        Cells,
        Chunks,
        CollapseDetector,
        Composited,
        Deviation,
        DistanceField,
        FilledSamples,
        OccupancyConfig,
        OccupancyGrid,
        PackedSamples,
        SampleBudget,
        SectionOpacities,
        Sections,
        composite,
        composite_sections,
        empty_share,
        evaluate_in_chunks,
        fill_empty,
        geometric_step,
        gradient_ad,
        gradient_dfd,
        gradient_fd,
        gradients_in_chunks,
        neus_alpha,
        plane_distances,
        points_along,
        section_alpha,
        section_opacities,
        transmittance,
    )
    from fieldwatch.recon.render.sdf.compositing_gpu import blend_on_device
    from fieldwatch.recon.render.sdf.losses_gpu import ObservedRays, RayTerms, ray_terms, view_losses_on_device
    from fieldwatch.recon.render.sdf.marching_gpu import DeviceSamples, StrideSearch, find_samples, visible_on_device
    from fieldwatch.recon.render.sdf.rays_gpu import DrawnRays, draw_rays, moved_poses, placed_rays
    from fieldwatch.recon.render.sdf_field import HashSdf
    from fieldwatch.recon.render.sdf_kernels import sdf_kernels_problem
    from fieldwatch.recon.render.splats import (
        DensificationStatistics,
        DepthMode,
        RenderOutput,
        View,
        VisibleRows,
        any_visible,
        apply_3d_filter,
        count_visible,
        fill_visible,
        gsplat_problem,
        rasterize,
        rotations,
        splat_kernels_problem,
    )
    from fieldwatch.recon.render.triangles import CastBackend, Hits, cast_triangles
    from fieldwatch.recon.render.visible_adam import VisibleAdam, visible_adam_problem
from fieldwatch.recon.render.similarity import ImageSimilarity, image_similarity, image_similarity_reference

__all__ = [
    "BoundedRays",
    "CastBackend",
    "Cells",
    "Chunks",
    "CollapseDetector",
    "Composited",
    "DensificationStatistics",
    "DepthMode",
    "Deviation",
    "DeviceSamples",
    "DistanceField",
    "DrawnRays",
    "FilledSamples",
    "HashEncoding",
    "HashLevel",
    "HashSdf",
    "Hits",
    "ImageSimilarity",
    "NativeUnavailable",
    "ObservedRays",
    "OccupancyConfig",
    "OccupancyGrid",
    "PackedSamples",
    "RayTerms",
    "RenderOutput",
    "SampleBudget",
    "SectionOpacities",
    "Sections",
    "StrideSearch",
    "View",
    "VisibleAdam",
    "VisibleRows",
    "any_visible",
    "apply_3d_filter",
    "blend_on_device",
    "cast_triangles",
    "composite",
    "composite_sections",
    "count_visible",
    "depth_normal_consistency",
    "depth_normal_consistency_reference",
    "draw_rays",
    "empty_share",
    "evaluate_in_chunks",
    "fill_empty",
    "fill_visible",
    "find_samples",
    "geometric_step",
    "gradient_ad",
    "gradient_dfd",
    "gradient_fd",
    "gradients_in_chunks",
    "gsplat_problem",
    "hash_encode_reference",
    "image_similarity",
    "image_similarity_reference",
    "moved_poses",
    "native_available",
    "neus_alpha",
    "placed_rays",
    "plane_distances",
    "points_along",
    "rasterize",
    "ray_terms",
    "rotations",
    "sdf_kernels_problem",
    "section_alpha",
    "section_opacities",
    "splat_kernels_problem",
    "transmittance",
    "view_losses_on_device",
    "visible_adam_problem",
    "visible_on_device",
]

__getattr__, __dir__ = lazy_names(__name__)
