"""Metrics of the mesh that `--extract-test-meshes` extracts at every evaluation, as in SuGaR's mesh quality tool."""

from fieldwatch import Metric
from fieldwatch.pipeline import Better


def _metric(name: str, unit: str, meaning: str, better: Better = "none", expected: str = "") -> Metric:
    return Metric(name=f"Mesh/{name}", unit=unit, meaning=meaning, better=better, expected=expected)


_TOPOLOGY = (
    _metric("Topology/n_vertices", "", "Vertices of the test mesh."),
    _metric("Topology/n_faces", "", "Triangles of the test mesh."),
    _metric("Topology/n_edges", "", "Unique edges of the test mesh."),
    _metric("Topology/is_watertight", "", "1 if every edge has exactly two faces, else 0.", "higher"),
    _metric("Topology/n_boundary_edges", "", "Edges with one face: rims and holes.", "lower", "falls as holes close"),
    _metric("Topology/n_duplicate_vertices", "", "Vertices that coincide with an earlier vertex.", "lower", "0"),
)
_QUALITY = (
    _metric("Quality/min_triangle_area", "world²", "Area of the smallest triangle."),
    _metric("Quality/avg_triangle_area", "world²", "Mean area of the triangles."),
    _metric("Quality/max_triangle_area", "world²", "Area of the largest triangle."),
    _metric("Quality/min_aspect_ratio", "", "Lowest aspect ratio 4 sqrt(3) area / (a² + b² + c²).", "higher"),
    _metric("Quality/avg_aspect_ratio", "", "Mean aspect ratio; 1 for equilateral triangles.", "higher", "above 0.6"),
    _metric("Quality/max_aspect_ratio", "", "Highest aspect ratio.", "higher"),
    _metric("Quality/n_degenerate_triangles", "", "Triangles with an aspect ratio below 1e-6.", "lower", "0"),
    _metric("Quality/n_low_quality_triangles", "", "Triangles with an aspect ratio below 0.3.", "lower"),
    _metric("Quality/min_edge_length", "world", "Length of the shortest edge."),
    _metric("Quality/avg_edge_length", "world", "Mean edge length."),
    _metric("Quality/max_edge_length", "world", "Length of the longest edge."),
    _metric("Quality/edge_length_uniformity", "", "1 - std / mean of the edge lengths.", "higher", "above 0.7"),
)
_GEOMETRY = (
    _metric("Geometry/bbox_volume", "world³", "Volume of the bounding box."),
    _metric("Geometry/bbox_diagonal", "world", "Diagonal of the bounding box.", "none", "steady; strays enlarge it"),
    _metric("Geometry/surface_area", "world²", "Total area of the triangles.", "none", "falls as it gets smoother"),
    _metric("Geometry/bbox_aspect_ratio", "", "Longest over shortest side of the bounding box."),
)
_SURFACE = (
    _metric("Surface/avg_normal_consistency", "", "Mean cosine between adjacent normals.", "higher", "above 0.8"),
    _metric("Surface/n_flipped_normals", "", "Faces wound opposite to their neighbors.", "lower", "0"),
    _metric("Surface/n_degenerate_normals", "", "Vertices whose face normals cancel out.", "lower"),
    _metric("Surface/avg_vertex_valence", "", "Mean number of edges per vertex.", "none", "near 6"),
)
_FIT = (
    _metric("GaussianFit/coverage", "", "Fraction of opaque Gaussians' centers inside the mesh; only if it is closed."),
    _metric("GaussianFit/avg_distance", "world", "Mean distance of these centers to the mesh.", "lower", "falls"),
    _metric("GaussianFit/max_distance", "world", "Largest distance of these centers to the mesh.", "lower"),
)

MESH = (*_TOPOLOGY, *_QUALITY, *_GEOMETRY, *_SURFACE, *_FIT)
"""All metrics of the test mesh."""
