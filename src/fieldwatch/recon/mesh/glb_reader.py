"""Reading meshes from GLB files (glTF 2.0) of any program.

Source: Khronos Group, glTF 2.0 Specification (2021).
"""

import base64
import binascii
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
from jaxtyping import Float64, Int64, UInt8

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.glb import BINARY_CHUNK, JSON_CHUNK, MAGIC, VERSION
from fieldwatch.recon.mesh.pictures import read_picture
from fieldwatch.recon.mesh.triangles import Triangles

_TYPES = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
_MAX_ROWS = 1 << 27
# Modes of primitives that have faces; the others are points and lines.
_TRIANGLES = 4
_STRIP = 5
_FAN = 6
_SUPPORTED_EXTENSIONS = {"KHR_materials_unlit", "KHR_mesh_quantization", "KHR_materials_specular", "KHR_materials_ior"}
_DAMAGED = (KeyError, IndexError, TypeError, AttributeError, ValueError)


@dataclass(frozen=True)
class _GlbContent:
    document: Mapping[str, Any]
    binary: bytes

    def item(self, kind: str, number: int) -> Mapping[str, Any]:
        """Return an entry of a list in the JSON chunk; raise MeshError if it is missing."""
        entries = self.document.get(kind, [])
        if not 0 <= number < len(entries):
            msg = f"it references {kind} {number} of {len(entries)}: it is damaged, export it again"
            raise MeshError(msg)
        return entries[number]

    def view(self, number: int) -> tuple[bytes, int]:
        """Return the bytes of a buffer view and its stride in bytes; 0 means tightly packed."""
        view = self.item("bufferViews", number)
        if view.get("buffer", 0) != 0 or "uri" in self.item("buffers", 0):
            raise MeshError("its data is in another file: export it as a single .glb file")
        start = view.get("byteOffset", 0)
        length = view["byteLength"]
        if min(start, length) < 0 or start + length > len(self.binary):
            msg = f"a buffer view ends at byte {start + length} of {len(self.binary)}: it is cut short, copy it again"
            raise MeshError(msg)
        return self.binary[start : start + length], view.get("byteStride", 0)

    def numbers(self, number: int) -> np.ndarray:
        """Return the rows of an accessor; normalized integers become numbers from 0 (or -1) to 1."""
        accessor = self.item("accessors", number)
        if "sparse" in accessor or "bufferView" not in accessor:
            raise MeshError("it has sparse accessors, which are not supported: export it without them")
        kind = np.dtype(_TYPES[accessor["componentType"]])
        width = _WIDTHS[accessor["type"]]
        data, stride = self.view(accessor["bufferView"])
        start = accessor.get("byteOffset", 0)
        count = accessor["count"]
        row = kind.itemsize * width
        stride = stride or row
        if count < 1 or start < 0 or stride < row or start + (count - 1) * stride + row > len(data):
            msg = f"an accessor has {count} rows of {row} bytes, but {len(data)} bytes: it is damaged, export it again"
            raise MeshError(msg)
        # A strided view of the bytes: interleaved attributes need no loop.
        values = np.ndarray((count, width), kind, data, start, (stride, kind.itemsize))
        if accessor.get("normalized", False):
            # glTF 2.0: the most negative integer also stands for -1.
            return np.maximum(values.astype(np.float64) / np.iinfo(kind).max, -1)
        return values


def read_glb(data: bytes, *, texture: bool = True) -> Triangles:
    """Parse a GLB file: all triangles, strips and fans of its scene, in scene coordinates, as one mesh.

    Vertices at equal positions are merged (the format duplicates them along seams), v is flipped to run upward, and
    linear colors are converted to sRGB. Of the materials, only the base color texture is read. Points and lines have no
    faces and are ignored.

    Args:
        data: contents of the file.
        texture: read the texture. If False, the parts may have different textures.

    Raises:
        MeshError: the data is not GLB, truncated, damaged, without triangles, compressed, or has several textures.
    """
    content = _content(data)
    unknown = sorted(set(content.document.get("extensionsRequired", [])) - _SUPPORTED_EXTENSIONS)
    if unknown:
        msg = f"it requires {', '.join(unknown)}, which is not supported: export it without compression and extensions"
        raise MeshError(msg)
    try:
        parts = _parts(content, texture=texture)
    except MeshError:
        raise
    except _DAMAGED as error:
        msg = f"its description is invalid ({type(error).__name__}: {error}): export it again"
        raise MeshError(msg) from error
    if not any(len(part.faces) for part in parts):
        raise MeshError("its scene holds no triangles: give a mesh, not points or lines")
    return _as_one(parts).welded()


