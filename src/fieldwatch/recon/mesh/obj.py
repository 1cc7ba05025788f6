"""Reading and writing meshes in Wavefront OBJ files."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.polygons import fans
from fieldwatch.recon.mesh.triangles import Triangles

MATERIAL = "surface"
"""Name of the single material in written files."""


def _doubles() -> "array[float]":
    return array("d")


def _integers() -> "array[int]":
    return array("q")


@dataclass
class _Lines:
    """Contents read so far. A corner is three 0-based indices: vertex, texture coordinate, normal; -1 if absent."""

    positions: "array[float]" = field(default_factory=_doubles)
    colors: "array[float]" = field(default_factory=_doubles)
    textures: "array[float]" = field(default_factory=_doubles)
    normals: int = 0
    corners: "array[int]" = field(default_factory=_integers)
    counts: "array[int]" = field(default_factory=_integers)

    def add_position(self, fields: list[str]) -> None:
        """Read `x y z [w] [r g b]`; the weight w is ignored."""
        if len(fields) not in {3, 4, 6, 7}:
            msg = f"a vertex has {len(fields)} numbers, expected x y z [w] [r g b]"
            raise ValueError(msg)
        self.positions.extend(map(float, fields[:3]))
        if len(fields) > 4:
            self.colors.extend(map(float, fields[-3:]))

    def add_texture(self, fields: list[str]) -> None:
        """Read `u [v] [w]`; w is ignored."""
        if len(fields) not in {1, 2, 3}:
            msg = f"a texture coordinate has {len(fields)} numbers, expected u v"
            raise ValueError(msg)
        self.textures.extend(map(float, (*fields, "0")[:2]))

    def add_normal(self, _: list[str]) -> None:
        """Count the normal, so that negative indices resolve; its value is ignored."""
        self.normals += 1

    def add_face(self, fields: list[str]) -> None:
        """Read corners `a`, `a/t`, `a//n` or `a/t/n`; indices start at 1, negative ones count back from the latest."""
        available = (len(self.positions) // 3, len(self.textures) // 2, self.normals)
        for corner in fields:
            parts = corner.split("/")
            if len(parts) > 3 or not parts[0]:
                msg = f"{corner!r} is not a face corner, expected a, a/t, a//n or a/t/n"
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
            f"index {value} is out of range: indices start at 1, or count back from -1 over the {available} entries "
            "above this line"
        )
        raise ValueError(msg)
    return value - 1 if value > 0 else available + value


def read_obj(data: bytes) -> Triangles:
    """Parse an OBJ file; all objects and groups form one mesh, polygons become triangle fans.

    Raises:
        MeshError: a line is malformed (the message has its number), or there are no faces.
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
            msg = f"line {row} ({line.strip()[:60]!r}) cannot be read ({error}): copy or export the file again"
            raise MeshError(msg) from error
    if not lines.counts:
        msg = f"it holds {len(lines.positions) // 3} vertices and no faces: give the OBJ file of a mesh"
        raise MeshError(msg)
    return _mesh(lines)


def _mesh(lines: _Lines) -> Triangles:
    counts = np.array(lines.counts, np.int64)
    corners = np.array(lines.corners, np.int64).reshape(-1, 3)[fans(counts)]
    positions = np.array(lines.positions).reshape(-1, 3)
    textures = np.array(lines.textures).reshape(-1, 2)
    colors = None
    # Colors are an extension of the format: use them only if every vertex has one.
    if lines.colors and len(lines.colors) == len(lines.positions):
        colors = _bytes(np.array(lines.colors).reshape(-1, 3))
    for name, column, available in (("vt", 1, len(textures)), ("vn", 2, lines.normals)):
        if (corners[..., column] >= available).any():
            row = int((corners[..., column] >= available).any(1).argmax())
            msg = (
                f"face {row} references {name} {int(corners[row, :, column].max()) + 1} of {available}: "
                "copy the file again"
            )
            raise MeshError(msg)
    # Texture coordinates count only if every corner has them.
    mapped = bool((corners[..., 1] >= 0).all())
    uvs = textures[corners[..., 1]] if mapped else None
    return Triangles(vertices=positions, faces=np.ascontiguousarray(corners[..., 0]), colors=colors, uvs=uvs)


def _bytes(colors: NDArray[np.float64]) -> NDArray[np.uint8]:
    if not np.isfinite(colors).all():
        raise MeshError("its colors are not finite: write the file again, or without colors")
    scale = 255 if colors.max(initial=0) <= 1 else 1  # some programs write 0 to 255
    return np.rint(colors * scale).clip(0, 255).astype(np.uint8)


def write_obj(mesh: Triangles, *, library: str | None = None) -> bytes:
    """Encode a mesh as OBJ: vertices in full precision with their colors, and unique texture coordinates.

    Args:
        mesh: mesh to write. Its texture is not included: see `fieldwatch.recon.mesh.materials`.
        library: name of the .mtl file that defines the material `surface`; None writes no material.
    """
    # repr gives the shortest text that reads back as the same double.
    rows = [" ".join(map(repr, row)) for row in mesh.vertices.tolist()]
    if mesh.colors is not None:
        shades = (" ".join(f"{value:.6f}" for value in row) for row in (mesh.colors / 255).tolist())
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
