"""Quality metrics of a mesh: topology, triangle shapes, extents and normals."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles

_LOW_QUALITY = 0.3
_DEGENERATE = 1e-6
"""Aspect ratio of a triangle about 600,000 times as long as high; independent of scale, unlike an area."""
_CANCELLED = 0.1  # length of the mean normal of a vertex below which its normals cancel out
_MIB = 2**20

_TAGS = {
    "Topology": "n_vertices n_faces n_edges is_watertight n_boundary_edges n_duplicate_vertices",
    "Quality": "min_triangle_area avg_triangle_area max_triangle_area min_aspect_ratio avg_aspect_ratio "
    "max_aspect_ratio n_degenerate_triangles n_low_quality_triangles min_edge_length avg_edge_length max_edge_length "
    "edge_length_uniformity",
    "Geometry": "bbox_volume bbox_diagonal surface_area bbox_aspect_ratio",
    "Surface": "avg_normal_consistency n_flipped_normals n_degenerate_normals avg_vertex_valence",
}


@dataclass(frozen=True, kw_only=True)
class MeshQuality:
    """Quality metrics of a mesh. Lengths are in world units.

    Vertices at equal positions count as one for all metrics about edges, so that vertices duplicated along texture
    seams do not appear as holes.

    Attributes:
        n_vertices: number of stored vertices, duplicate and unused ones included.
        n_faces: number of triangles.
        n_edges: number of undirected edges.
        is_watertight: whether every edge has exactly two faces.
        is_winding_consistent: whether neighboring faces run along their common edge in opposite directions.
        n_boundary_edges: number of edges with one face.
        n_duplicate_vertices: number of vertices at the position of an earlier one.
        min_triangle_area: smallest triangle area.
        max_triangle_area: largest triangle area.
        avg_triangle_area: mean triangle area.
        std_triangle_area: population standard deviation of the triangle area.
        n_degenerate_triangles: number of triangles with an aspect ratio below 1e-6.
        min_aspect_ratio: smallest aspect ratio, 4 sqrt(3) area / (a² + b² + c²): 1 for an equilateral triangle, 0 for
            one without area.
        max_aspect_ratio: largest aspect ratio.
        avg_aspect_ratio: mean aspect ratio.
        std_aspect_ratio: population standard deviation of the aspect ratio.
        n_low_quality_triangles: number of triangles with an aspect ratio below 0.3.
        min_edge_length: shortest edge.
        max_edge_length: longest edge.
        avg_edge_length: mean edge length.
        std_edge_length: population standard deviation of the edge length.
        edge_length_uniformity: 1 - std / avg of the edge length; 1 if all edges have the same length.
        bbox_volume: volume of the axis-aligned bounding box of all faces.
        bbox_diagonal: diagonal of the bounding box.
        bbox_extent_x: extent of the bounding box along x.
        bbox_extent_y: extent of the bounding box along y.
        bbox_extent_z: extent of the bounding box along z.
        bbox_aspect_ratio: longest over shortest extent; infinite for a flat axis-aligned mesh.
        surface_area: total area of the faces.
        avg_vertex_valence: mean number of edges per vertex, over vertices with edges.
        max_vertex_valence: largest number of edges at a vertex.
        min_vertex_valence: smallest number of edges at a vertex with edges.
        n_isolated_vertices: number of vertices without a face.
        n_degenerate_normals: number of vertices whose area-weighted face normals cancel out to a length below 0.1.
        avg_normal_consistency: mean cosine between the normals of neighboring faces; 1 if there are no neighbors.
        n_flipped_normals: number of faces wound against their neighbors, the minority of each connected component.
            Sharp edges do not count.
        file_size_mb: size of the file in MiB; None without a file.
        n_non_manifold_edges: number of edges with three or more faces.
        n_pieces: number of connected components by shared edges.
        faces_outward: whether the faces point outward; None if the mesh is open or inconsistently wound.
    """

    n_vertices: int
    n_faces: int
    n_edges: int
    is_watertight: bool
    is_winding_consistent: bool
    n_boundary_edges: int
    n_duplicate_vertices: int
    min_triangle_area: float
    max_triangle_area: float
    avg_triangle_area: float
    std_triangle_area: float
    n_degenerate_triangles: int
    min_aspect_ratio: float
    max_aspect_ratio: float
    avg_aspect_ratio: float
    std_aspect_ratio: float
    n_low_quality_triangles: int
    min_edge_length: float
    max_edge_length: float
    avg_edge_length: float
    std_edge_length: float
    edge_length_uniformity: float
    bbox_volume: float
    bbox_diagonal: float
    bbox_extent_x: float
    bbox_extent_y: float
    bbox_extent_z: float
    bbox_aspect_ratio: float
    surface_area: float
    avg_vertex_valence: float
    max_vertex_valence: int
    min_vertex_valence: int
    n_isolated_vertices: int
    n_degenerate_normals: int
    avg_normal_consistency: float
    n_flipped_normals: int
    file_size_mb: float | None
    n_non_manifold_edges: int
    n_pieces: int
    faces_outward: bool | None

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics by tag (`Mesh/Topology/n_vertices` and so on), as named by SuGaR's tools."""
        return {
            f"Mesh/{group}/{name}": float(getattr(self, name))
            for group, names in _TAGS.items()
            for name in names.split()
        }


