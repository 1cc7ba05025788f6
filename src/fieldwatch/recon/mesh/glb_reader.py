"""Reading meshes from GLB files (glTF 2.0), ours and other programs'."""

import base64
import binascii
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
from jaxtyping import Float64, UInt8

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.glb import BINARY_CHUNK, JSON_CHUNK, MAGIC, VERSION
from fieldwatch.recon.mesh.pictures import read_picture
from fieldwatch.recon.mesh.triangles import Triangles

_TYPES = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
_MAX_ROWS = 1 << 27
_SUPPORTED_EXTENSIONS = {"KHR_materials_unlit", "KHR_mesh_quantization", "KHR_materials_specular", "KHR_materials_ior"}
_DAMAGED = (KeyError, IndexError, TypeError, AttributeError, ValueError)


@dataclass(frozen=True)
class _GlbContent:
    document: Mapping[str, Any]
    binary: bytes

    def item(self, kind: str, number: int) -> Mapping[str, Any]:
        """Return one entry of a list of the JSON chunk; raises MeshError if it is not there."""
        entries = self.document.get(kind, [])
        if not 0 <= number < len(entries):
            msg = f"it names {kind} {number} of {len(entries)}: it is damaged, export it again"
            raise MeshError(msg)
        return entries[number]

    def view(self, number: int) -> tuple[bytes, int]:
        """Return the bytes of a buffer view and its stride; 0 is none."""
        view = self.item("bufferViews", number)
        if view.get("buffer", 0) != 0 or "uri" in self.item("buffers", 0):
            raise MeshError("its numbers lie in another file: export it as one .glb file")
        start = view.get("byteOffset", 0)
        length = view["byteLength"]
        if min(start, length) < 0 or start + length > len(self.binary):
            msg = f"{start + length} bytes are named, {len(self.binary)} are there: it is cut short, copy it again"
            raise MeshError(msg)
        return self.binary[start : start + length], view.get("byteStride", 0)

    def numbers(self, number: int) -> np.ndarray:
        """Return the rows of an accessor; whole numbers that stand for shares become those."""
        accessor = self.item("accessors", number)
        if "sparse" in accessor or "bufferView" not in accessor:
            raise MeshError("it holds sparse numbers, which are not read: export it without sparse accessors")
        kind = np.dtype(_TYPES[accessor["componentType"]])
        width = _WIDTHS[accessor["type"]]
        data, stride = self.view(accessor["bufferView"])
        start = accessor.get("byteOffset", 0)
        count = accessor["count"]
        row = kind.itemsize * width
        stride = stride or row
        if count < 1 or start < 0 or stride < row or start + (count - 1) * stride + row > len(data):
            msg = f"{count} rows of {row} bytes are named, {len(data)} bytes are there: it is damaged, export it again"
            raise MeshError(msg)
        # A strided view of the bytes: interleaved attributes need no loop.
        values = np.ndarray((count, width), kind, data, start, (stride, kind.itemsize))
        if accessor.get("normalized", False):
            # glTF 2.0: the most negative integer also stands for -1.
            return np.maximum(values.astype(np.float64) / np.iinfo(kind).max, -1)
        return values


def read_glb(data: bytes, *, texture: bool = True) -> Triangles:
    """Return the mesh that a GLB file holds: all that its scene shows, in the scene's coordinates, as one.

    Vertices at the same place are made one (the format repeats them along seams), v runs upwards, linear colours
    become sRGB. Of the materials only the picture of the base colour is read.

    Args:
        data: the file.
        texture: False leaves pictures out; then parts may have different ones.

    Raises:
        MeshError: the bytes are no GLB, cut short, damaged, without triangles, compressed, or with several pictures.
    """
    content = _content(data)
    unknown = sorted(set(content.document.get("extensionsRequired", [])) - _SUPPORTED_EXTENSIONS)
    if unknown:
        msg = f"it needs {', '.join(unknown)}, which is not read: export it without compression and extensions"
        raise MeshError(msg)
    try:
        parts = _parts(content, texture=texture)
    except MeshError:
        raise
    except _DAMAGED as error:
        msg = f"what it says about itself makes no sense ({type(error).__name__}: {error}): export it again"
        raise MeshError(msg) from error
    if not parts:
        raise MeshError("its scene holds no triangles: a cloud of points or lines is no mesh, give a mesh")
    return _as_one(parts).welded()


