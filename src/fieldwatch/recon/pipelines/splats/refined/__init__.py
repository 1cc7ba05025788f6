"""Refinement of a mesh: Gaussians bound to its triangles are trained with its vertices (SuGaR, section 4.3)."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.pipelines.splats.refined.algorithm import refine_mesh
    from fieldwatch.recon.pipelines.splats.refined.binding import BoundGaussians, BoundRows, face_normals
    from fieldwatch.recon.pipelines.splats.refined.config import RefineConfig, RefineOptions, RefineRates
    from fieldwatch.recon.pipelines.splats.refined.displacement import REFINED_METRICS
    from fieldwatch.recon.pipelines.splats.refined.objective import inner_pairs, normal_consistency
    from fieldwatch.recon.pipelines.splats.refined.pattern import PATTERNS, Pattern
    from fieldwatch.recon.pipelines.splats.refined.preparation import Refinement, prepare_refinement
    from fieldwatch.recon.pipelines.splats.refined.presets import REFINE_PRESETS
    from fieldwatch.recon.pipelines.splats.refined.products import refined_triangles, write_refined_file
    from fieldwatch.recon.pipelines.splats.refined.start import REFINED_PIPELINE
    from fieldwatch.recon.pipelines.splats.refined.stored import (
        RefinedRun,
        open_drawn_run,
        open_refined_run,
        stored_refine_config,
    )

__all__ = [
    "PATTERNS",
    "REFINED_METRICS",
    "REFINED_PIPELINE",
    "REFINE_PRESETS",
    "BoundGaussians",
    "BoundRows",
    "Pattern",
    "RefineConfig",
    "RefineOptions",
    "RefineRates",
    "RefinedRun",
    "Refinement",
    "face_normals",
    "inner_pairs",
    "normal_consistency",
    "open_drawn_run",
    "open_refined_run",
    "prepare_refinement",
    "refine_mesh",
    "refined_triangles",
    "stored_refine_config",
    "write_refined_file",
]

__getattr__, __dir__ = lazy_names(__name__)
