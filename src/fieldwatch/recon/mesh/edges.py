"""Edges of a triangle mesh, each counted once, with the faces beside them and the way these run along it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


@dataclass(frozen=True, kw_only=True, eq=False)
class Edges:
    """What joins the faces of a mesh.

    A face that names a vertex twice has no inside and no edges.

    Attributes:
        ends: the two vertices of each edge, the lower number first; every edge stands here once.
        uses: how many faces have it.
        face: for each half-edge (a side of a face), its face.
        edge: for each half-edge, its row in `ends`.
        forward: for each half-edge, True where the face runs from the lower to the higher number.
        face_count: of the mesh.
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
        """Edges of one face: the rim of a hole."""
        return np.flatnonzero(self.uses == 1)

    @cached_property
    def non_manifold(self) -> Int64[np.ndarray, "k"]:
        """Edges of three faces or more."""
        return np.flatnonzero(self.uses > 2)

    @cached_property
    def interior(self) -> Int64[np.ndarray, "i"]:
        """Edges of exactly two faces."""
        return np.flatnonzero(self.uses == 2)

    @cached_property
    def neighbours(self) -> Int64[np.ndarray, "i 2"]:
        """The two faces beside each interior edge, in the order of `interior`."""
        return self.face[self._pairs]

    @cached_property
    def opposed(self) -> Bool[np.ndarray, "i"]:
        """For each interior edge, True where both faces run along it the same way: one of the two is wound wrongly."""
        way = self.forward[self._pairs]
        return way[:, 0] == way[:, 1]

    @cached_property
    def _pairs(self) -> Int64[np.ndarray, "i 2"]:
        """The two half-edges of each interior edge."""
        chosen = np.flatnonzero(self.uses[self.edge] == 2)
        return chosen[np.argsort(self.edge[chosen], kind="stable")].reshape(-1, 2)


def find_edges(faces: Int64[np.ndarray, "m 3"]) -> Edges:
    """Return the edges of faces, by the numbers of their vertices."""
    a, b, c = faces.T
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
    """Return for each face the number of its piece; faces that share an edge are of one. 0 is the largest piece."""
    count = edges.face_count + len(edges)
    # A graph of faces and edges together: faces of one piece are connected through their edges.
    links = coo_array((np.ones(len(edges.face)), (edges.face, edges.edge + edges.face_count)), (count, count))
    _, components = connected_components(links, directed=False)
    _, labels, sizes = np.unique(components[: edges.face_count], return_inverse=True, return_counts=True)
    rank = np.empty(len(sizes), np.int64)
    # Largest piece first; the stable sort keeps the numbering deterministic.
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    return rank[labels.reshape(-1)]


def misoriented(edges: Edges) -> Bool[np.ndarray, "m"]:
    """Return which faces to turn so that neighbours agree, of each piece the fewer.

    A piece that no turning brings to agree (a Möbius strip) names the faces beside its disagreeing edges.
    Every face stands twice in a graph, as it is and turned; agreeing neighbours are joined like to like, the others
    crosswise: the two sides of a piece that can be oriented fall apart.
    """
    count = edges.face_count
    pair = edges.neighbours
    # An edge between misoriented neighbors links a face to its neighbor's flipped copy.
    crossed = np.where(edges.opposed, count, 0)
    rows = np.concatenate([pair[:, 0], pair[:, 0] + count])
    columns = np.concatenate([pair[:, 1] + crossed, pair[:, 1] + (count - crossed)])
    _, components = connected_components(
        coo_array((np.ones(len(rows)), (rows, columns)), (2 * count, 2 * count)), False
    )
    component = components[:count]
    flipped_component = components[count:]
    sizes = np.bincount(component, minlength=2 * count + 1)
    in_minority = (sizes[component] < sizes[flipped_component]) | (
        (sizes[component] == sizes[flipped_component]) & (component > flipped_component)
    )
    at_conflict = np.zeros(count, np.bool_)
    at_conflict[pair[edges.opposed].reshape(-1)] = True
    return np.where(component == flipped_component, at_conflict, in_minority)