def _content(data: bytes) -> _GlbContent:
    if len(data) < 20 or not data.startswith(MAGIC):
        msg = f"it is not a GLB file (it begins with {data[:12]!r}): give a mesh as .glb, .ply or .obj file"
        raise MeshError(msg)
    version, total = struct.unpack_from("<II", data, 4)
    if version != VERSION:
        msg = f"it is glTF {version}, expected {VERSION}: export it again"
        raise MeshError(msg)
    if total > len(data):
        msg = f"expected {total} bytes, got {len(data)}: it is cut short, copy it again"
        raise MeshError(msg)
    chunks: dict[int, bytes] = {}
    offset = 12
    # The specification requires readers to skip chunks of unknown types.
    while offset + 8 <= total:
        length, kind = struct.unpack_from("<II", data, offset)
        chunks.setdefault(kind, data[offset + 8 : offset + 8 + length])
        offset += 8 + length
    try:
        document = orjson.loads(chunks.get(JSON_CHUNK, b""))
    except orjson.JSONDecodeError as error:
        msg = f"its description is not JSON ({error}): it is damaged, export it again"
        raise MeshError(msg) from error
    if not isinstance(document, dict):
        raise MeshError("its description is not a JSON object: it is damaged, export it again")
    return _GlbContent(document, chunks.get(BINARY_CHUNK, b""))


def _parts(content: _GlbContent, *, texture: bool) -> list[Triangles]:
    """Return the primitives of the scene in scene coordinates."""
    nodes = content.document.get("nodes", [])
    if content.document.get("scenes"):
        roots = content.item("scenes", content.document.get("scene", 0)).get("nodes", [])
    else:
        # Without scenes, every node that is no child of another is a root.
        below = {child for node in nodes for child in node.get("children", [])}
        roots = [number for number in range(len(nodes)) if number not in below]
    parts: list[Triangles] = []
    queue = deque((number, np.eye(4)) for number in roots)
    visited: set[int] = set()
    size = 0
    while queue:
        number, parent_transform = queue.popleft()
        node = content.item("nodes", number)
        # The format requires a tree: shared children could expand to 2 ** depth nodes, and a cycle would never end.
        if number in visited:
            msg = f"node {number} has two parents, but a scene must be a tree: it is damaged, export it again"
            raise MeshError(msg)
        visited.add(number)
        transform = parent_transform @ _transform(node)
        queue += [(child, transform) for child in node.get("children", [])]
        if "mesh" in node:
            primitives = content.item("meshes", node["mesh"])["primitives"]
            primitives = [primitive for primitive in primitives if _has_faces(primitive)]
            # Checked before any part is read: many nodes may instance one mesh, at a few bytes each.
            size += sum(_rows(content, primitive) for primitive in primitives)
            if size > _MAX_ROWS:
                msg = f"it has more than {_MAX_ROWS:,} vertices and face corners, instances included: decimate it"
                raise MeshError(msg)
            parts += [_part(content, primitive, transform, texture=texture) for primitive in primitives]
    return parts


def _has_faces(primitive: Mapping[str, Any]) -> bool:
    """Return whether a primitive has faces.

    Raises:
        MeshError: the format has no such mode.
    """
    mode = primitive.get("mode", _TRIANGLES)
    if mode not in range(_FAN + 1):
        msg = f"a primitive has mode {mode!r}, expected a number from 0 to {_FAN}: it is damaged, export it again"
        raise MeshError(msg)
    return mode >= _TRIANGLES


def _rows(content: _GlbContent, primitive: Mapping[str, Any]) -> int:
    """Return the number of vertices and face corners of a primitive, or an upper limit."""
    vertices = int(content.item("accessors", primitive["attributes"]["POSITION"])["count"])
    corners = int(content.item("accessors", primitive["indices"])["count"]) if "indices" in primitive else vertices
    # Each entry of a strip or fan completes a triangle.
    return vertices + corners * (1 if primitive.get("mode", _TRIANGLES) == _TRIANGLES else 3)


def _transform(node: Mapping[str, Any]) -> Float64[np.ndarray, "4 4"]:
    """Return the matrix of a node, stored as a matrix or as translation, quaternion (x y z w) and scale."""
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T  # stored column by column
    x, y, z, w = np.array(node.get("rotation", (0, 0, 0, 1)), np.float64)
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    matrix = np.eye(4)
    matrix[:3, :3] = rotation * np.array(node.get("scale", (1, 1, 1)), np.float64)
    matrix[:3, 3] = node.get("translation", (0, 0, 0))
    return matrix


