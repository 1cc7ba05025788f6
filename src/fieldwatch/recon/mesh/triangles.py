"""The triangle mesh type and the properties derived from its vertices and faces."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from fieldwatch.recon.mesh.edges import Edges, find_edges, misoriented, pieces
from fieldwatch.recon.mesh.error import MeshError


@dataclass(frozen=True, kw_only=True, eq=False)
class Triangles:
    """A triangle mesh. The corners of a face run counter-clockwise as seen from outside.

    A mesh may have no faces (an extraction may find no surface); such a mesh cannot be written or graded.

    Attributes:
        vertices: vertex positions in world units.
        faces: three indices into `vertices` per face.
        colors: sRGB color of each vertex, 0 to 255.
        uvs: texture coordinates of the face corners, with (0, 0) at the lower left of the texture. They belong to
            corners and not to vertices, so a texture seam does not cut the surface.
        texture: RGB image that `uvs` refer to; the first row is the top row.

    Raises:
        MeshError: a shape or dtype is wrong, a value is not finite, a face references a missing vertex, or there is a
            texture without `uvs`.
    """

    vertices: Float64[np.ndarray, "n 3"]
    faces: Int64[np.ndarray, "m 3"]
    colors: UInt8[np.ndarray, "n 3"] | None = None
    uvs: Float64[np.ndarray, "m 3 2"] | None = None
    texture: UInt8[np.ndarray, "height width 3"] | None = None

    def __post_init__(self) -> None:
        _check_form("vertices", self.vertices, np.float64, (None, 3))
        _check_form("faces", self.faces, np.int64, (None, 3))
        if self.colors is not None:
            _check_form("colors", self.colors, np.uint8, (len(self.vertices), 3))
        if self.uvs is not None:
            _check_form("uvs", self.uvs, np.float64, (len(self.faces), 3, 2))
        if self.texture is not None:
            _check_texture(self.texture, mapped=self.uvs is not None)
        _check_values(self.vertices, self.faces, self.uvs)

    @cached_property
    def edges(self) -> Edges:
        """Edges by vertex index. Weld a mesh with duplicate vertices first: edges along its seams count as boundary."""
        return find_edges(self.faces)

    @cached_property
    def corners(self) -> Float64[np.ndarray, "m 3 3"]:
        """Positions of the corners of each face."""
        return self.vertices[self.faces]

    @cached_property
    def _spans(self) -> Float64[np.ndarray, "m 3"]:
        """Cross product of two sides of each face: along the normal, with twice the area as length."""
        first, second, third = np.moveaxis(self.corners, 1, 0)
        return np.cross(second - first, third - first)

    @cached_property
    def areas(self) -> Float64[np.ndarray, "m"]:
        """Area of each face."""
        return np.linalg.norm(self._spans, axis=1) / 2

    @cached_property
    def normals(self) -> Float64[np.ndarray, "m 3"]:
        """Unit normal of each face; zero for a face without area."""
        length = 2 * self.areas[:, None]
        return np.divide(self._spans, length, out=np.zeros_like(self._spans), where=length > 0)

    @cached_property
    def side_lengths(self) -> Float64[np.ndarray, "m 3"]:
        """Lengths of the sides of each face: from corner 0 to 1, 1 to 2, 2 to 0."""
        return np.linalg.norm(np.roll(self.corners, -1, axis=1) - self.corners, axis=2)

    @cached_property
    def edge_lengths(self) -> Float64[np.ndarray, "e"]:
        """Length of each edge."""
        ends = self.vertices[self.edges.ends]
        return np.linalg.norm(ends[:, 1] - ends[:, 0], axis=1)

    @cached_property
    def pieces(self) -> Int64[np.ndarray, "m"]:
        """Connected component of each face, by shared edges; 0 is the largest."""
        return pieces(self.edges)

    @cached_property
    def misoriented(self) -> Bool[np.ndarray, "m"]:
        """Faces wound against their neighbors; the minority of each connected component."""
        return misoriented(self.edges)

    @property
    def closed(self) -> bool:
        """True if every edge has exactly two faces."""
        return len(self.edges) > 0 and bool((self.edges.uses == 2).all())

    @property
    def consistently_wound(self) -> bool:
        """True if neighboring faces run along their common edge in opposite directions."""
        return not bool(self.edges.opposed.any())

    @cached_property
    def signed_volume(self) -> float:
        """Enclosed volume, negative if the surface faces inward; without meaning for an open surface."""
        if not len(self.faces):
            return 0.0
        # Relative to the centroid: far from the origin, large terms of opposite sign would cancel.
        first = self.corners[:, 0] - self.vertices[self.faces.reshape(-1)].mean(0)
        return float(np.einsum("mi,mi->", first, self._spans) / 6)

    @property
    def outward(self) -> bool | None:
        """Whether the surface faces outward; None if it is open or inconsistently wound."""
        return self.signed_volume > 0 if self.closed and self.consistently_wound else None

    def welded(self) -> "Triangles":
        """Merge vertices at exactly equal positions, in the order of first occurrence.

        A merged vertex keeps the color of the first one. Faces are neither removed nor reordered.
        """
        # Equal positions become neighbors; lexsort is stable, so the lowest index of each comes first.
        order = np.lexsort(self.vertices.T)
        sorted_positions = self.vertices[order]
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (sorted_positions[1:] != sorted_positions[:-1]).any(1)
        if is_new.all():
            return self
        first_rows = order[is_new]
        rank = np.empty(len(first_rows), np.int64)
        # Output indices follow the order of first occurrence, not the sorted order of the positions.
        rank[np.argsort(first_rows)] = np.arange(len(first_rows))
        target = np.empty(len(order), np.int64)
        target[order] = rank[np.cumsum(is_new) - 1]
        kept_rows = np.sort(first_rows)
        colors = None if self.colors is None else self.colors[kept_rows]
        return replace(self, vertices=self.vertices[kept_rows], faces=target[self.faces], colors=colors)

    def turned(self, which: Bool[np.ndarray, "m"] | None = None) -> "Triangles":
        """Reverse the winding of the selected faces; None reverses all, which turns the mesh inside out."""
        chosen = np.ones(len(self.faces), np.bool_) if which is None else which
        faces = np.where(chosen[:, None], self.faces[:, ::-1], self.faces)
        uvs = None if self.uvs is None else np.where(chosen[:, None, None], self.uvs[:, ::-1], self.uvs)
        return replace(self, faces=faces, uvs=uvs)

    def chosen(self, which: Bool[np.ndarray, "m"]) -> "Triangles":
        """Return the selected faces with the vertices they use; both keep their order."""
        used = np.zeros(len(self.vertices), np.bool_)
        used[self.faces[which].reshape(-1)] = True
        return Triangles(
            vertices=self.vertices[used],
            faces=(np.cumsum(used) - 1)[self.faces[which]],
            colors=None if self.colors is None else self.colors[used],
            uvs=None if self.uvs is None else self.uvs[which],
            texture=self.texture,
        )


def _check_form(name: str, values: np.ndarray, kind: type[np.generic], shape: tuple[int | None, ...]) -> None:
    fits = values.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, values.shape, strict=True))
    if fits and values.dtype == kind:
        return
    expected = ", ".join("n" if size is None else str(size) for size in shape)
    msg = f"{name} must be {kind.__name__} ({expected}), got {values.dtype} {values.shape}: convert them first"
    raise MeshError(msg)


def _check_texture(texture: np.ndarray, *, mapped: bool) -> None:
    _check_form("texture", texture, np.uint8, (None, None, 3))
    if not mapped:
        raise MeshError("the mesh has a texture but no uvs: give both, or compute uvs with unwrapped()")
    if not texture.size:
        msg = f"the texture is empty ({texture.shape[1]} x {texture.shape[0]} texels): give at least one texel, or None"
        raise MeshError(msg)


def _check_values(vertices: np.ndarray, faces: np.ndarray, uvs: np.ndarray | None) -> None:
    arrays = {"vertices": vertices} if uvs is None else {"vertices": vertices, "uvs": uvs}
    for name, values in arrays.items():
        wrong = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        if wrong.any():
            msg = (
                f"{name}: {int(wrong.sum())} of {len(values)} rows are not finite, the first is row "
                f"{int(wrong.argmax())}: remove them, or check the step that made them"
            )
            raise MeshError(msg)
    wrong = ((faces < 0) | (faces >= len(vertices))).any(1)
    if wrong.any():
        row = int(wrong.argmax())
        msg = (
            f"face {row} references vertices {faces[row].tolist()}, but there are {len(vertices)} (numbered from 0); "
            f"{int(wrong.sum())} of {len(faces)} faces are invalid: the mesh is damaged, make or copy it again"
        )
        raise MeshError(msg)
