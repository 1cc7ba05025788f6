"""Triangle meshes: files, reconstruction, repair, texturing, rendering, quality and evaluation."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.mesh.alignment import AlignMethod
    from fieldwatch.recon.mesh.atlas import AtlasLayout, squares_across, unwrapped
    from fieldwatch.recon.mesh.baking import BakedTexture, BakingOptions, bake_texture
    from fieldwatch.recon.mesh.cleaning import cleaned
    from fieldwatch.recon.mesh.decimation import decimated
    from fieldwatch.recon.mesh.error import MeshError
    from fieldwatch.recon.mesh.error_colors import error_colored, error_ramp
    from fieldwatch.recon.mesh.evaluation import MeshEvaluation, evaluate_mesh
    from fieldwatch.recon.mesh.evaluation_styles import EvaluationStyle, StyleLengths
    from fieldwatch.recon.mesh.files import read_mesh, write_mesh
    from fieldwatch.recon.mesh.fusion import DepthView, fuse_depths
    from fieldwatch.recon.mesh.glb import write_glb
    from fieldwatch.recon.mesh.grade import MeshGrade, grade_mesh
    from fieldwatch.recon.mesh.histogram import error_histogram, error_scale
    from fieldwatch.recon.mesh.marching import implicit_surface
    from fieldwatch.recon.mesh.orientation import facing_outward
    from fieldwatch.recon.mesh.photo_sampler import TexturePhoto
    from fieldwatch.recon.mesh.points import OrientedPoints
    from fieldwatch.recon.mesh.poisson import poisson_surface
    from fieldwatch.recon.mesh.quality import MeshQuality, mesh_quality
    from fieldwatch.recon.mesh.rendering import MeshRenderer, mesh_still, render_mesh, turntable_cameras
    from fieldwatch.recon.mesh.snapping import snapped
    from fieldwatch.recon.mesh.triangles import Triangles
    from fieldwatch.recon.mesh.trimming import trimmed, without_outliers, without_small_pieces
from fieldwatch.recon.mesh.gaussian_fitting import gaussian_fit

__all__ = [
    "AlignMethod",
    "AtlasLayout",
    "BakedTexture",
    "BakingOptions",
    "DepthView",
    "EvaluationStyle",
    "MeshError",
    "MeshEvaluation",
    "MeshGrade",
    "MeshQuality",
    "MeshRenderer",
    "OrientedPoints",
    "StyleLengths",
    "TexturePhoto",
    "Triangles",
    "bake_texture",
    "cleaned",
    "decimated",
    "error_colored",
    "error_histogram",
    "error_ramp",
    "error_scale",
    "evaluate_mesh",
    "facing_outward",
    "fuse_depths",
    "gaussian_fit",
    "grade_mesh",
    "implicit_surface",
    "mesh_quality",
    "mesh_still",
    "poisson_surface",
    "read_mesh",
    "render_mesh",
    "snapped",
    "squares_across",
    "trimmed",
    "turntable_cameras",
    "unwrapped",
    "without_outliers",
    "without_small_pieces",
    "write_glb",
    "write_mesh",
]

__getattr__, __dir__ = lazy_names(__name__)
