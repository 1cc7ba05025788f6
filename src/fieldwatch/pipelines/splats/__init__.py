"""Gaussian splats: from photos to Gaussians that lie on the surface."""

from fieldwatch.pipelines.splats.algorithm import STAGE0, train_splats
from fieldwatch.pipelines.splats.coarse_file import fused_cloud, write_coarse_file
from fieldwatch.pipelines.splats.config import GrowthOptions, RateOptions, SplatsConfig, SurfaceOptions
from fieldwatch.pipelines.splats.evaluate import Evaluation, evaluate
from fieldwatch.pipelines.splats.gaussians import Gaussians, NotFiniteError, Rows
from fieldwatch.pipelines.splats.meshing import Extraction, ExtractOptions, extract_mesh
from fieldwatch.pipelines.splats.model import SplatModel, view_of
from fieldwatch.pipelines.splats.novel_views import (
    render_path,
    render_view,
    save_picture,
    spiral_views,
    turntable_views,
)
from fieldwatch.pipelines.splats.orbit import upwards
from fieldwatch.pipelines.splats.presets import PRESETS
from fieldwatch.pipelines.splats.products import write_geometry, write_products, write_renders, write_stage0
from fieldwatch.pipelines.splats.rates import Rates, make_optimizer
from fieldwatch.pipelines.splats.refined import (
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
from fieldwatch.pipelines.splats.scene import Scene, Shot
from fieldwatch.pipelines.splats.show import worst_views, write_table
from fieldwatch.pipelines.splats.start import prepare_scene
from fieldwatch.pipelines.splats.stored import StoredRun, open_run, stored_config
from fieldwatch.pipelines.splats.tags import SPLATS_METRICS

__all__ = [
    "PRESETS",
    "REFINED_METRICS",
    "REFINED_PIPELINE",
    "REFINE_PRESETS",
    "SPLATS_METRICS",
    "STAGE0",
    "BoundGaussians",
    "Evaluation",
    "ExtractOptions",
    "Extraction",
    "Gaussians",
    "GrowthOptions",
    "NotFiniteError",
    "RateOptions",
    "Rates",
    "RefineConfig",
    "RefineOptions",
    "RefineRates",
    "RefinedRun",
    "Refinement",
    "Rows",
    "Scene",
    "Shot",
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
