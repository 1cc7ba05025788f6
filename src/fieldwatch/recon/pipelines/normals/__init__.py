"""Normals: reconstruct a neural surface from multi-view normal maps and optimize the camera poses."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.pipelines.normals.algorithm import train_normals
    from fieldwatch.recon.pipelines.normals.config import NormalsConfig
    from fieldwatch.recon.pipelines.normals.evaluate import NormalsEvaluation, align_mesh, evaluate_surface, pose_errors
    from fieldwatch.recon.pipelines.normals.model import NormalsModel
    from fieldwatch.recon.pipelines.normals.pictures import (
        depth_colors,
        normal_colors,
        save_cut_out,
        save_picture,
        sheet_of,
    )
    from fieldwatch.recon.pipelines.normals.presets import PRESETS
    from fieldwatch.recon.pipelines.normals.registration import Registration, RegistrationOptions, register_view
    from fieldwatch.recon.pipelines.normals.registration_files import completed_set, read_view, write_registration
    from fieldwatch.recon.pipelines.normals.rules import NORMALS_RULES
    from fieldwatch.recon.pipelines.normals.scene import NormalsScene
    from fieldwatch.recon.pipelines.normals.start import prepare_scene
    from fieldwatch.recon.pipelines.normals.stored import StoredNormalsRun, model_from, open_run, stored_config
    from fieldwatch.recon.pipelines.normals.surface import MOST_NODES, surface_mesh
    from fieldwatch.recon.pipelines.normals.tags import NORMALS_METRICS
    from fieldwatch.recon.pipelines.normals.view_errors import ViewComparison
    from fieldwatch.recon.pipelines.normals.views import RenderedSurface, render_view
    from fieldwatch.recon.pipelines.normals.world import camera_in_world, mesh_in_world, pose_in_world

__all__ = [
    "MOST_NODES",
    "NORMALS_METRICS",
    "NORMALS_RULES",
    "PRESETS",
    "NormalsConfig",
    "NormalsEvaluation",
    "NormalsModel",
    "NormalsScene",
    "Registration",
    "RegistrationOptions",
    "RenderedSurface",
    "StoredNormalsRun",
    "ViewComparison",
    "align_mesh",
    "camera_in_world",
    "completed_set",
    "depth_colors",
    "evaluate_surface",
    "mesh_in_world",
    "model_from",
    "normal_colors",
    "open_run",
    "pose_errors",
    "pose_in_world",
    "prepare_scene",
    "read_view",
    "register_view",
    "render_view",
    "save_cut_out",
    "save_picture",
    "sheet_of",
    "stored_config",
    "surface_mesh",
    "train_normals",
    "write_registration",
]

__getattr__, __dir__ = lazy_names(__name__)
