"""Normals: from normal maps of several views to a neural surface, poses optimised."""

from fieldwatch.pipelines.normals.algorithm import train_normals
from fieldwatch.pipelines.normals.config import NormalsConfig
from fieldwatch.pipelines.normals.evaluate import Evaluation, aligned, pose_errors
from fieldwatch.pipelines.normals.evaluate import evaluate as evaluate_surface
from fieldwatch.pipelines.normals.pictures import depth_colours, normal_colours, save_cut_out, save_picture, sheet_of
from fieldwatch.pipelines.normals.presets import PRESETS
from fieldwatch.pipelines.normals.registration import Registration, RegistrationOptions, register_view
from fieldwatch.pipelines.normals.registration_files import completed_set, read_view, write_registration
from fieldwatch.pipelines.normals.scene import Scene
from fieldwatch.pipelines.normals.start import prepare_scene
from fieldwatch.pipelines.normals.stored import StoredRun, model_from, open_run, stored_config
from fieldwatch.pipelines.normals.surface import MOST_NODES, surface_mesh
from fieldwatch.pipelines.normals.tags import NORMALS_METRICS
from fieldwatch.pipelines.normals.view_errors import Sight
from fieldwatch.pipelines.normals.views import Seen, look
from fieldwatch.pipelines.normals.world import camera_in_world, mesh_in_world, pose_in_world

__all__ = [
    "MOST_NODES",
    "NORMALS_METRICS",
    "PRESETS",
    "Evaluation",
    "NormalsConfig",
    "Registration",
    "RegistrationOptions",
    "Scene",
    "Seen",
    "Sight",
    "StoredRun",
    "aligned",
    "camera_in_world",
    "completed_set",
    "depth_colours",
    "evaluate_surface",
    "look",
    "mesh_in_world",
    "model_from",
    "normal_colours",
    "open_run",
    "pose_errors",
    "pose_in_world",
    "prepare_scene",
    "read_view",
    "register_view",
    "save_cut_out",
    "save_picture",
    "sheet_of",
    "stored_config",
    "surface_mesh",
    "train_normals",
    "write_registration",
]