def _content(data: bytes) -> _GlbContent:
    if len(data) < 20 or not data.startswith(MAGIC):
        msg = f"it is no GLB file (it begins with {data[:12]!r}): give a mesh in a .glb, .ply or .obj file"
        raise MeshError(msg)
    version, total = struct.unpack_from("<II", data, 4)
    if version != VERSION:
        msg = f"it is glTF {version}, and {VERSION} is read: export it again"
        raise MeshError(msg)
    if total > len(data):
        msg = f"it promises {total} bytes and has {len(data)}: it is cut short, copy it again"
        raise MeshError(msg)
    chunks: dict[int, bytes] = {}
    offset = 12
    # Unknown chunks are skipped, as the specification asks.
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
    """Return the parts that the scene shows, in its coordinates."""
    nodes = content.document.get("nodes", [])
    if content.document.get("scenes"):
        roots = content.item("scenes", content.document.get("scene", 0)).get("nodes", [])
    else:
        # Without scenes every node that nobody names as a child is a root.
        below = {child for node in nodes for child in node.get("children", [])}
        roots = [number for number in range(len(nodes)) if number not in below]
    parts: list[Triangles] = []
    queue = deque((number, np.eye(4)) for number in roots)
    visited: set[int] = set()
    size = 0
    while queue:
        number, parent_transform = queue.popleft()
        node = content.item("nodes", number)
        if (
            number in visited
        ):  # the format wants a tree: else a few nodes stand for 2 ** depth, or for a ring without end
            msg = f"node {number} is named twice, and a scene is a tree: it is damaged, export it again"
            raise MeshError(msg)
        visited.add(number)
        transform = parent_transform @ _transform(node)
        queue += [(child, transform) for child in node.get("children", [])]
        if "mesh" in node:
            primitives = content.item("meshes", node["mesh"])["primitives"]
            primitives = [primitive for primitive in primitives if primitive.get("mode", 4) == 4]
            size += sum(_rows(content, primitive) for primitive in primitives)
            if size > _MAX_ROWS:
                msg = f"it shows more than {_MAX_ROWS:,} vertices and corners, repeated ones included: thin it out"
                raise MeshError(msg)
            parts += [_part(content, primitive, transform, texture=texture) for primitive in primitives]
    return parts


def _rows(content: _GlbContent, primitive: Mapping[str, Any]) -> int:
    """Return how many vertices and corners a shape names: a mesh may be shown many times, at a few bytes each."""
    accessors = [primitive["attributes"]["POSITION"], *([primitive["indices"]] if "indices" in primitive else [])]
    return sum(int(content.item("accessors", number)["count"]) for number in accessors)


def _transform(node: Mapping[str, Any]) -> Float64[np.ndarray, "4 4"]:
    """Return the matrix of a node, given as such or as translation, rotation (x y z w) and scale."""
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T
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
    if len(rows) % 3:
        msg = f"{len(rows)} corners do not make triangles: it is damaged, export it again"
        raise MeshError(msg)
    faces = rows.astype(np.int64).reshape(-1, 3)
    mesh = Triangles(
        vertices=positions,
        faces=faces,
        colours=_srgb(content.numbers(attributes["COLOR_0"])[:, :3]) if "COLOR_0" in attributes else None,
    )
    picture, channel = _picture(content, primitive) if texture else (None, 0)
    if f"TEXCOORD_{channel}" in attributes:
        uvs = content.numbers(attributes[f"TEXCOORD_{channel}"]).astype(np.float64)
        # glTF's v runs downwards.
        uvs[:, 1] = 1 - uvs[:, 1]
        mesh = replace(mesh, uvs=uvs[faces], texture=picture)
    mirrored = np.linalg.det(matrix[:3, :3]) < 0  # the format asks for this: such faces are wound the other way
    return mesh.turned() if mirrored else mesh


def _picture(
    content: _GlbContent, primitive: Mapping[str, Any]
) -> tuple[UInt8[np.ndarray, "height width 3"] | None, int]:
    """Return the base colour's picture, if there is one, and the number of its texture coordinates."""
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
        msg = f"its texture lies in another file ({uri[:60]!r}): export it as one .glb file"
        raise MeshError(msg)
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        msg = f"its texture is not base64 ({error}): export it again"
        raise MeshError(msg) from error


def _srgb(colours: np.ndarray) -> UInt8[np.ndarray, "n 3"]:
    """Return sRGB colours for linear shares (IEC 61966-2-1)."""
    if not np.isfinite(colours).all():
        raise MeshError("its colours are not finite: what wrote the file failed; write it again, or without colours")
    share = colours.astype(np.float64).clip(0, 1)
    curved = np.where(share <= 0.0031308, 12.92 * share, 1.055 * share ** (1 / 2.4) - 0.055)
    return np.rint(curved * 255).astype(np.uint8)


def _as_one(parts: Sequence[Triangles]) -> Triangles:
    """Return the parts as one mesh; what only some of them have is left out, but for a picture, of which one may be."""
    pictures = {None if part.texture is None else (part.texture.shape, part.texture.tobytes()) for part in parts}
    if len(pictures) > 1:
        names = f"{len(pictures - {None})} pictures" + (" and parts without one" if None in pictures else "")
        msg = f"it shows {names}: a mesh has one for all; bake them into one, or read it without textures"
        raise MeshError(msg)
    starts = np.cumsum([0, *(len(part.vertices) for part in parts)])
    colours = [part.colours for part in parts if part.colours is not None]
    uvs = [part.uvs for part in parts if part.uvs is not None]
    return Triangles(
        vertices=np.concatenate([part.vertices for part in parts]),
        faces=np.concatenate([part.faces + start for part, start in zip(parts, starts, strict=False)]),
        colours=np.concatenate(colours) if len(colours) == len(parts) else None,
        uvs=np.concatenate(uvs) if len(uvs) == len(parts) else None,
        texture=parts[0].texture if len(uvs) == len(parts) else None,
    )