def _part(
    content: _GlbContent, primitive: Mapping[str, Any], matrix: Float64[np.ndarray, "4 4"], *, texture: bool
) -> Triangles:
    attributes = primitive["attributes"]
    positions = content.numbers(attributes["POSITION"]).astype(np.float64) @ matrix[:3, :3].T + matrix[:3, 3]
    rows = content.numbers(primitive["indices"])[:, 0] if "indices" in primitive else np.arange(len(positions))
    faces = _faces(rows.astype(np.int64), primitive.get("mode", _TRIANGLES))
    mesh = Triangles(
        vertices=positions,
        faces=faces,
        colors=_srgb(content.numbers(attributes["COLOR_0"])[:, :3]) if "COLOR_0" in attributes else None,
    )
    picture, channel = _picture(content, primitive) if texture else (None, 0)
    if f"TEXCOORD_{channel}" in attributes:
        uvs = content.numbers(attributes[f"TEXCOORD_{channel}"]).astype(np.float64)
        # v runs downward in glTF.
        uvs[:, 1] = 1 - uvs[:, 1]
        mesh = replace(mesh, uvs=uvs[faces], texture=picture)
    # Required by the format: a negative determinant reverses the winding.
    mirrored = np.linalg.det(matrix[:3, :3]) < 0
    return mesh.turned() if mirrored else mesh


def _faces(rows: Int64[np.ndarray, " n"], mode: int) -> Int64[np.ndarray, "faces 3"]:
    """Return the faces of a triangle list, strip or fan, wound as the format defines it (glTF 2.0, section 3.7.2.1)."""
    if mode == _TRIANGLES:
        if len(rows) % 3:
            msg = f"the number of face corners, {len(rows)}, is not a multiple of 3: it is damaged, export it again"
            raise MeshError(msg)
        return rows.reshape(-1, 3)
    if len(rows) < 3:
        msg = f"a triangle strip or fan has {len(rows)} corners, expected at least 3: it is damaged, export it again"
        raise MeshError(msg)
    if mode == _FAN:
        faces = np.stack([rows[1:-1], rows[2:], np.broadcast_to(rows[0], len(rows) - 2)], -1)
    else:
        faces = np.stack([rows[:-2], rows[1:-1], rows[2:]], -1)
        # Every other triangle of a strip is wound the other way.
        faces[1::2] = faces[1::2][:, [0, 2, 1]]
    # Strips repeat vertices to jump from one part to the next; these faces have no area.
    repeated = (faces == np.roll(faces, 1, axis=1)).any(1)
    return faces[~repeated]


def _picture(
    content: _GlbContent, primitive: Mapping[str, Any]
) -> tuple[UInt8[np.ndarray, "height width 3"] | None, int]:
    """Return the base color texture, if any, and the index of its set of texture coordinates."""
    if "material" not in primitive:
        return None, 0
    surface = content.item("materials", primitive["material"]).get("pbrMetallicRoughness", {})
    texture_info = surface.get("baseColorTexture")
    if texture_info is None:
        return None, 0
    number = content.item("textures", texture_info["index"]).get("source", -1)
    image = content.item("images", number)
    if "bufferView" in image:
        data, _ = content.view(image["bufferView"])
    else:
        data = _inline(image["uri"])
    return read_picture(data, f"number {number} inside it"), texture_info.get("texCoord", 0)


def _inline(uri: str) -> bytes:
    head, comma, body = uri.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        msg = f"its texture is in another file ({uri[:60]!r}): export it as a single .glb file"
        raise MeshError(msg)
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        msg = f"its texture is not valid base64 ({error}): export it again"
        raise MeshError(msg) from error


def _srgb(colors: np.ndarray) -> UInt8[np.ndarray, "n 3"]:
    """Convert linear colors from 0 to 1 to sRGB of 8 bits (IEC 61966-2-1)."""
    if not np.isfinite(colors).all():
        raise MeshError("its colors are not finite: export the file again, or without colors")
    share = colors.astype(np.float64).clip(0, 1)
    curved = np.where(share <= 0.0031308, 12.92 * share, 1.055 * share ** (1 / 2.4) - 0.055)
    return np.rint(curved * 255).astype(np.uint8)


def _as_one(parts: Sequence[Triangles]) -> Triangles:
    """Merge parts into one mesh.

    Colors and texture coordinates are kept if all parts have them; different textures are an error.
    """
    pictures = {None if part.texture is None else (part.texture.shape, part.texture.tobytes()) for part in parts}
    if len(pictures) > 1:
        names = f"{len(pictures - {None})} textures" + (" and parts without one" if None in pictures else "")
        msg = f"it has {names}, but a mesh has one texture: bake them into one, or read it without textures"
        raise MeshError(msg)
    starts = np.cumsum([0, *(len(part.vertices) for part in parts)])
    colors = [part.colors for part in parts if part.colors is not None]
    uvs = [part.uvs for part in parts if part.uvs is not None]
    return Triangles(
        vertices=np.concatenate([part.vertices for part in parts]),
        faces=np.concatenate([part.faces + start for part, start in zip(parts, starts, strict=False)]),
        colors=np.concatenate(colors) if len(colors) == len(parts) else None,
        uvs=np.concatenate(uvs) if len(uvs) == len(parts) else None,
        texture=parts[0].texture if len(uvs) == len(parts) else None,
    )
