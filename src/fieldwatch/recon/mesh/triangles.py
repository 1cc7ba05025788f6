"""A mesh of triangles, and what follows from its places and faces alone."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from fieldwatch.recon.mesh.edges import Edges, find_edges, misoriented, pieces
from fieldwatch.recon.mesh.error import MeshError


@dataclass(frozen=True, kw_only=True, eq=False)
class Triangles:
    """A surface of triangles. The corners of a face run counter-clockwise, seen from outside.

    A mesh without faces is allowed (an extraction may find nothing); it cannot be written or judged.

    Attributes:
        vertices: places, in the units of the scene.
        faces: three rows of `vertices` each.
        colours: of the vertices, red, green, blue.
        uvs: texture coordinates of the corners of the faces, (0, 0) at the picture's lower left. They belong to
            corners and not to vertices, so that a seam of the texture does not cut the surface.
        texture: the picture that `uvs` refer to, red, green, blue; its first row is the upper one.

    Raises:
        MeshError: a shape or a type is wrong, a place is not finite, a face names a vertex that is not there, or there
            is a texture without `uvs`.
    """

    vertices: Float64[np.ndarray, "n 3"]
    faces: Int64[np.ndarray, "m 3"]
    colours: UInt8[np.ndarray, "n 3"] | None = None
    uvs: Float64[np.ndarray, "m 3 2"] | None = None
    texture: UInt8[np.ndarray, "height width 3"] | None = None

    def __post_init__(self) -> None:
        _check_form("vertices", self.vertices, np.float64, (None, 3))
        _check_form("faces", self.faces, np.int64, (None, 3))
        if self.colours is not None:
            _check_form("colours", self.colours, np.uint8, (len(self.vertices), 3))
        if self.uvs is not None:
            _check_form("uvs", self.uvs, np.float64, (len(self.faces), 3, 2))
        if self.texture is not None:
            _check_texture(self.texture, mapped=self.uvs is not None)
        _check_values(self.vertices, self.faces, self.uvs)

    @cached_property
    def edges(self) -> Edges:
        """Its edges, by the numbers of the vertices: weld a mesh first whose vertices repeat."""
        return find_edges(self.faces)

    @cached_property
    def corners(self) -> Float64[np.ndarray, "m 3 3"]:
        """Places of the corners of each face."""
        return self.vertices[self.faces]

    @cached_property
    def _spans(self) -> Float64[np.ndarray, "m 3"]:
        """Cross products of two sides: twice the area long, along the normal."""
        first, second, third = np.moveaxis(self.corners, 1, 0)
        return np.cross(second - first, third - first)

    @cached_property
    def areas(self) -> Float64[np.ndarray, "m"]:
        """Area of each face."""
        return np.linalg.norm(self._spans, axis=1) / 2

    @cached_property
    def normals(self) -> Float64[np.ndarray, "m 3"]:
        """Unit normal of each face; zero where it has no area."""
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
        """For each face, the number of its piece: faces that share an edge are of one; 0 is the largest."""
        return pieces(self.edges)

    @cached_property
    def misoriented(self) -> Bool[np.ndarray, "m"]:
        """Faces that are wound against those around them; of each piece the fewer."""
        return misoriented(self.edges)

    @property
    def closed(self) -> bool:
        """True if every edge has exactly two faces."""
        return len(self.edges) > 0 and bool((self.edges.uses == 2).all())

    @property
    def consistently_wound(self) -> bool:
        """True if all neighbours run along their common edge in opposite directions."""
        return not bool(self.edges.opposed.any())

    @cached_property
    def signed_volume(self) -> float:
        """Volume inside a closed surface, below 0 if it faces inwards; of an open one, no volume of anything."""
        if not len(self.faces):
            return 0.0
        # from its middle: far from the origin large terms would cancel
        first = self.corners[:, 0] - self.vertices[self.faces.reshape(-1)].mean(0)
        return float(np.einsum("mi,mi->", first, self._spans) / 6)

    @property
    def outward(self) -> bool | None:
        """Whether it faces outwards as a whole; None where that cannot be said: it is open, or wound both ways."""
        return self.signed_volume > 0 if self.closed and self.consistently_wound else None

    def welded(self) -> "Triangles":
        """Return it with vertices at exactly the same place made one, in the order of the first of each.

        The first one's colour stays. Faces are neither lost nor reordered.
        """
        # Equal positions become neighbors; lexsort is stable, so the lowest number comes first.
        order = np.lexsort(self.vertices.T)
        sorted_positions = self.vertices[order]
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (sorted_positions[1:] != sorted_positions[:-1]).any(1)
        if is_new.all():
            return self
        first_rows = order[is_new]  # lexsort is stable: the lowest number of each place
        rank = np.empty(len(first_rows), np.int64)
        rank[np.argsort(first_rows)] = np.arange(len(first_rows))
        target = np.empty(len(order), np.int64)
        target[order] = rank[np.cumsum(is_new) - 1]
        kept_rows = np.sort(first_rows)
        colours = None if self.colours is None else self.colours[kept_rows]
        return replace(self, vertices=self.vertices[kept_rows], faces=target[self.faces], colours=colours)

    def turned(self, which: Bool[np.ndarray, "m"] | None = None) -> "Triangles":
        """Return it with faces wound the other way; all of them, if None: inside out."""
        chosen = np.ones(len(self.faces), np.bool_) if which is None else which
        faces = np.where(chosen[:, None], self.faces[:, ::-1], self.faces)
        uvs = None if self.uvs is None else np.where(chosen[:, None, None], self.uvs[:, ::-1], self.uvs)
        return replace(self, faces=faces, uvs=uvs)

    def chosen(self, which: Bool[np.ndarray, "m"]) -> "Triangles":
        """Return some of its faces, with the vertices that these name, in their order."""
        used = np.zeros(len(self.vertices), np.bool_)
        used[self.faces[which].reshape(-1)] = True
        return Triangles(
            vertices=self.vertices[used],
            faces=(np.cumsum(used) - 1)[self.faces[which]],
            colours=None if self.colours is None else self.colours[used],
            uvs=None if self.uvs is None else self.uvs[which],
            texture=self.texture,
        )


def _check_form(name: str, values: np.ndarray, kind: type[np.generic], shape: tuple[int | None, ...]) -> None:
    fits = values.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, values.shape, strict=True))
    if fits and values.dtype == kind:
        return
    wanted = ", ".join("n" if size is None else str(size) for size in shape)
    msg = f"{name} are {values.dtype} {values.shape}, wanted are {kind.__name__} ({wanted}): convert them first"
    raise MeshError(msg)


def _check_texture(texture: np.ndarray, *, mapped: bool) -> None:
    _check_form("texture", texture, np.uint8, (None, None, 3))
    if not mapped:
        raise MeshError("there is a texture, but no uvs that refer to it: give both, or lay the mesh out (unwrapped)")
    if not texture.size:
        msg = f"the texture has {texture.shape[1]} x {texture.shape[0]} texels: at least one is wanted; leave it out"
        raise MeshError(msg)


def _check_values(vertices: np.ndarray, faces: np.ndarray, uvs: np.ndarray | None) -> None:
    arrays = {"vertices": vertices} if uvs is None else {"vertices": vertices, "uvs": uvs}
    for name, values in arrays.items():
        wrong = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        if wrong.any():
            msg = (
                f"{name}: {int(wrong.sum())} of {len(values)} rows are not finite, the first is row "
                f"{int(wrong.argmax())}: remove them, or look at what made them"
            )
            raise MeshError(msg)
    wrong = ((faces < 0) | (faces >= len(vertices))).any(1)
    if wrong.any():
        row = int(wrong.argmax())
        msg = (
            f"face {row} names the vertices {faces[row].tolist()}, there are {len(vertices)} (numbered from 0), and "
            f"{int(wrong.sum())} of {len(faces)} faces are like that: the mesh is damaged, make or copy it again"
        )
        raise MeshError(msg)
