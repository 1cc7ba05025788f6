"""Meshes of triangles: what follows from their faces, files, quality."""

from fieldwatch.recon.mesh.alignment import AlignMethod, align_mesh
from fieldwatch.recon.mesh.atlas import AtlasLayout, squares_across, unwrapped
from fieldwatch.recon.mesh.baking import BakedTexture, BakingOptions, bake_texture
from fieldwatch.recon.mesh.cleaning import cleaned
from fieldwatch.recon.mesh.closest import ClosestPoints, SurfaceSearch, closest_points
from fieldwatch.recon.mesh.decimation import decimated
from fieldwatch.recon.mesh.edges import Edges
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.error_colours import error_coloured, error_ramp
from fieldwatch.recon.mesh.evaluation import MeshEvaluation, ThresholdScore, evaluate_mesh
from fieldwatch.recon.mesh.evaluation_styles import EvaluationStyle, StyleLengths
from fieldwatch.recon.mesh.files import read_mesh, write_mesh
from fieldwatch.recon.mesh.fusion import DepthView, fuse_depths
from fieldwatch.recon.mesh.gaussian_fit import gaussian_fit
from fieldwatch.recon.mesh.glb import write_glb
from fieldwatch.recon.mesh.glb_reader import read_glb
from fieldwatch.recon.mesh.grade import MeshGrade, grade_mesh
from fieldwatch.recon.mesh.histogram import error_histogram, error_scale
from fieldwatch.recon.mesh.inside import encloses, points_inside
from fieldwatch.recon.mesh.marching import implicit_surface, marching_cubes
from fieldwatch.recon.mesh.open3d import open3d_poisson
from fieldwatch.recon.mesh.orientation import facing_outward
from fieldwatch.recon.mesh.page import mesh_page
from fieldwatch.recon.mesh.photo_sampler import TexturePhoto
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.poisson import PoissonSurface, poisson_surface
from fieldwatch.recon.mesh.quality import MeshQuality, aspect_ratios, mesh_quality
from fieldwatch.recon.mesh.rendering import MeshRenderer, Shading, mesh_still, render_mesh, turntable_cameras
from fieldwatch.recon.mesh.sampling import SurfaceSamples, sample_surface, thinned
from fieldwatch.recon.mesh.snapping import snapped
from fieldwatch.recon.mesh.triangles import Triangles
from fieldwatch.recon.mesh.trimming import trimmed, without_outliers, without_small_pieces
from fieldwatch.recon.mesh.visibility import visible_points

__all__ = [
    "AlignMethod",
    "AtlasLayout",
    "BakedTexture",
    "BakingOptions",
    "ClosestPoints",
    "DepthView",
    "Edges",
    "EvaluationStyle",
    "MeshError",
    "MeshEvaluation",
    "MeshGrade",
    "MeshQuality",
    "MeshRenderer",
    "OrientedPoints",
    "PoissonSurface",
    "Shading",
    "StyleLengths",
    "SurfaceSamples",
    "SurfaceSearch",
    "TexturePhoto",
    "ThresholdScore",
    "Triangles",
    "align_mesh",
    "aspect_ratios",
    "bake_texture",
    "cleaned",
    "closest_points",
    "decimated",
    "encloses",
    "error_coloured",
    "error_histogram",
    "error_ramp",
    "error_scale",
    "evaluate_mesh",
    "facing_outward",
    "fuse_depths",
    "gaussian_fit",
    "grade_mesh",
    "implicit_surface",
    "marching_cubes",
    "mesh_page",
    "mesh_quality",
    "mesh_still",
    "open3d_poisson",
    "points_inside",
    "poisson_surface",
    "read_glb",
    "read_mesh",
    "render_mesh",
    "sample_surface",
    "snapped",
    "squares_across",
    "thinned",
    "trimmed",
    "turntable_cameras",
    "unwrapped",
    "visible_points",
    "without_outliers",
    "without_small_pieces",
    "write_glb",
    "write_mesh",
]
