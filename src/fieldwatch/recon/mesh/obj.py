"""Meshes in Wavefront OBJ files."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.polygons import fans
from fieldwatch.recon.mesh.triangles import Triangles

MATERIAL = "surface"
"""What the one material of a written mesh is called."""


def _doubles() -> "array[float]":
    return array("d")


def _integers() -> "array[int]":
    return array("q")


@dataclass
class _Lines:
    """What was read so far. Corners are triples: place, texture and normal, numbered from 0; -1 where there is none."""

    positions: "array[float]" = field(default_factory=_doubles)
    colours: "array[float]" = field(default_factory=_doubles)
    textures: "array[float]" = field(default_factory=_doubles)
    normals: int = 0
    corners: "array[int]" = field(default_factory=_integers)
    counts: "array[int]" = field(default_factory=_integers)

    def add_position(self, fields: list[str]) -> None:
        """Read x y z, then perhaps a weight, which is left out, then perhaps a colour."""
        if len(fields) not in {3, 4, 6, 7}:
            msg = f"a place has {len(fields)} numbers, not x y z with or without r g b"
            raise ValueError(msg)
        self.positions.extend(map(float, fields[:3]))
        if len(fields) > 4:
            self.colours.extend(map(float, fields[-3:]))

    def add_texture(self, fields: list[str]) -> None:
        """Read u, perhaps v, perhaps w, which is left out."""
        if len(fields) not in {1, 2, 3}:
            msg = f"a texture coordinate has {len(fields)} numbers, not u v"
            raise ValueError(msg)
        self.textures.extend(map(float, (*fields, "0")[:2]))

    def add_normal(self, _: list[str]) -> None:
        """Count it: the numbers of faces refer to it. Normals follow from the faces."""
        self.normals += 1

    def add_face(self, fields: list[str]) -> None:
        """Read corners `a`, `a/t`, `a//n` or `a/t/n`; numbers count from 1, or backwards from -1, the latest."""
        available = (len(self.positions) // 3, len(self.textures) // 2, self.normals)
        for corner in fields:
            parts = corner.split("/")
            if len(parts) > 3 or not parts[0]:
                msg = f"{corner!r} is no corner: a, a/t, a//n or a/t/n are"
                raise ValueError(msg)
            numbers = [_number(part, count) for part, count in zip(parts, available, strict=False)]
            # Missing texture or normal numbers become -1.
            self.corners.extend((*numbers, -1, -1)[:3])
        self.counts.append(len(fields))


def _number(text: str, available: int) -> int:
    if not text:
        return -1
    value = int(text)
    if value == 0 or value < -available:
        msg = (
            f"{value} refers to nothing: numbers run from 1, and from -1 backwards over the {available} before this "
            "line"
        )
        raise ValueError(msg)
    return value - 1 if value > 0 else available + value


def read_obj(data: bytes) -> Triangles:
    """Return the mesh that an OBJ file holds: all its objects and groups as one; polygons become fans of triangles.

    Raises:
        MeshError: a line is damaged (the message names it), or there are no faces.
    """
    lines = _Lines()
    readers: dict[str, Callable[[list[str]], None]] = {
        "v": lines.add_position, "vt": lines.add_texture, "vn": lines.add_normal, "f": lines.add_face,
    }  # fmt: skip
    # A backslash at the end of a line continues it.
    text = data.decode("utf-8", "replace").replace("\\\r\n", " ").replace("\\\n", " ")
    for row, line in enumerate(text.split("\n"), 1):
        fields = line.partition("#")[0].split()
        if not fields or fields[0] not in readers:
            continue
        try:
            readers[fields[0]](fields[1:])
        except (ValueError, OverflowError) as error:
            msg = f"line {row} ({line.strip()[:60]!r}) cannot be read ({error}): it is damaged, write or copy it again"
            raise MeshError(msg) from error
    if not lines.counts:
        msg = f"it holds {len(lines.positions) // 3} places and no faces: it is no mesh, or no OBJ file; give a mesh"
        raise MeshError(msg)
    return _mesh(lines)


def _mesh(lines: _Lines) -> Triangles:
    counts = np.array(lines.counts, np.int64)
    corners = np.array(lines.corners, np.int64).reshape(-1, 3)[fans(counts)]
    positions = np.array(lines.positions).reshape(-1, 3)
    textures = np.array(lines.textures).reshape(-1, 2)
    colours = None
    if lines.colours and len(lines.colours) == len(lines.positions):
        colours = _bytes(np.array(lines.colours).reshape(-1, 3))
    for name, column, available in (("vt", 1, len(textures)), ("vn", 2, lines.normals)):
        if (corners[..., column] >= available).any():
            row = int((corners[..., column] >= available).any(1).argmax())
            msg = (
                f"face {row} names {name} {int(corners[row, :, column].max()) + 1} of {available}: copy the file again"
            )
            raise MeshError(msg)
    # Texture coordinates count only if every corner has them.
    mapped = bool((corners[..., 1] >= 0).all())
    uvs = textures[corners[..., 1]] if mapped else None
    return Triangles(vertices=positions, faces=np.ascontiguousarray(corners[..., 0]), colours=colours, uvs=uvs)


def _bytes(colours: NDArray[np.float64]) -> NDArray[np.uint8]:
    if not np.isfinite(colours).all():
        raise MeshError("its colours are not finite: what wrote the file failed; write it again, or without colours")
    scale = 255 if colours.max(initial=0) <= 1 else 1  # some programs write 0..255
    return np.rint(colours * scale).clip(0, 255).astype(np.uint8)


def write_obj(mesh: Triangles, *, library: str | None = None) -> bytes:
    """Return a mesh as OBJ: places in full precision, colours after them, each texture coordinate once.

    Args:
        mesh: its texture goes into files of its own: `fieldwatch.recon.mesh.materials` writes them.
        library: name of the .mtl file whose material `surface` the faces use.
    """
    rows = [" ".join(map(repr, row)) for row in mesh.vertices.tolist()]
    if mesh.colours is not None:
        shades = (" ".join(f"{value:.6f}" for value in row) for row in (mesh.colours / 255).tolist())
        rows = [f"{row} {shade}" for row, shade in zip(rows, shades, strict=True)]
    lines = [] if library is None else [f"mtllib {library}", f"usemtl {MATERIAL}"]
    lines += [f"v {row}" for row in rows]
    if mesh.uvs is None:
        lines += [f"f {a} {b} {c}" for a, b, c in (mesh.faces + 1).tolist()]
        return ("\n".join(lines) + "\n").encode("ascii")
    # Each coordinate pair once: files with shared corners stay small.
    textures, numbers = np.unique(mesh.uvs.reshape(-1, 2), axis=0, return_inverse=True)
    lines += [f"vt {u!r} {v!r}" for u, v in textures.tolist()]
    joined = np.concatenate([mesh.faces, numbers.reshape(-1, 3)], axis=1) + 1
    lines += [f"f {a}/{r} {b}/{s} {c}/{t}" for a, b, c, r, s, t in joined.tolist()]
    return ("\n".join(lines) + "\n").encode("ascii")
