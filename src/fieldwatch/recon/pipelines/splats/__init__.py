"""Gaussian splats pipeline: train Gaussians on photos so that they align with the surface."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.pipelines.splats.algorithm import STAGE0, train_splats
    from fieldwatch.recon.pipelines.splats.coarse_file import fused_cloud, write_coarse_file
    from fieldwatch.recon.pipelines.splats.config import DensificationOptions, RateOptions, SplatsConfig, SurfaceOptions
    from fieldwatch.recon.pipelines.splats.evaluation import Evaluation, evaluate
    from fieldwatch.recon.pipelines.splats.evaluation_record import worst_views, write_table
    from fieldwatch.recon.pipelines.splats.gaussians import Gaussians, NotFiniteError, Rows
    from fieldwatch.recon.pipelines.splats.meshing import Extraction, ExtractOptions, extract_mesh
    from fieldwatch.recon.pipelines.splats.model import SplatModel, view_of
    from fieldwatch.recon.pipelines.splats.novel_views import (
        render_path,
        render_view,
        save_picture,
        spiral_views,
        turntable_views,
    )
    from fieldwatch.recon.pipelines.splats.orbit import upwards
    from fieldwatch.recon.pipelines.splats.presets import PRESETS
    from fieldwatch.recon.pipelines.splats.products import write_geometry, write_products, write_renders, write_stage0
    from fieldwatch.recon.pipelines.splats.rates import Rates, make_optimizer
    from fieldwatch.recon.pipelines.splats.refined import (
        REFINE_PRESETS,
        REFINED_METRICS,
        REFINED_PIPELINE,
        BoundGaussians,
        RefineConfig,
        RefinedRun,
        Refinement,
        RefineOptions,
        RefineRates,
        open_drawn_run,
        open_refined_run,
        prepare_refinement,
        refine_mesh,
        refined_triangles,
        stored_refine_config,
        write_refined_file,
    )
    from fieldwatch.recon.pipelines.splats.rules import SPLATS_RULES
    from fieldwatch.recon.pipelines.splats.scene import PhotoView, Scene
    from fieldwatch.recon.pipelines.splats.start import prepare_scene
    from fieldwatch.recon.pipelines.splats.stored import StoredRun, open_run, stored_config
    from fieldwatch.recon.pipelines.splats.tags import SPLATS_METRICS

__all__ = [
    "PRESETS",
    "REFINED_METRICS",
    "REFINED_PIPELINE",
    "REFINE_PRESETS",
    "SPLATS_METRICS",
    "SPLATS_RULES",
    "STAGE0",
    "BoundGaussians",
    "DensificationOptions",
    "Evaluation",
    "ExtractOptions",
    "Extraction",
    "Gaussians",
    "NotFiniteError",
    "PhotoView",
    "RateOptions",
    "Rates",
    "RefineConfig",
    "RefineOptions",
    "RefineRates",
    "RefinedRun",
    "Refinement",
    "Rows",
    "Scene",
    "SplatModel",
    "SplatsConfig",
    "StoredRun",
    "SurfaceOptions",
    "evaluate",
    "extract_mesh",
    "fused_cloud",
    "make_optimizer",
    "open_drawn_run",
    "open_refined_run",
    "open_run",
    "prepare_refinement",
    "prepare_scene",
    "refine_mesh",
    "refined_triangles",
    "render_path",
    "render_view",
    "save_picture",
    "spiral_views",
    "stored_config",
    "stored_refine_config",
    "train_splats",
    "turntable_views",
    "upwards",
    "view_of",
    "worst_views",
    "write_coarse_file",
    "write_geometry",
    "write_products",
    "write_refined_file",
    "write_renders",
    "write_stage0",
    "write_table",
]

__getattr__, __dir__ = lazy_names(__name__)
