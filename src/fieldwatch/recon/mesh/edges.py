"""Undirected edges of a triangle mesh, with their faces and the direction in which each face runs along them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


@dataclass(frozen=True, kw_only=True, eq=False)
class Edges:
    """Adjacency of the faces of a mesh.

    A face that references a vertex twice contributes no edges.

    Attributes:
        ends: vertex indices of each unique edge, the lower one first.
        uses: number of faces at each edge.
        face: face of each half-edge (a side of a face).
        edge: row in `ends` of each half-edge.
        forward: for each half-edge, True if the face runs from the lower to the higher vertex index.
        face_count: number of faces of the mesh.
    """

    ends: Int64[np.ndarray, "e 2"]
    uses: Int64[np.ndarray, "e"]
    face: Int64[np.ndarray, "h"]
    edge: Int64[np.ndarray, "h"]
    forward: Bool[np.ndarray, "h"]
    face_count: int

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def boundary(self) -> Int64[np.ndarray, "b"]:
        """Edges with one face: the boundary of a hole."""
        return np.flatnonzero(self.uses == 1)

    @cached_property
    def non_manifold(self) -> Int64[np.ndarray, "k"]:
        """Edges with three or more faces."""
        return np.flatnonzero(self.uses > 2)

    @cached_property
    def interior(self) -> Int64[np.ndarray, "i"]:
        """Edges with exactly two faces."""
        return np.flatnonzero(self.uses == 2)

    @cached_property
    def neighbors(self) -> Int64[np.ndarray, "i 2"]:
        """The two faces of each interior edge, in the order of `interior`."""
        return self.face[self._pairs]

    @cached_property
    def opposed(self) -> Bool[np.ndarray, "i"]:
        """For each interior edge, True if both faces run along it the same way: one of them is wound wrongly."""
        is_forward = self.forward[self._pairs]
        return is_forward[:, 0] == is_forward[:, 1]

    @cached_property
    def _pairs(self) -> Int64[np.ndarray, "i 2"]:
        """The two half-edges of each interior edge."""
        chosen = np.flatnonzero(self.uses[self.edge] == 2)
        return chosen[np.argsort(self.edge[chosen], kind="stable")].reshape(-1, 2)


def find_edges(faces: Int64[np.ndarray, "m 3"]) -> Edges:
    """Find the edges of faces by vertex index."""
    a, b, c = faces.T
    # Faces with a repeated vertex would add edges from a vertex to itself.
    solid = np.flatnonzero((a != b) & (b != c) & (c != a))
    start = faces[solid].reshape(-1)
    end = np.roll(faces[solid], -1, axis=1).reshape(-1)
    low = np.minimum(start, end)
    high = np.maximum(start, end)
    reach = int(high.max(initial=0)) + 1
    # One integer per undirected edge: sorting integers is far faster than sorting pairs.
    keys, edge, uses = np.unique(low * reach + high, return_inverse=True, return_counts=True)
    return Edges(
        ends=np.stack([keys // reach, keys % reach], axis=1),
        uses=uses.astype(np.int64),
        face=np.repeat(solid, 3),
        edge=edge.reshape(-1).astype(np.int64),
        forward=start < end,
        face_count=len(faces),
    )


def pieces(edges: Edges) -> Int64[np.ndarray, "m"]:
    """Label the connected components of faces that share edges; 0 is the largest component."""
    count = edges.face_count + len(edges)
    # A bipartite graph of faces and edges: it also connects faces at edges with three or more faces.
    links = coo_array((np.ones(len(edges.face)), (edges.face, edges.edge + edges.face_count)), (count, count))
    _, components = connected_components(links, directed=False)
    _, labels, sizes = np.unique(components[: edges.face_count], return_inverse=True, return_counts=True)
    rank = np.empty(len(sizes), np.int64)
    # Largest component first; the stable sort keeps the numbering deterministic.
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    return rank[labels.reshape(-1)]


def misoriented(edges: Edges) -> Bool[np.ndarray, "m"]:
    """Return the faces to flip for a consistent winding: the minority of each connected component.

    For a component that cannot be oriented (a Möbius strip), return the faces at its inconsistent edges.

    The algorithm is a two-coloring. The graph has two nodes per face, as stored and flipped. Neighbors with consistent
    winding connect equal nodes, the others opposite nodes. An orientable component then splits into two.
    """
    count = edges.face_count
    pairs = edges.neighbors
    # Row i is face i as stored, row i + count the same face flipped.
    crossed = np.where(edges.opposed, count, 0)
    rows = np.concatenate([pairs[:, 0], pairs[:, 0] + count])
    columns = np.concatenate([pairs[:, 1] + crossed, pairs[:, 1] + (count - crossed)])
    _, components = connected_components(
        coo_array((np.ones(len(rows)), (rows, columns)), (2 * count, 2 * count)), False
    )
    component = components[:count]
    flipped_component = components[count:]
    sizes = np.bincount(component, minlength=2 * count + 1)
    # Equal sizes are decided by the component number, so that exactly one of the two halves is flipped.
    in_minority = (sizes[component] < sizes[flipped_component]) | (
        (sizes[component] == sizes[flipped_component]) & (component > flipped_component)
    )
    at_conflict = np.zeros(count, np.bool_)
    at_conflict[pairs[edges.opposed].reshape(-1)] = True
    return np.where(component == flipped_component, at_conflict, in_minority)