def mesh_quality(mesh: Triangles, *, file: Path | str | None = None) -> MeshQuality:
    """Measure the quality of a mesh.

    Args:
        mesh: mesh with faces.
        file: file of the mesh, for its size.

    Raises:
        MeshError: the mesh has no faces.
        OSError: the file cannot be read.
    """
    if not len(mesh.faces):
        raise MeshError("a mesh without faces has no quality: no surface was found; check the step that made it")
    # All metrics about edges need merged vertices: texture seams would count as holes.
    welded = mesh.welded()
    return MeshQuality(
        n_vertices=len(mesh.vertices),
        n_faces=len(mesh.faces),
        n_duplicate_vertices=len(mesh.vertices) - len(welded.vertices),
        file_size_mb=None if file is None else Path(file).stat().st_size / _MIB,
        **_topology(welded),
        **_forms(welded),
        **_lengths(welded),
        **_box(welded),
        **_normals(welded),
    )


def aspect_ratios(mesh: Triangles) -> Float64[np.ndarray, "m"]:
    """Return 4 sqrt(3) area / (a² + b² + c²) of each face: 1 for an equilateral triangle, 0 for one without area."""
    squares = np.square(mesh.side_lengths).sum(1)
    return np.divide(4 * np.sqrt(3) * mesh.areas, squares, out=np.zeros_like(squares), where=squares > 0).clip(max=1)


def _topology(mesh: Triangles) -> dict[str, Any]:
    # Each edge counts once at both of its ends.
    valence = np.bincount(mesh.edges.ends.reshape(-1), minlength=len(mesh.vertices))
    joined = valence[valence > 0]
    used = np.bincount(mesh.faces.reshape(-1), minlength=len(mesh.vertices)) > 0
    return {
        "n_edges": len(mesh.edges),
        "is_watertight": mesh.closed,
        "is_winding_consistent": mesh.consistently_wound,
        "n_boundary_edges": len(mesh.edges.boundary),
        "n_non_manifold_edges": len(mesh.edges.non_manifold),
        "n_pieces": int(mesh.pieces.max()) + 1,
        "faces_outward": mesh.outward,
        "avg_vertex_valence": float(joined.mean()) if len(joined) else 0.0,
        "max_vertex_valence": int(joined.max(initial=0)),
        "min_vertex_valence": int(joined.min()) if len(joined) else 0,
        "n_isolated_vertices": int((~used).sum()),
    }


def _spread(name: str, values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {f"{kind}_{name}": 0.0 for kind in ("min", "max", "avg", "std")}
    statistics = {"min": values.min(), "max": values.max(), "avg": values.mean(), "std": values.std()}
    return {f"{kind}_{name}": float(value) for kind, value in statistics.items()}


def _forms(mesh: Triangles) -> dict[str, Any]:
    ratios = aspect_ratios(mesh)
    return {
        **_spread("triangle_area", mesh.areas),
        **_spread("aspect_ratio", ratios),
        "n_degenerate_triangles": int((ratios < _DEGENERATE).sum()),
        "n_low_quality_triangles": int((ratios < _LOW_QUALITY).sum()),
        "surface_area": float(mesh.areas.sum()),
    }


def _lengths(mesh: Triangles) -> dict[str, float]:
    spread = _spread("edge_length", mesh.edge_lengths)
    mean = spread["avg_edge_length"]
    return {**spread, "edge_length_uniformity": 1 - spread["std_edge_length"] / mean if mean > 0 else 0.0}


def _box(mesh: Triangles) -> dict[str, float]:
    positions = mesh.vertices[mesh.faces.reshape(-1)]
    extent = positions.max(0) - positions.min(0)
    shortest = float(extent.min())
    longest = float(extent.max())
    return {
        "bbox_volume": float(extent.prod()),
        "bbox_diagonal": float(np.linalg.norm(extent)),
        **{f"bbox_extent_{axis}": float(length) for axis, length in zip("xyz", extent, strict=True)},
        # A flat axis-aligned mesh has no shortest extent to divide by.
        "bbox_aspect_ratio": longest / shortest if shortest > 0 else float("inf"),
    }


def _normals(mesh: Triangles) -> dict[str, Any]:
    first, second = mesh.normals[mesh.edges.neighbors].transpose(1, 0, 2)
    # Faces without area have no normal: leave their edges out.
    cosines = np.einsum("ij,ij->i", first, second)[(mesh.areas[mesh.edges.neighbors] > 0).all(1)]
    weighted = (mesh.normals * mesh.areas[:, None]).repeat(3, axis=0)
    corner = mesh.faces.reshape(-1)
    count = len(mesh.vertices)
    total = np.stack([np.bincount(corner, weighted[:, axis], count) for axis in range(3)], axis=1)
    # Total area at each vertex: the length that the summed normals would have if all were equal.
    around = np.bincount(corner, mesh.areas.repeat(3), count)
    used = np.bincount(corner, minlength=count) > 0
    return {
        "avg_normal_consistency": float(cosines.mean()) if len(cosines) else 1.0,
        "n_flipped_normals": int(mesh.misoriented.sum()),
        "n_degenerate_normals": int((used & (np.linalg.norm(total, axis=1) <= _CANCELLED * around)).sum()),
    }
