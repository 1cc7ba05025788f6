"""Tags of the mesh that `--extract-test-meshes` makes at every evaluation: those of SuGaR's mesh quality tool."""

from fieldwatch import Metric
from fieldwatch.pipeline import Better


def _metric(name: str, unit: str, meaning: str, better: Better = "none", expected: str = "") -> Metric:
    return Metric(name=f"Mesh/{name}", unit=unit, meaning=meaning, better=better, expected=expected)


_TOPOLOGY = (
    _metric("Topology/n_vertices", "", "Vertices of the test mesh."),
    _metric("Topology/n_faces", "", "Triangles of the test mesh."),
    _metric("Topology/n_edges", "", "Its edges, each counted once."),
    _metric("Topology/is_watertight", "", "1 if every edge has exactly two faces, else 0.", "higher"),
    _metric("Topology/n_boundary_edges", "", "Edges of one face: rims and holes.", "lower", "falls as holes close"),
    _metric("Topology/n_duplicate_vertices", "", "Vertices at the place of an earlier one.", "lower", "0"),
)
_QUALITY = (
    _metric("Quality/min_triangle_area", "world²", "Smallest triangle."),
    _metric("Quality/avg_triangle_area", "world²", "Mean area of the triangles."),
    _metric("Quality/max_triangle_area", "world²", "Largest triangle."),
    _metric("Quality/min_aspect_ratio", "", "Worst 4 sqrt(3) area / (a² + b² + c²) of a triangle.", "higher"),
    _metric("Quality/avg_aspect_ratio", "", "Mean of that; 1 is equilateral.", "higher", "above 0.6"),
    _metric("Quality/max_aspect_ratio", "", "Best of that.", "higher"),
    _metric("Quality/n_degenerate_triangles", "", "Triangles with an aspect ratio below 1e-6.", "lower", "0"),
    _metric("Quality/n_low_quality_triangles", "", "Triangles with an aspect ratio below 0.3.", "lower"),
    _metric("Quality/min_edge_length", "world", "Shortest edge."),
    _metric("Quality/avg_edge_length", "world", "Mean length of the edges."),
    _metric("Quality/max_edge_length", "world", "Longest edge."),
    _metric("Quality/edge_length_uniformity", "", "1 - std / mean of the edges' lengths.", "higher", "above 0.7"),
)
_GEOMETRY = (
    _metric("Geometry/bbox_volume", "world³", "Volume of the box around the mesh."),
    _metric("Geometry/bbox_diagonal", "world", "Diagonal of that box.", "none", "steady: growth is a stray piece"),
    _metric("Geometry/surface_area", "world²", "Area of all triangles.", "none", "falls as the surface gets smoother"),
    _metric("Geometry/bbox_aspect_ratio", "", "Longest over shortest side of that box."),
)
_SURFACE = (
    _metric("Surface/avg_normal_consistency", "", "Mean cosine between neighbours' normals.", "higher", "above 0.8"),
    _metric("Surface/n_flipped_normals", "", "Faces wound against those around them.", "lower", "0"),
    _metric("Surface/n_degenerate_normals", "", "Vertices whose faces' normals cancel out.", "lower"),
    _metric("Surface/avg_vertex_valence", "", "Mean number of edges at a vertex.", "none", "near 6"),
)
_FIT = (
    _metric("GaussianFit/coverage", "", "Share of opaque Gaussians' centres inside the mesh; only where it is closed."),
    _metric("GaussianFit/avg_distance", "world", "Mean distance of those centres to the mesh.", "lower", "falls"),
    _metric("GaussianFit/max_distance", "world", "Largest distance of those centres to the mesh.", "lower"),
)

MESH = (*_TOPOLOGY, *_QUALITY, *_GEOMETRY, *_SURFACE, *_FIT)
"""Every one of them."""
