"""Meshes of triangles: what follows from their faces, files, quality."""

from fieldwatch.mesh.edges import Edges
from fieldwatch.mesh.error import MeshError
from fieldwatch.mesh.files import read_mesh, write_mesh
from fieldwatch.mesh.grade import MeshGrade, grade_mesh
from fieldwatch.mesh.quality import MeshQuality, aspect_ratios, mesh_quality
from fieldwatch.mesh.triangles import Triangles

__all__ = [
    "Edges",
    "MeshError",
    "MeshGrade",
    "MeshQuality",
    "Triangles",
    "aspect_ratios",
    "grade_mesh",
    "mesh_quality",
    "read_mesh",
    "write_mesh",
]
