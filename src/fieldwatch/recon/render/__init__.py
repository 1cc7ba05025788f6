"""Renderers for Gaussian splats, signed distance fields and triangles, with native kernels for the CPU."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.render.depth_normals import (
        depth_normal_consistency,
        depth_normal_consistency_reference,
        depth_normals_problem,
    )
    from fieldwatch.recon.render.encoding import HashEncoding, HashLevel, hash_encode_reference
    from fieldwatch.recon.render.native import NativeUnavailable, native_available, native_note
    from fieldwatch.recon.render.sdf import (
        BoundedRays,
        Cells,
        Chunks,
        CollapseDetector,
        Composited,
        Deviation,
        DistanceField,
        OccupancyConfig,
        OccupancyGrid,
        PackedSamples,
        SampleBudget,
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
    from fieldwatch.recon.render.sdf_field import HashSdf
    from fieldwatch.recon.render.splats import (
        DensificationStatistics,
        DepthMode,
        RenderOutput,
        View,
        apply_3d_filter,
        rasterize,
        rotations,
    )
    from fieldwatch.recon.render.triangles import cast_triangles
    from fieldwatch.recon.render.visible_adam import VisibleAdam, visible_adam_problem
from fieldwatch.recon.render.similarity import ImageSimilarity, image_similarity, image_similarity_reference

__all__ = [
    "BoundedRays",
    "Cells",
    "Chunks",
    "CollapseDetector",
    "Composited",
    "DensificationStatistics",
    "DepthMode",
    "Deviation",
    "DistanceField",
    "HashEncoding",
    "HashLevel",
    "HashSdf",
    "ImageSimilarity",
    "NativeUnavailable",
    "OccupancyConfig",
    "OccupancyGrid",
    "PackedSamples",
    "RenderOutput",
    "SampleBudget",
    "Sections",
    "View",
    "VisibleAdam",
    "apply_3d_filter",
    "cast_triangles",
    "composite",
    "composite_sections",
    "depth_normal_consistency",
    "depth_normal_consistency_reference",
    "depth_normals_problem",
    "empty_share",
    "evaluate_in_chunks",
    "fill_empty",
    "geometric_step",
    "gradient_ad",
    "gradient_dfd",
    "gradient_fd",
    "gradients_in_chunks",
    "hash_encode_reference",
    "image_similarity",
    "image_similarity_reference",
    "native_available",
    "native_note",
    "neus_alpha",
    "plane_distances",
    "points_along",
    "rasterize",
    "rotations",
    "section_alpha",
    "section_opacities",
    "transmittance",
    "visible_adam_problem",
]

__getattr__, __dir__ = lazy_names(__name__)
