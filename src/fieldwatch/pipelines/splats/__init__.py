"""Gaussian splats: from photos to Gaussians that lie on the surface."""

from fieldwatch.pipelines.splats.algorithm import STAGE0, Outcome, train_splats
from fieldwatch.pipelines.splats.coarse_file import fused_cloud, write_coarse_file
from fieldwatch.pipelines.splats.config import Device, GrowthOptions, RateOptions, SplatsConfig, SurfaceOptions
from fieldwatch.pipelines.splats.evaluate import Evaluation, evaluate
from fieldwatch.pipelines.splats.gaussians import Gaussians, NotFiniteError, Rows
from fieldwatch.pipelines.splats.model import SplatModel, view_of
from fieldwatch.pipelines.splats.novel_views import (
    render_path,
    render_view,
    save_picture,
    spiral_views,
    turntable_views,
)
from fieldwatch.pipelines.splats.presets import PRESETS
from fieldwatch.pipelines.splats.products import write_geometry, write_products, write_renders, write_stage0
from fieldwatch.pipelines.splats.rates import Rates, make_optimizer
from fieldwatch.pipelines.splats.scene import Scene, Shot
from fieldwatch.pipelines.splats.show import worst_views, write_table
from fieldwatch.pipelines.splats.start import prepare_scene
from fieldwatch.pipelines.splats.stored import StoredRun, Which, open_run, stored_config, stored_preset
from fieldwatch.pipelines.splats.tags import SPLATS_METRICS

__all__ = [
    "PRESETS",
    "SPLATS_METRICS",
    "STAGE0",
    "Device",
    "Evaluation",
    "Gaussians",
    "GrowthOptions",
    "NotFiniteError",
    "Outcome",
    "RateOptions",
    "Rates",
    "Rows",
    "Scene",
    "Shot",
    "SplatModel",
    "SplatsConfig",
    "StoredRun",
    "SurfaceOptions",
    "Which",
    "evaluate",
    "fused_cloud",
    "make_optimizer",
    "open_run",
    "prepare_scene",
    "render_path",
    "render_view",
    "save_picture",
    "spiral_views",
    "stored_config",
    "stored_preset",
    "train_splats",
    "turntable_views",
    "view_of",
    "worst_views",
    "write_coarse_file",
    "write_geometry",
    "write_products",
    "write_renders",
    "write_stage0",
    "write_table",
]
